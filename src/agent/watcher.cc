#include "agent/watcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "agent/process_tree.h"
#include "agent/worker_process.h"
#include "base/blocked_signals.h"
#include "base/priority.h"
#include "base/process_state.h"
#include "transport/futex.h"

namespace closeranks::agent {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// futex_waitv takes 128 words; one is our own. Further workers are looked at every slice.
constexpr std::size_t max_words = 127;
constexpr milliseconds slice_of_many{5};
// Nothing to do: the thread wakes now and then all the same, in case a wake-up was lost.
constexpr milliseconds idle_slice{1000};
// A fence takes 1-10 ms; later checks are rarer, the process is stuck in the kernel then.
constexpr microseconds fence_poll_fast{300};
constexpr milliseconds fence_poll_slow{10};
constexpr milliseconds fence_fast_for{50};
// SIGKILL is pending and every thread is in uninterruptible sleep for so long: no user instruction will run again.
constexpr milliseconds unkillable_after{500};
// Exit status 0 in the making, but the memory is still there after this: the process called exec instead.
constexpr milliseconds exec_after{1000};

// A worker's way from life to death; only forward, stages may be skipped.
enum class Stage {
  running,
  leaving,  // its life word is gone with status 0 in the making: wait for the end, suspect nobody
  fencing,  // killed, or known to be dying; the proof is awaited
  gone,     // proved
};

struct Followed {
  pid_t pid = 0;
  FileDescriptor process;
  std::optional<transport::PeerLife> life;
  pid_t life_holder = 0;
  Stage stage = Stage::running;
  Clock::time_point since;  // of the stage
  bool by_itself = true;    // was dying before anyone killed it
  bool suspected = false;
  bool reaped = false;
  Clock::time_point reaped_at;
  bool told_exit = false;
  int status = -1;  // as from waitpid, -1: not known
  int cause = 0;    // of a child that held the life words and failed: what the worker's end is put down to
  std::string reason;
};

bool is_clean(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

struct Watcher::State {
  explicit State(WatcherHandlers given) : handlers(std::move(given)) {}

  WatcherHandlers handlers;
  std::mutex mutex;
  std::map<WorkerId, Followed> workers;     // under mutex
  std::vector<std::function<void()>> told;  // under mutex: handler calls to make without it
  std::atomic<std::uint32_t> bell{0};
  std::atomic<bool> stopping{false};
  std::thread thread;

  void ring() {
    bell.fetch_add(1);
    transport::futex_wake_all(bell);
  }

  // Makes the calls collected so far. Without the mutex.
  void tell() {
    std::vector<std::function<void()>> calls;
    {
      const std::scoped_lock lock(mutex);
      calls.swap(told);
    }
    for (const auto& call : calls) call();
  }

  std::map<pid_t, WorkerId> mains() const {
    std::map<pid_t, WorkerId> result;
    for (const auto& [id, worker] : workers) {
      if (!worker.reaped) result.emplace(worker.pid, id);
    }
    return result;
  }

  void move_to(Followed& worker, Stage stage) {
    worker.stage = stage;
    worker.since = Clock::now();
  }

  void suspect(WorkerId id, Followed& worker, const std::string& reason) {
    if (worker.suspected) return;
    worker.suspected = true;
    worker.reason = reason;
    told.push_back([this, message = membership::AgentSuspicion{id, reason}] { handlers.suspected(message); });
  }

  void begin_fence(Followed& worker) {
    if (worker.stage != Stage::fencing) move_to(worker, Stage::fencing);
    // Of a child of ours it can only fail because the child is gone.
    if (worker.reaped) return;
    (void)send_signal(worker.process, SIGKILL);
    hasten_death(worker.pid, true);
  }

  // The process with the life words is a child of the worker's own (a shell script around it). Its end is the script's
  // to deal with, until the coordinator asks for the fence.
  void on_childs_life_lost(WorkerId id, Followed& worker) {
    worker.cause = std::max(status_of_ending(worker.life_holder), 0);
    worker.life.reset();
    if (worker.cause != 0) suspect(id, worker, describe_wait_status(worker.cause));
  }

  void on_life_lost(WorkerId id, Followed& worker) {
    if (worker.life_holder != worker.pid) {
      on_childs_life_lost(id, worker);
      return;
    }
    const int status = worker.reaped ? worker.status : status_of_ending(worker.pid);
    if (status == 0) {
      move_to(worker, Stage::leaving);
      return;
    }
    if (status > 0) worker.status = status;
    suspect(id, worker, status > 0 ? describe_wait_status(status) : "its process ended");
    begin_fence(worker);
  }

  // True when no user instruction of the worker's main process can run again.
  bool main_is_gone(const Followed& worker) const {
    if (worker.reaped || has_ended(worker.process)) return true;
    if (all_threads_without_memory(worker.pid)) return true;
    return Clock::now() - worker.since > unkillable_after && is_unkillable(worker.pid);
  }

  // Kills what is left of the tree and could write into shared memory. True when nothing of that is left.
  bool tree_is_gone(WorkerId id) {
    bool gone = true;
    for (const TreeMember& member : tree_members(mains())) {
      if (member.known && member.worker == id && holds_segments(member.pid)) {
        kill_member(member);
        gone = false;
      }
    }
    return gone;
  }

  void step(WorkerId id, Followed& worker) {
    if (!main_is_gone(worker)) {
      if (worker.stage == Stage::leaving && Clock::now() - worker.since > exec_after) {
        worker.by_itself = false;
        suspect(id, worker, "it went over to another program (exec) without leaving the job");
        begin_fence(worker);
      }
      return;
    }
    if (!tree_is_gone(id)) return;
    if (!worker.reaped && worker.status < 0) worker.status = status_of_ending(worker.pid);
    // Freeing its memory takes long and is nobody's hurry.
    if (!worker.reaped) hasten_death(worker.pid, false);
    move_to(worker, Stage::gone);
    if (!worker.by_itself || !is_clean(worker.status)) {
      if (worker.status >= 0 && worker.by_itself) worker.reason = describe_wait_status(worker.status);
      told.push_back(
          [this, message = membership::Fenced{id, worker.by_itself, worker.reaped, std::max(worker.status, 0),
                                              worker.reason}] { handlers.fenced(message); });
    }
    tell_exit(id, worker);
  }

  // Once, when the worker is both proved gone and reaped.
  void tell_exit(WorkerId id, Followed& worker) {
    if (!worker.reaped || worker.stage != Stage::gone || worker.told_exit) return;
    worker.told_exit = true;
    const int status = worker.cause != 0 ? worker.cause : worker.status;
    const std::string reason = worker.by_itself ? describe_wait_status(status) : worker.reason;
    told.push_back([this, message = membership::Exited{id, status, reason}] { handlers.exited(message); });
  }

  // One look at everybody. Returns how long to sleep.
  microseconds look() {
    const std::scoped_lock lock(mutex);
    microseconds sleep = workers.size() > max_words ? slice_of_many : idle_slice;
    for (auto& [id, worker] : workers) {
      if (worker.stage == Stage::running && worker.life.has_value() && worker.life->died()) on_life_lost(id, worker);
      if (worker.stage != Stage::leaving && worker.stage != Stage::fencing) continue;
      step(id, worker);
      if (worker.stage == Stage::gone) continue;
      const bool fresh = Clock::now() - worker.since < fence_fast_for;
      sleep = std::min(sleep, fresh ? fence_poll_fast : microseconds(fence_poll_slow));
    }
    return sleep;
  }

  std::vector<transport::FutexWord> words(std::uint32_t bell_value) {
    const std::scoped_lock lock(mutex);
    std::vector<transport::FutexWord> result{{&bell, bell_value}};
    for (const auto& [id, worker] : workers) {
      if (result.size() > max_words) break;
      if (worker.stage == Stage::running && worker.life.has_value() &&
          worker.life->state() == transport::LifeState::alive) {
        result.push_back(worker.life->futex());
      }
    }
    return result;
  }

  void run() {
    raise_own_priority();
    ::prctl(PR_SET_NAME, "cr-watcher");
    while (!stopping.load()) {
      const std::uint32_t bell_value = bell.load();
      const auto until = Clock::now() + look();
      tell();
      if (!transport::futex_wait_any(words(bell_value), until)) {
        // No futex_waitv here: the life words are looked at every millisecond.
        transport::futex_wait({&bell, bell_value}, std::min(until, Clock::now() + milliseconds(1)));
      }
    }
  }
};

Watcher::Watcher(WatcherHandlers handlers) : state_(std::make_unique<State>(std::move(handlers))) {
  const BlockedSignals blocked;
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Watcher::~Watcher() {
  state_->stopping.store(true);
  state_->ring();
  state_->thread.join();
}

void Watcher::follow(WorkerId worker, pid_t pid, const FileDescriptor& process) {
  const std::scoped_lock lock(state_->mutex);
  Followed& followed = state_->workers[worker];
  followed.pid = pid;
  followed.process = process.duplicate();
}

void Watcher::attach_life(WorkerId worker, transport::PeerLife life, pid_t holder) {
  {
    const std::scoped_lock lock(state_->mutex);
    const auto found = state_->workers.find(worker);
    if (found == state_->workers.end()) return;
    found->second.life.emplace(std::move(life));
    found->second.life_holder = holder;
  }
  state_->ring();
}

void Watcher::fence(WorkerId worker, const std::string& reason) {
  {
    const std::scoped_lock lock(state_->mutex);
    const auto found = state_->workers.find(worker);
    if (found == state_->workers.end() || found->second.stage == Stage::fencing) return;
    Followed& followed = found->second;
    if (followed.stage == Stage::gone) {
      // Asked for again: the answer may have been lost with a connection.
      state_->told.push_back(
          [state = state_.get(), message = membership::Fenced{worker, followed.by_itself, followed.reaped,
                                                              std::max(followed.status, 0), followed.reason}] {
            state->handlers.fenced(message);
          });
    } else {
      const bool dying =
          followed.reaped || has_ended(followed.process) || (followed.life.has_value() && followed.life->died());
      followed.by_itself = dying;
      followed.reason = reason;
      state_->begin_fence(followed);
    }
  }
  state_->ring();
}

std::optional<int> Watcher::reap(WorkerId worker) {
  std::optional<int> result;
  {
    const std::scoped_lock lock(state_->mutex);
    const auto found = state_->workers.find(worker);
    if (found == state_->workers.end()) return std::nullopt;
    Followed& followed = found->second;
    if (!followed.reaped) {
      int status = 0;
      if (::waitpid(followed.pid, &status, WNOHANG) != followed.pid) return std::nullopt;
      followed.reaped = true;
      followed.reaped_at = Clock::now();
      followed.status = status;
    }
    result = followed.status;
    if (followed.stage == Stage::running) {
      if (!is_clean(followed.status)) {
        state_->suspect(worker, followed, describe_wait_status(followed.status));
      }
      state_->move_to(followed, is_clean(followed.status) ? Stage::leaving : Stage::fencing);
    }
    state_->tell_exit(worker, followed);
  }
  state_->tell();
  state_->ring();
  return result;
}

void Watcher::signal(WorkerId worker, int signal) {
  const std::scoped_lock lock(state_->mutex);
  const auto found = state_->workers.find(worker);
  if (found != state_->workers.end() && !found->second.reaped) {
    (void)send_signal(found->second.process, signal);
  }
}

void Watcher::signal_group(WorkerId worker, int signal) {
  const std::scoped_lock lock(state_->mutex);
  const auto found = state_->workers.find(worker);
  // Until it is reaped the number cannot mean another group.
  if (found != state_->workers.end() && !found->second.reaped) ::kill(-found->second.pid, signal);
}

std::size_t Watcher::kill_leftovers(std::chrono::milliseconds grace) {
  const std::scoped_lock lock(state_->mutex);
  Clock::time_point last_reaped;
  bool all_reaped = true;
  for (const auto& [id, worker] : state_->workers) {
    all_reaped = all_reaped && worker.reaped;
    last_reaped = std::max(last_reaped, worker.reaped_at);
  }
  const auto now = Clock::now();
  std::size_t left = 0;
  for (const TreeMember& member : tree_members(state_->mains())) {
    const auto owner = state_->workers.find(member.worker);
    const bool owned = member.known && owner != state_->workers.end();
    if (owned ? !owner->second.reaped : !all_reaped) continue;
    ++left;
    if (now - (owned ? owner->second.reaped_at : last_reaped) >= grace) kill_member(member);
  }
  return left;
}

}  // namespace closeranks::agent

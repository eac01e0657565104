#include "agent/strike.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "algorithm/group_machine.h"
#include "base/priority.h"
#include "base/process_state.h"
#include "closeranks/op.h"
#include "transport/outside_view.h"

namespace closeranks::agent {
namespace {

using algorithm::BlockState;
using algorithm::BlockWord;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using transport::OutsideView;
using Clock = std::chrono::steady_clock;

// Between two looks. An op of some hundred KiB on busy cores takes milliseconds.
constexpr microseconds look_every{20};
// A new group may be the one with the most entries from now on.
constexpr milliseconds choose_every{200};
// From SIGKILL to the proof.
constexpr milliseconds death_takes{10'000};

using Pids = std::map<Slot, int>;

// Of the workers that run.
Pids read_pids(const std::string& path) {
  Pids pids;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("slot") || !event["slot"].is_number_unsigned()) continue;
    const Slot slot(event["slot"].get<std::uint32_t>());
    const std::string kind = event.value("event", "");
    if (kind == "worker_started" && event.contains("pid")) pids[slot] = event["pid"].get<int>();
    if (kind == "worker_excluded") pids.erase(slot);
  }
  return pids;
}

// The victim's segment of one group, and those of the members with lower ranks: the words of an entry's blocks lie with
// the lowest that has entered it.
class Victim {
 public:
  Victim(OutsideView view, std::vector<OutsideView> others) : view_(std::move(view)) {
    for (OutsideView& other : others) {
      if (other.identity().rank < view_.identity().rank && other.shape() == view_.shape()) {
        lower_.push_back(std::move(other));
      }
    }
    std::sort(lower_.begin(), lower_.end(),
              [](const OutsideView& a, const OutsideView& b) { return a.identity().rank < b.identity().rank; });
  }

  [[nodiscard]] const OutsideView& view() const { return view_; }
  // Fills in the entry the victim is in; false: it is in none that counts, or has no block of it in work.
  bool look(Strike& seen) {
    const std::uint64_t entered = view_.entered();
    if (entered == 0 || view_.completed() >= entered) return false;
    const std::uint64_t sequence = entered - 1;
    const auto descriptor = view_.descriptor(sequence);
    if (descriptor.sequence != sequence || descriptor.blocks == 0) return false;
    if (descriptor.kind != static_cast<std::uint8_t>(OpKind::all_reduce)) return false;
    if (descriptor.blocks > view_.shape().max_blocks) return false;  // it was being written
    seen.sequence = sequence;
    seen.entered = entered;
    seen.blocks = descriptor.blocks;
    own_.assign(descriptor.blocks, BlockState::open);
    look_at_blocks(sequence);
    seen.own_blocks = own_blocks();
    seen.own_blocks_distributed_before = own_blocks_distributed();
    // Read again: the words above belong to an entry only as long as it is the latest.
    return seen.own_blocks_distributed_before < seen.own_blocks && view_.entered() == entered;
  }
  // While it dies: soon its heirs write over the words of the blocks that it had in work.
  void look_at_blocks(std::uint64_t sequence) {
    const auto found = std::find_if(lower_.begin(), lower_.end(),
                                    [sequence](const OutsideView& lower) { return lower.entered() > sequence; });
    const OutsideView& home = found == lower_.end() ? view_ : *found;
    for (std::uint32_t block = 0; block < own_.size(); ++block) {
      const BlockWord word = BlockWord::unpack(home.block_word(sequence, block));
      if (word.sequence == sequence && word.holder == view_.identity().rank.value()) own_[block] = word.state;
    }
  }
  // After the death, when its own counts do not change any more.
  void look_after(Strike& seen) const {
    seen.entered = view_.entered();
    seen.completed = view_.completed();
    seen.own_blocks = own_blocks();
    seen.own_blocks_distributed_after = own_blocks_distributed();
    seen.hit = seen.entered == seen.sequence + 1 && seen.completed <= seen.sequence &&
               seen.own_blocks_distributed_after < seen.own_blocks;
  }

 private:
  [[nodiscard]] std::uint32_t own_blocks() const {
    return static_cast<std::uint32_t>(own_.size() - std::count(own_.begin(), own_.end(), BlockState::open));
  }
  [[nodiscard]] std::uint32_t own_blocks_distributed() const {
    return static_cast<std::uint32_t>(std::count(own_.begin(), own_.end(), BlockState::distributed));
  }

  OutsideView view_;
  std::vector<OutsideView> lower_;  // by rank
  std::vector<BlockState> own_;     // of the entry last looked at, by block: how far the victim was; open: not its own
};

// The group with the most entries: the one a model trains in.
std::optional<Victim> choose(int pid, const Pids& pids) {
  std::vector<OutsideView> views = OutsideView::open_all(pid);
  const auto most = std::max_element(
      views.begin(), views.end(), [](const OutsideView& a, const OutsideView& b) { return a.entered() < b.entered(); });
  if (most == views.end()) return std::nullopt;
  std::vector<OutsideView> others;
  for (const auto& [slot, other] : pids) {
    if (other == pid) continue;
    for (OutsideView& view : OutsideView::open_all(other)) {
      if (view.identity().group == most->identity().group) others.push_back(std::move(view));
    }
  }
  return Victim(std::move(*most), std::move(others));
}

std::int64_t unix_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void watch_death(const FileDescriptor& process, int pid, Victim& victim, std::uint64_t sequence) {
  const auto until = Clock::now() + death_takes;
  do {
    victim.look_at_blocks(sequence);
    std::this_thread::sleep_for(look_every);
  } while (Clock::now() < until && !has_ended(process) && !all_threads_without_memory(pid));
  victim.look_at_blocks(sequence);
}

}  // namespace

Result<Strike> strike(const StrikeOptions& options) {
  const Slot victim_slot = options.slot;
  const std::string who = "the worker of slot " + std::to_string(victim_slot.value());
  const Pids pids = read_pids(options.events_file);
  const auto found = pids.find(victim_slot);
  if (found == pids.end()) {
    return Status(Fault::peer_lost, Move::fix_call, who + " does not run, says " + options.events_file);
  }
  const int pid = found->second;
  auto process = open_process(pid);
  if (!process.ok()) return process.status();

  raise_own_priority();
  const auto until = Clock::now() + options.timeout;
  std::optional<Victim> victim;
  Clock::time_point chosen;
  Strike seen;
  for (;;) {
    const auto now = Clock::now();
    if (has_ended(process.value())) {
      return Status(Fault::peer_lost, Move::fix_call, who + " has ended before it could be struck");
    }
    if (now > until) {
      return Status(Fault::timeout, Move::retry,
                    who + (victim ? " was not seen inside an all_reduce in time" : " shows no segment of any group"));
    }
    if (now - chosen > choose_every) {
      victim = choose(pid, read_pids(options.events_file));
      chosen = now;
    }
    if (victim.has_value() && victim->look(seen)) break;
    std::this_thread::sleep_for(look_every);
  }
  seen.kill_unix_ns = unix_ns();
  if (Status status = send_signal(process.value(), SIGKILL); !status.ok()) return status;
  watch_death(process.value(), pid, *victim, seen.sequence);
  seen.pid = static_cast<std::uint32_t>(pid);
  seen.group = victim->view().identity().group_name;
  seen.op = std::string(name_of(OpKind::all_reduce));
  victim->look_after(seen);
  return seen;
}

std::string to_json(const Strike& strike, Slot slot) {
  return nlohmann::ordered_json{
      {"hit", strike.hit},
      {"kill_unix_ns", strike.kill_unix_ns},
      {"slot", slot.value()},
      {"pid", strike.pid},
      {"group", strike.group},
      {"sequence", strike.sequence},
      {"op", strike.op},
      {"entered", strike.entered},
      {"completed", strike.completed},
      {"blocks", strike.blocks},
      {"own_blocks", strike.own_blocks},
      {"own_blocks_distributed_before", strike.own_blocks_distributed_before},
      {"own_blocks_distributed_after", strike.own_blocks_distributed_after},
  }
      .dump();
}

}  // namespace closeranks::agent

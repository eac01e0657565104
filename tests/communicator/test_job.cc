#include "test_job.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <thread>

#include "base/token.h"

namespace closeranks::communicator_test {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

const std::string job_name = "test-job";

}  // namespace

std::int64_t JobBoard::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TestJob::TestJob(std::uint32_t members, Work work, std::chrono::milliseconds orphan_timeout, std::uint32_t spares,
                 std::optional<ProcessIdentity> coordinator_process)
    : token_(make_token()), members_(members), sink_([this](const coordinator::Event& event) {
        const std::lock_guard lock(mutex_);
        events_.push_back(event);
      }) {
  void* memory = ::mmap(nullptr, sizeof(JobBoard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  board_ = new (memory) JobBoard;
  // Forked before this process has any thread.
  processes_ = std::make_unique<Processes>(
      members + spares, [this, work, orphan_timeout, coordinator_process](std::uint32_t rank) -> std::string {
        const WorkerId worker{rank};
        while (rank >= members_) {
          if (board_->no_spares.load()) return "";
          if (const std::uint32_t taken = board_->spare_slots[rank - members_].load()) {
            rank = taken - 1;
          } else {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
          }
        }
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{30};
        while (!board_->coordinator_is_up.load(std::memory_order_acquire)) {
          if (std::chrono::steady_clock::now() > until) return "no coordinator";
          std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
        EngineOptions options;
        options.slot = Slot{rank};
        options.slots = members_;
        options.worker = worker;
        options.coordinator = board_->coordinator;
        options.token = token_;
        options.job = job_name;
        options.orphan_timeout = orphan_timeout;
        options.coordinator_process = coordinator_process;
        Result<std::shared_ptr<Engine>> engine = Engine::start(options);
        require(engine.status(), "engine");
        return work(rank, *engine.value(), *board_);
      });
  start_coordinator(0);
}

TestJob::~TestJob() {
  stop_coordinator();
  processes_.reset();
  ::munmap(board_, sizeof(JobBoard));
}

void TestJob::start_coordinator(std::uint16_t port) {
  control_ = std::make_unique<control::ControlThread>("test-agent");
  coordinator::ServerOptions options;
  options.port = port;
  options.job = job_name;
  options.token = token_;
  for (std::uint32_t rank = 0; rank < members_; ++rank) {
    options.roster.push_back({WorkerId{rank}, Slot{rank}, host_name()});
  }
  Result<std::unique_ptr<coordinator::Server>> server =
      coordinator::Server::start(*control_, std::move(options), journal_, sink_);
  require(server.status(), "coordinator");
  server_ = std::move(server.value());
  std::strncpy(board_->coordinator, server_->address().c_str(), sizeof(board_->coordinator) - 1);
  board_->coordinator_is_up.store(true, std::memory_order_release);

  control::AgentLinkOptions link;
  link.coordinator = server_->address();
  link.token = token_;
  link.job = job_name;
  link.host = host_name();
  link.opening = [this] {
    const std::lock_guard lock(mutex_);
    std::vector<membership::FromAgent> opening{
        membership::AgentHello{host_name(), static_cast<std::uint32_t>(::getpid())}};
    opening.insert(opening.end(), ended_.begin(), ended_.end());
    return opening;
  };
  link.message = [](const membership::ToAgent&) {};
  agent_ = std::make_unique<control::AgentLink>(*control_, std::move(link));
  agent_->start();
}

void TestJob::stop_coordinator() {
  if (agent_) agent_->stop();
  if (server_) server_->stop();
  agent_.reset();
  server_.reset();
  control_.reset();
}

void TestJob::restart_coordinator() {
  const std::string address = board_->coordinator;
  start_coordinator(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
}

void TestJob::kill(const std::vector<std::uint32_t>& ranks) {
  board_->killed_ns.store(JobBoard::now_ns());
  for (const std::uint32_t rank : ranks) processes_->kill(rank, SIGKILL);
  for (const std::uint32_t rank : ranks) {
    const int status = processes_->reap(rank);
    membership::Fenced fenced;
    fenced.worker = WorkerId{rank};
    fenced.by_itself = true;
    fenced.reaped = true;
    fenced.wait_status = status;
    fenced.reason = "killed by signal 9 (SIGKILL)";
    tell(fenced);
  }
}

std::uint32_t TestJob::replace(std::uint32_t slot) {
  const std::uint32_t spare = spares_used_++;
  tell(membership::Started{WorkerId{members_ + spare}, Slot{slot}});
  // An agent starts the process after it has said so; here it is there already.
  std::this_thread::sleep_for(std::chrono::milliseconds{100});
  board_->spare_slots[spare].store(slot + 1);
  return members_ + spare;
}

void TestJob::note_exit(std::uint32_t rank) {
  membership::Exited exited;
  exited.worker = WorkerId{rank};
  exited.wait_status = processes_->reap(rank);
  exited.reason = "exited with status " + std::to_string(WEXITSTATUS(exited.wait_status));
  tell(exited);
}

void TestJob::report_gone(std::uint32_t rank) {
  membership::Fenced fenced;
  fenced.worker = WorkerId{rank};
  fenced.reaped = true;
  fenced.wait_status = SIGKILL;
  fenced.reason = "killed by signal 9 (SIGKILL)";
  tell(fenced);
}

void TestJob::tell(membership::FromAgent message) {
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back(message);
  }
  if (agent_) static_cast<void>(agent_->send(message));
}

std::vector<std::string> TestJob::told() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const coordinator::Event& event : events_) lines.push_back(coordinator::to_json_line(event));
  return lines;
}

std::vector<coordinator::Event> TestJob::events(coordinator::EventKind kind) {
  const std::lock_guard lock(mutex_);
  std::vector<coordinator::Event> found;
  for (const coordinator::Event& event : events_) {
    if (event.kind == kind) found.push_back(event);
  }
  return found;
}

std::shared_ptr<Communicator> make_group(Engine& engine, const std::string& name, std::uint32_t members, Policy policy,
                                         bool lowest_member_is_root) {
  GroupOptions options;
  options.name = name;
  for (std::uint32_t slot = 0; slot < members; ++slot) options.members.push_back(Slot{slot});
  options.policy = policy;
  options.lowest_member_is_root = lowest_member_is_root;
  options.timeout = std::chrono::seconds{30};
  Result<std::shared_ptr<Communicator>> group = engine.create_group(options, nullptr);
  require(group.status(), "group");
  return group.value();
}

}  // namespace closeranks::communicator_test

// A coordinated job for tests: forked members, and in the test's own process a real coordinator behind a real socket,
// with the test as the agent that reaps what it killed and says so.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/agent_link.h"
#include "control/control_thread.h"
#include "coordinator/server.h"
#include "processes.h"

namespace closeranks::communicator_test {

// Memory shared by the test and its members.
struct JobBoard {
  std::atomic<bool> coordinator_is_up{false};
  char coordinator[64] = {};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> rounds{0};
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::int64_t> killed_ns{0};
  std::atomic<std::int64_t> longest_op_ns{0};
  // Spare i takes slot spare_slots[i] - 1; 0: it waits. `no_spares`: it ends.
  std::array<std::atomic<std::uint32_t>, 8> spare_slots{};
  std::atomic<bool> no_spares{false};
  // By rank; what each member ended with (random_kills_test.cc).
  std::array<std::atomic<std::uint64_t>, 8> outcomes{};
  // What a training job tells (join_test.cc).
  std::atomic<std::uint32_t> present{0};
  std::atomic<std::uint64_t> joined{0};
  std::atomic<std::uint64_t> transfers{0};
  std::atomic<std::uint32_t> patience_ms{0};  // at boundaries
  std::atomic<std::uint64_t> steps_with_a_vacancy{0};
  std::atomic<std::uint32_t> hold_transfer_of{0};  // slot + 1 of one that stops in the middle of a transfer
  static std::int64_t now_ns();
};

class TestJob {
 public:
  // `member` runs in each process with an engine that has joined the job.
  using Work = std::function<std::string(std::uint32_t rank, Engine& engine, JobBoard& board)>;
  // `coordinator_process`: what the members take for the process of the coordinator, whose end is for good.
  TestJob(std::uint32_t members, Work work, std::chrono::milliseconds orphan_timeout = std::chrono::milliseconds{60000},
          std::uint32_t spares = 0, std::optional<ProcessIdentity> coordinator_process = std::nullopt);
  ~TestJob();
  TestJob(const TestJob&) = delete;
  TestJob& operator=(const TestJob&) = delete;

  // The next spare takes the vacant slot, as worker members + its number, which is its "rank" for the functions below.
  // It runs `member` with the slot as rank.
  std::uint32_t replace(std::uint32_t slot);
  // SIGKILL, reap, proof to the coordinator: what an agent does.
  void kill(const std::vector<std::uint32_t>& ranks);
  // Waits for a member that ends by itself, and reports it as an agent does.
  void note_exit(std::uint32_t rank);
  // A false proof: the coordinator believes that a living member is gone.
  void report_gone(std::uint32_t rank);
  // The coordinator goes away / comes back with the same journal at the same address.
  void stop_coordinator();
  void restart_coordinator();
  std::string join(std::chrono::seconds deadline = join_patience) {
    board_->no_spares.store(true);
    return processes_->join(deadline);
  }
  [[nodiscard]] JobBoard& board() { return *board_; }
  [[nodiscard]] std::vector<coordinator::Event> events(coordinator::EventKind kind);
  // All events so far, a line each.
  [[nodiscard]] std::vector<std::string> told();

 private:
  void start_coordinator(std::uint16_t port);
  void tell(membership::FromAgent message);
  JobBoard* board_;
  std::string token_;
  std::uint32_t members_;
  std::uint32_t spares_used_ = 0;
  std::unique_ptr<Processes> processes_;
  std::mutex mutex_;
  std::vector<coordinator::Event> events_;
  std::vector<membership::FromAgent> ended_;
  coordinator::EventFunction sink_;
  coordinator::MemoryJournal journal_;
  std::unique_ptr<control::ControlThread> control_;
  std::unique_ptr<coordinator::Server> server_;
  std::unique_ptr<control::AgentLink> agent_;
};

// A group of slots 0..members-1 of `engine`. Throws a std::string on failure.
std::shared_ptr<Communicator> make_group(Engine& engine, const std::string& name, std::uint32_t members, Policy policy,
                                         bool lowest_member_is_root = false);

}  // namespace closeranks::communicator_test

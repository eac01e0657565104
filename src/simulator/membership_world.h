// The simulated world of one run: time, links, hosts with their agents, worker processes, the coordinator's owner with
// its journal, and the faults of the scenario. Everything happens in one queue of events, in one thread.
//
// Files: membership_world.cc (queue, faults, end), membership_links.cc (connections), membership_hosts.cc (processes
// and agents), membership_newcomers.cc (sessions, and who is started for vacant slots), membership_owner.cc (what
// surrounds the coordinator's machine).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "membership/coordinator.h"
#include "simulator/membership_oracle.h"
#include "simulator/membership_random.h"
#include "simulator/membership_scenario.h"
#include "simulator/membership_simulator.h"
#include "simulator/membership_transcript.h"
#include "simulator/membership_worker_model.h"

namespace closeranks::simulator {

// A connection to the coordinator, of a worker or an agent. Each connection is a pair of ordered streams; when it
// breaks what is on its way is lost, or (ghosts) some of it still reaches the worker later, out of order.
struct Link {
  bool up = false;
  std::uint64_t greeted = 0;  // the connection whose hello the coordinator has read: it sends on no other
  std::uint64_t number = 0;   // of the connection: raised when one is made and when it breaks
  Time last_up{};             // arrival of the last message to the coordinator
  Time last_down{};
  std::set<std::uint64_t> haunted;  // connections whose messages still come
};

struct AgentModel {
  bool up = true;
  Link link;
  std::set<std::uint32_t> fencing;  // killed, not yet seen gone
  bool draining = false;
};

// How a simulated process ended.
struct End {
  std::int32_t wait_status = 0;
  bool by_itself = true;
  std::string reason;
  Time at{};
};

// Messages after which a death, a broken connection or a crash of the coordinator hurts most.
bool of_a_change(const membership::ToWorker& message);

class MembershipWorld {
 public:
  explicit MembershipWorld(const MembershipRun& run);
  MembershipReport go();

 private:
  struct Scheduled {
    Time at;
    std::uint64_t order = 0;
    std::function<void()> action;
    friend bool operator<(const Scheduled& a, const Scheduled& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;  // the queue's top is its largest
    }
  };

  // membership_world.cc
  void at(Time time, std::function<void()> action);
  void later(Time least, Time most, std::function<void()> action);
  Time delay();
  void log(const std::string& line);
  void inject(const PlannedFault& planned);
  [[nodiscard]] bool settled() const;
  void judge_end();

  // membership_links.cc
  void send_up(std::uint32_t worker, std::vector<membership::FromWorker> messages);
  void send_down(std::uint32_t worker, const membership::ToWorker& message);
  void arrive(std::uint32_t worker, const membership::ToWorker& message);
  void break_link(std::uint32_t worker, bool ghosts);
  void reconnect(std::uint32_t worker);
  void agent_says(std::uint32_t host, const membership::FromAgent& message);
  void send_to_agent(std::uint32_t host, const membership::ToAgent& message);
  void connect_agent(std::uint32_t host);
  void break_agent_link(std::uint32_t host);

  // membership_hosts.cc
  void in_process(std::uint32_t worker, std::function<void()> action);  // waits while it is stopped, dies with it
  void start_worker(std::uint32_t worker);
  void step_worker(std::uint32_t worker, Time pause);
  void handle_in_worker(std::uint32_t worker, const membership::ToWorker& message);
  void carry_out(std::uint32_t worker, membership::WorkerEffects effects);
  void end_worker(std::uint32_t worker, End end);
  void stop_worker(std::uint32_t worker, Time duration);
  void continue_worker(std::uint32_t worker);
  void agent_sees_end(std::uint32_t worker);
  void agent_fences(std::uint32_t host, const membership::Fence& fence);
  void agent_tells_end(std::uint32_t worker, bool reaped);
  void agent_outage(std::uint32_t host, Time duration);

  // membership_newcomers.cc
  [[nodiscard]] std::uint32_t occupant(std::uint32_t slot) const;  // the worker last started for it
  [[nodiscard]] std::uint32_t host_of(std::uint32_t worker) const { return scenario_.host_of(workers_[worker].slot()); }
  void fill_slot(std::uint32_t slot);  // the agent starts somebody for it, in a while
  void start_newcomer(std::uint32_t slot);
  void session_turn(std::uint32_t worker);
  void leave(std::uint32_t worker, bool for_good);
  void move_state(std::uint32_t worker, const membership::Transfer& transfer);
  void receive_state(std::uint32_t worker, const membership::Transfer& transfer);

  // membership_owner.cc
  void start_coordinator();
  void crash_coordinator(Time down_for, bool ghosts);
  void stall_coordinator(Time duration);
  void in_coordinator(std::function<membership::Effects()> call);
  void carry_out(membership::Effects effects);
  void schedule_tick(std::optional<Time> next);

  MembershipRun run_;
  MembershipScenario scenario_;
  Random random_;
  MembershipReport report_;
  Time now_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Scheduled> queue_;
  std::deque<WorkerModel> workers_;  // those there from the start, then the newcomers as they come
  std::deque<Link> links_;
  std::deque<std::optional<End>> ends_;
  std::vector<std::uint32_t> starts_;  // by slot: newcomers so far
  std::vector<AgentModel> agents_;
  MembershipOracle oracle_;

  membership::CoordinatorConfig config_;
  membership::Journal journal_;
  std::optional<membership::Coordinator> coordinator_;
  std::uint64_t coordinator_life_ = 0;  // raised at each start and crash: timers of an earlier one are void
  std::uint64_t tick_number_ = 0;
  bool stalled_ = false;
  std::deque<std::function<void()>> stalled_calls_;
  bool gave_up_ = false;
};

}  // namespace closeranks::simulator

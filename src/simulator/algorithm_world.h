// One state of a simulated group: real group machines over simulated memory, a coordinator that makes views, and the
// oracle's own book-keeping. Every action of every member is one step, or two where it writes a range of bytes; a
// search or a random run chooses which step comes next. Copyable, so that a search can branch.
//
// Pure: no clock, no randomness, no I/O.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithm/group_machine.h"
#include "membership/group_status.h"
#include "simulator/algorithm_memory.h"
#include "simulator/algorithm_scenario.h"

namespace closeranks::simulator {

struct Step {
  enum class Kind : std::uint8_t {
    act,      // the member's machine does its next action, or the second half of one
    enter,    // the member's user goes on with the next call
    connect,  // the member gets hold of the memory of all who live
    lose,     // the member notices a dead peer (no coordinator)
    freeze,   // the proposal reaches the member, which answers with its status
    install,  // the decision reaches the member
    propose,  // the coordinator proposes to exclude all it suspects
    join,     // a newcomer takes the vacant place of the member
    pass,     // the boundary is passed without a newcomer
    fence,    // a suspect is killed late (surrounding rule fence_before_propose off)
    crash,    // the member dies
    suspect,  // the member is suspected wrongly
    give_up,  // the member's ops fail, for it alone
    restart,  // the coordinator forgets its round and starts a fresh one
  };
  Kind kind = Kind::act;
  std::uint8_t member = 0;
  // Faults and bad luck: a run may do without them. All other steps happen sooner or later.
  [[nodiscard]] bool optional() const { return kind >= Kind::crash; }
};

class AlgorithmWorld {
 public:
  explicit AlgorithmWorld(std::shared_ptr<const AlgorithmSetting> setting);

  // Every step possible now.
  void list_steps(std::vector<Step>& steps);
  // `line`, when given, receives one sentence of what happened.
  void apply(const Step& step, std::string* line = nullptr);
  // To be asked when no step is left but optional ones: whether everybody alive has finished.
  void check_finished();
  // The first promise that was broken, if one was.
  [[nodiscard]] const std::optional<std::string>& violation() const { return violation_; }

  [[nodiscard]] std::uint64_t hash() const;
  [[nodiscard]] bool alive(Rank member) const { return members_[member.value()].alive; }
  [[nodiscard]] std::uint64_t completed(Rank member) const { return members_[member.value()].machine.completed(); }
  [[nodiscard]] std::uint64_t blocks_taken_over() const;
  [[nodiscard]] bool at_a_block(std::uint32_t member) const { return members_[member].machine.at_a_block(); }

 private:
  // How far the user has come with his next call.
  enum class Entering : std::uint8_t { idle, first_half, copied, described };
  enum class Result : std::uint8_t { open, success, lost, incomplete, mismatch, given_up };

  using Generations = std::array<std::uint8_t, AlgorithmScenario::max_members>;
  struct Member {
    explicit Member(algorithm::GroupMachine the_machine) : machine(std::move(the_machine)) {}
    algorithm::GroupMachine machine;
    algorithm::Action pending;  // half done
    bool alive = true;
    bool suspected = false;
    bool told = false;   // of a lost peer
    bool alone = false;  // a newcomer that has not learnt that it is in
    bool early = false;  // entered before its data (rule entered_after_data off)
    Entering entering = Entering::idle;
    std::uint32_t holds = 0;          // bit r: the memory of rank r
    Generations known_generations{};  // of the members whose memory it holds or will get
  };

  // Survivor's answer and coordinator's decision, with a digest for hashing.
  struct Answer {
    std::shared_ptr<const membership::GroupStatus> status;
    std::uint64_t digest = 0;
  };
  struct Decision {
    std::shared_ptr<const membership::GroupResolution> resolution;
    std::uint64_t digest = 0;
  };

  [[nodiscard]] std::uint32_t count() const { return setting_->scenario.members; }
  [[nodiscard]] std::uint32_t unmapped_for(const Member& member) const;
  [[nodiscard]] bool in_job(std::uint32_t member) const { return !excluded_[member]; }

  [[nodiscard]] Member make_member(std::uint32_t member) const;

  // algorithm_joining.cc
  void list_join_steps(std::vector<Step>& steps);
  void join(std::uint32_t member);
  void start_anew(std::uint32_t member, const membership::GroupResolution& resolution);

  // algorithm_entering.cc
  [[nodiscard]] std::uint64_t connected_word(const Member& member) const;
  [[nodiscard]] bool may_connect(std::uint32_t member);
  [[nodiscard]] bool all_connected(const Member& member);
  void connect(std::uint32_t member);
  [[nodiscard]] bool may_go_on_entering(std::uint32_t member);
  void go_on_entering(std::uint32_t member, std::string* line);

  // algorithm_world.cc
  void act(std::uint32_t member, std::string* line);
  void perform(std::uint32_t member, const algorithm::Action& action, bool second_half);
  [[nodiscard]] static bool is_cut(const AlgorithmScenario& scenario, const algorithm::Action& action);
  [[nodiscard]] bool may_give_up(const Member& member) const;
  [[nodiscard]] Value reduce_inputs(std::uint32_t member, std::uint64_t sequence, std::uint32_t unit,
                                    std::uint32_t cell);
  void take(std::uint32_t member, const algorithm::Action& action, std::uint32_t half);

  // algorithm_view_change.cc
  void list_view_steps(std::vector<Step>& steps);
  void propose();
  void freeze(std::uint32_t member);
  void resolve();
  void decide(std::shared_ptr<const membership::GroupResolution> resolution);
  void install(std::uint32_t member);
  void restart_coordinator();
  [[nodiscard]] membership::GroupStatus status_of(std::uint32_t member);  // frozen
  [[nodiscard]] std::vector<membership::Refill> refills() const;
  [[nodiscard]] WorkerId worker(std::uint32_t member) const;
  [[nodiscard]] membership::ExcludedMember excluded_member(std::uint32_t member) const;

  // algorithm_oracle.cc
  void fail(const std::string& what);
  [[nodiscard]] std::uint32_t contributor_bits(const Member& member, std::uint64_t sequence) const;
  [[nodiscard]] Value read_input(std::uint32_t reader, Rank source, std::uint64_t sequence, std::uint32_t unit,
                                 std::uint32_t cell);
  // What must be at this place of the output of `self`, given who contributes as `knower` knows it. nullopt: it has no
  // output there. From the meaning of each kind alone, not from the plan.
  [[nodiscard]] std::optional<Value> expected(const Member& knower, std::uint32_t self, std::uint64_t sequence,
                                              std::uint32_t unit, std::uint32_t cell) const;
  void check_writer(std::uint32_t member, std::uint64_t sequence, std::uint32_t block);
  // `member` writes `value` into `target`'s output.
  void check_write(std::uint32_t member, std::uint32_t target, std::uint64_t sequence, std::uint32_t unit,
                   std::uint32_t cell, Value value);
  void check_inline(std::uint32_t member, std::uint64_t sequence);
  void check_completion(std::uint32_t member, const algorithm::Action& action);
  void check_outputs(std::uint32_t member, std::uint64_t sequence);
  void check_held(std::uint32_t index, Rank home);
  void check_decision(const membership::GroupResolution& resolution);

  std::shared_ptr<const AlgorithmSetting> setting_;
  AlgorithmMemory memory_;
  std::vector<Member> members_;
  std::uint32_t crashes_ = 0;
  std::uint32_t restarts_ = 0;
  std::uint32_t give_ups_ = 0;
  bool boundary_passed_ = false;  // before entry rejoin_at
  Generations generation_{};      // newcomers so far in each place
  std::array<ViewNumber, AlgorithmScenario::max_members> joined_in_{};

  // Coordinator.
  ViewNumber view_{1, 0};
  bool collecting_ = false;
  std::array<bool, AlgorithmScenario::max_members> excluded_{};
  std::array<ViewNumber, AlgorithmScenario::max_members> excluded_in_{};
  std::vector<std::uint8_t> exclusions_;  // in order
  std::vector<Answer> answers_;           // [members]
  std::vector<Decision> decisions_;       // [members] sent, not yet installed

  // Oracle: [members x entries] results, [entries x blocks] writers (rank + 1).
  std::vector<std::uint64_t> results_;
  std::vector<std::uint8_t> writers_;
  std::optional<std::string> violation_;
};

}  // namespace closeranks::simulator

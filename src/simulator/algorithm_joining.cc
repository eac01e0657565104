// A newcomer in a lost member's place, at the boundary before entry `rejoin_at`: everybody present is idle there, the
// coordinator decides that the group starts anew, and the decision reaches one member after the other. What the
// machines of src/membership do before that - hold, admit, the state transfer - does not touch the group.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

void AlgorithmWorld::list_join_steps(std::vector<Step>& steps) {
  const AlgorithmScenario& scenario = setting_->scenario;
  if (!scenario.rejoin_at || boundary_passed_) {
    return;
  }
  steps.push_back({Step::Kind::pass, 0});
  bool ready = !collecting_;
  for (std::uint32_t index = 0; index < count(); ++index) {
    const Member& member = members_[index];
    const bool at_boundary = member.machine.idle() && member.machine.next_sequence() == *scenario.rejoin_at &&
                             member.pending.kind == algorithm::Action::Kind::none &&
                             member.entering == Entering::idle && !member.early;
    ready = ready &&
            (!in_job(index) || (member.alive && !member.suspected && !decisions_[index].resolution && at_boundary));
  }
  for (std::uint32_t index = 0; ready && index < count(); ++index) {
    if (!in_job(index)) {
      steps.push_back({Step::Kind::join, static_cast<std::uint8_t>(index)});
    }
  }
}

// All have frozen and answered, and the newcomer has the state: the coordinator decides.
void AlgorithmWorld::join(std::uint32_t joined) {
  boundary_passed_ = true;
  ++view_.n;
  std::erase(exclusions_, static_cast<std::uint8_t>(joined));
  excluded_[joined] = false;
  ++generation_[joined];
  members_[joined] = make_member(joined);
  members_[joined].known_generations = generation_;
  members_[joined].holds = std::uint32_t{1} << joined;
  members_[joined].alone = true;
  joined_in_[joined] = view_;
  memory_.clear(Rank{joined});
  std::fill_n(results_.begin() + static_cast<std::ptrdiff_t>(joined * setting_->scenario.calls.size()),
              setting_->scenario.calls.size(), 0);
  std::vector<membership::GroupStatus> statuses;
  for (std::uint32_t index = 0; index < count(); ++index) {
    if (in_job(index)) {
      statuses.push_back(status_of(index));
    }
  }
  decide(std::make_shared<const membership::GroupResolution>(
      membership::resolve_group(statuses, view_, {}, setting_->scenario.resolving, refills())));
}

// What the engine does around the machine's own start: memory of workers before the present ones is let go, and the
// own words are set before anybody is told `connected`.
void AlgorithmWorld::start_anew(std::uint32_t index, const membership::GroupResolution& resolution) {
  Member& member = members_[index];
  for (std::uint32_t other = 0; other < count(); ++other) {
    if (member.known_generations[other] != generation_[other]) {
      member.holds &= ~(std::uint32_t{1} << other);
    }
  }
  member.known_generations = generation_;
  member.alone = false;
  member.machine.install(resolution);
  memory_.entered(Rank{index}) = memory_.completed(Rank{index}) = resolution.base;
}

}  // namespace closeranks::simulator

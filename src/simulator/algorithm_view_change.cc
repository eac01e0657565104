// Steps of a view change, as coordinator and workers make them (src/membership has the machines; here only what the
// algorithm can notice of it): fence, propose, freeze and answer, resolve, install, a restart in the middle.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

namespace {

class Digest {
 public:
  void add(std::uint64_t word) {
    value_ = (value_ ^ word) * 0xc4ceb9fe1a85ec53;
    value_ ^= value_ >> 33;
  }
  void add(const std::vector<membership::Departure>& departures) {
    for (const membership::Departure& departure : departures) {
      add(departure.slot.value() << 16 | departure.last_op);
    }
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0x2545f4914f6cdd1d;
};

}  // namespace

void AlgorithmWorld::list_view_steps(std::vector<Step>& steps) {
  const AlgorithmScenario& scenario = setting_->scenario;
  bool in_doubt = false;  // a member the coordinator has to do something about
  bool round_open = collecting_;
  for (std::uint32_t index = 0; index < count(); ++index) {
    const Member& member = members_[index];
    in_doubt = in_doubt || (in_job(index) && (!member.alive || member.suspected));
    const bool between_actions = member.pending.kind == algorithm::Action::Kind::none;
    if (member.alive && in_job(index) && between_actions) {
      const auto rank = static_cast<std::uint8_t>(index);
      if (collecting_ && !answers_[index].status) {
        steps.push_back({Step::Kind::freeze, rank});
      }
      if (decisions_[index].resolution) {
        steps.push_back({Step::Kind::install, rank});
        round_open = true;
      }
    }
  }
  if (in_doubt) {
    steps.push_back({Step::Kind::propose, 0});
  }
  if (round_open && restarts_ < scenario.restarts) {
    steps.push_back({Step::Kind::restart, 0});
  }
}

void AlgorithmWorld::propose() {
  ++view_.n;
  for (std::uint32_t index = 0; index < count(); ++index) {
    if (in_job(index) && (!members_[index].alive || members_[index].suspected)) {
      excluded_[index] = true;
      excluded_in_[index] = view_;
      exclusions_.push_back(static_cast<std::uint8_t>(index));
      decisions_[index] = {};
    }
  }
  collecting_ = true;
  std::fill(answers_.begin(), answers_.end(), Answer{});
}

// Newcomers have ids that were never used before.
WorkerId AlgorithmWorld::worker(std::uint32_t member) const {
  return WorkerId{member + std::uint64_t{AlgorithmScenario::max_members} * generation_[member]};
}

membership::ExcludedMember AlgorithmWorld::excluded_member(std::uint32_t member) const {
  return {worker(member), Slot{member}, excluded_in_[member], "killed by signal 9"};
}

membership::GroupStatus AlgorithmWorld::status_of(std::uint32_t index) {
  membership::GroupStatus status = members_[index].machine.freeze();
  status.alone = members_[index].alone;
  return status;
}

std::vector<membership::Refill> AlgorithmWorld::refills() const {
  std::vector<membership::Refill> refills;
  for (std::uint32_t index = 0; index < count(); ++index) {
    if (generation_[index] > 0) {
      refills.push_back({Slot{index}, joined_in_[index]});
    }
  }
  return refills;
}

void AlgorithmWorld::freeze(std::uint32_t index) {
  decisions_[index] = {};  // of an older view: refused from now on
  auto status = std::make_shared<membership::GroupStatus>(status_of(index));
  Digest digest;
  digest.add(status->entered << 32 | status->completed);
  digest.add(status->departures);
  digest.add(status->epoch.n << 32 | status->base);
  for (const std::uint8_t excluded : exclusions_) {
    const bool known = std::any_of(status->departures.begin(), status->departures.end(),
                                   [&](const auto& d) { return d.worker == worker(excluded); });
    if (!known) {
      const std::uint64_t entered = memory_.entered(Rank{excluded});
      status->observed.push_back({worker(excluded), entered});
      digest.add(std::uint64_t{excluded} << 32 | entered);
    }
  }
  answers_[index] = {std::move(status), digest.value()};
  for (std::uint32_t other = 0; other < count(); ++other) {
    if (in_job(other) && !answers_[other].status) {
      return;
    }
  }
  resolve();
}

void AlgorithmWorld::resolve() {
  std::vector<membership::GroupStatus> statuses;
  for (std::uint32_t index = 0; index < count(); ++index) {
    if (in_job(index)) {
      statuses.push_back(*answers_[index].status);
    }
  }
  std::vector<membership::ExcludedMember> newly;
  for (const std::uint8_t excluded : exclusions_) {
    const bool known = std::any_of(statuses.begin(), statuses.end(), [&](const auto& status) {
      return std::any_of(status.departures.begin(), status.departures.end(),
                         [&](const auto& d) { return d.worker == worker(excluded); });
    });
    if (!known) {
      newly.push_back(excluded_member(excluded));
    }
  }
  auto resolution = std::make_shared<const membership::GroupResolution>(
      membership::resolve_group(statuses, view_, newly, setting_->scenario.resolving, refills()));
  check_decision(*resolution);
  decide(std::move(resolution));
}

void AlgorithmWorld::decide(std::shared_ptr<const membership::GroupResolution> resolution) {
  Digest digest;
  digest.add(view_.n << 16 | view_.term);
  digest.add(resolution->departures);
  digest.add(resolution->epoch.n << 32 | resolution->base);
  for (std::uint32_t index = 0; index < count(); ++index) {
    if (in_job(index)) {
      decisions_[index] = {resolution, digest.value()};
    }
  }
  collecting_ = false;
  std::fill(answers_.begin(), answers_.end(), Answer{});
}

void AlgorithmWorld::install(std::uint32_t index) {
  const Decision decision = std::exchange(decisions_[index], Decision{});
  if (decision.resolution->epoch > members_[index].machine.epoch()) {
    start_anew(index, *decision.resolution);
  } else {
    members_[index].machine.install(*decision.resolution);
  }
}

void AlgorithmWorld::restart_coordinator() {
  ++restarts_;
  ++view_.term;
  ++view_.n;
  collecting_ = true;
  std::fill(answers_.begin(), answers_.end(), Answer{});
  std::fill(decisions_.begin(), decisions_.end(), Decision{});
}

}  // namespace closeranks::simulator

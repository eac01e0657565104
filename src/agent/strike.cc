#include "agent/strike.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "algorithm/group_machine.h"
#include "algorithm/plan.h"
#include "algorithm/seats.h"
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

struct Cast {
  std::optional<int> pid;  // of the victim
  std::uint32_t slots = 0;
  std::vector<Slot> excluded;  // in order
};

Cast read_cast(const std::string& path, Slot victim) {
  Cast cast;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("slot") || !event["slot"].is_number_unsigned()) continue;
    const Slot slot(event["slot"].get<std::uint32_t>());
    const std::string kind = event.value("event", "");
    if (kind == "worker_started") {
      cast.slots = std::max(cast.slots, slot.value() + 1);
      if (slot == victim && event.contains("pid")) cast.pid = event["pid"].get<int>();
    } else if (kind == "worker_excluded") {
      cast.excluded.push_back(slot);
      if (slot == victim) cast.pid.reset();
    } else if (kind == "worker_joined") {
      // Its groups start anew over the present members.
      std::erase(cast.excluded, slot);
    }
  }
  return cast;
}

// The victim's segment of one group, and which blocks are the victim's.
class Victim {
 public:
  Victim(OutsideView view, const Cast& cast)
      : view_(std::move(view)), members_(view_.shape().members), seats_(members_) {
    // In a group of all slots ranks are slots; in a smaller one an exclusion elsewhere is not seen here.
    if (members_ != cast.slots) return;
    algorithm::RankSet present(members_, true);
    for (const Slot slot : cast.excluded) {
      present[slot.value()] = false;
      seats_.exclude(Rank(slot.value()), present);
    }
  }

  [[nodiscard]] const OutsideView& view() const { return view_; }
  [[nodiscard]] bool owns(const algorithm::EntryPlan& plan, std::uint32_t block) const {
    return seats_.owner(algorithm::block_seat(plan, members_, block)) == view_.identity().rank;
  }
  // Checked before a plan is made of it: it may be in the middle of being written.
  [[nodiscard]] static bool is_all_reduce(const OutsideView::Descriptor& descriptor) {
    return descriptor.kind == static_cast<std::uint8_t>(OpKind::all_reduce) &&
           descriptor.dtype <= static_cast<std::uint8_t>(DType::bytes) &&
           descriptor.reduce <= static_cast<std::uint8_t>(ReduceOp::bxor) && descriptor.unit_bytes > 0 &&
           descriptor.unit_bytes % size_of(static_cast<DType>(descriptor.dtype)) == 0;
  }
  // What tells whose a block is. The entry may be one piece of a larger call: its own length is not in the descriptor,
  // and not needed.
  [[nodiscard]] static algorithm::EntryPlan plan_of(const OutsideView::Descriptor& descriptor) {
    algorithm::EntryPlan plan;
    plan.kind = OpKind::all_reduce;
    plan.block_count = descriptor.blocks;
    return plan;
  }
  [[nodiscard]] bool distributed(std::uint64_t sequence, std::uint32_t block) const {
    const BlockWord word = BlockWord::unpack(view_.block_word(sequence, block));
    return word.sequence == sequence && word.state == BlockState::distributed;
  }
  // Fills the words of the entry the victim is in; false: it is in none that counts.
  bool look(Strike& seen) {
    const std::uint64_t entered = view_.entered();
    if (entered == 0 || view_.completed() >= entered) return false;
    const std::uint64_t sequence = entered - 1;
    const auto descriptor = view_.descriptor(sequence);
    if (descriptor.sequence != sequence || descriptor.blocks == 0 || !is_all_reduce(descriptor)) return false;
    if (descriptor.blocks > view_.shape().max_blocks) return false;  // it was being written
    plan_ = plan_of(descriptor);
    seen.sequence = sequence;
    seen.entered = entered;
    seen.blocks = descriptor.blocks;
    seen.own_blocks = 0;
    seen.own_blocks_distributed_before = 0;
    for (std::uint32_t block = 0; block < descriptor.blocks; ++block) {
      if (!owns(plan_, block)) continue;
      ++seen.own_blocks;
      if (distributed(sequence, block)) ++seen.own_blocks_distributed_before;
    }
    // Read again: the words above belong to an entry only as long as it is the latest.
    return seen.own_blocks_distributed_before < seen.own_blocks && view_.entered() == entered;
  }
  // After the death: the words do not change any more, and stay mapped here.
  void look_after(Strike& seen) const {
    seen.entered = view_.entered();
    seen.completed = view_.completed();
    seen.own_blocks_distributed_after = 0;
    for (std::uint32_t block = 0; block < seen.blocks; ++block) {
      if (owns(plan_, block) && distributed(seen.sequence, block)) ++seen.own_blocks_distributed_after;
    }
    seen.hit = seen.entered == seen.sequence + 1 && seen.completed <= seen.sequence &&
               seen.own_blocks_distributed_after < seen.own_blocks;
  }

 private:
  OutsideView view_;
  std::uint32_t members_;
  algorithm::Seats seats_;
  algorithm::EntryPlan plan_;  // of the entry last looked at
};

// The group with the most entries: the one a model trains in.
std::optional<Victim> choose(int pid, const Cast& cast) {
  std::vector<OutsideView> views = OutsideView::open_all(pid);
  const auto most = std::max_element(
      views.begin(), views.end(), [](const OutsideView& a, const OutsideView& b) { return a.entered() < b.entered(); });
  if (most == views.end()) return std::nullopt;
  return Victim(std::move(*most), cast);
}

std::int64_t unix_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void wait_for_death(const FileDescriptor& process, int pid) {
  const auto until = Clock::now() + death_takes;
  while (Clock::now() < until && !has_ended(process) && !all_threads_without_memory(pid)) {
    std::this_thread::sleep_for(look_every);
  }
}

}  // namespace

Result<Strike> strike(const StrikeOptions& options) {
  const Slot victim_slot = options.slot;
  const std::string who = "the worker of slot " + std::to_string(victim_slot.value());
  const Cast cast = read_cast(options.events_file, victim_slot);
  if (!cast.pid.has_value()) {
    return Status(Fault::peer_lost, Move::fix_call, who + " does not run, says " + options.events_file);
  }
  const int pid = *cast.pid;
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
      victim = choose(pid, cast);
      chosen = now;
    }
    if (victim.has_value() && victim->look(seen)) break;
    std::this_thread::sleep_for(look_every);
  }
  seen.kill_unix_ns = unix_ns();
  if (Status status = send_signal(process.value(), SIGKILL); !status.ok()) return status;
  wait_for_death(process.value(), pid);
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

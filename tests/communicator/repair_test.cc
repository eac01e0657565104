// Coordinated jobs: members are killed, and the survivors' ops go on with the right answers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "test_job.h"

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;

float input_value(std::uint32_t rank, std::uint64_t op, std::uint64_t index) {
  return static_cast<float>((index * 5 + op * 3 + rank * 17) % 23) - 7.0f;
}

std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 31;
  value *= 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

// One call of the endless row that all members make alike, and what they make of its result.
struct Step {
  std::uint64_t number = 0;
  OpKind kind = OpKind::all_reduce;
  ReduceOp reduce = ReduceOp::sum;
  std::uint64_t count = 0;  // elements of a unit
  Rank root;
  std::vector<float> input;
  std::vector<float> output;
  std::shared_ptr<Op> op;
};

Step step_of(std::uint64_t number, std::uint64_t seed, std::uint32_t rank, std::uint32_t members) {
  constexpr OpKind kinds[] = {OpKind::all_reduce, OpKind::all_reduce,     OpKind::all_reduce, OpKind::broadcast,
                              OpKind::all_gather, OpKind::reduce_scatter, OpKind::gather,     OpKind::scatter};
  // Inline, one block, several blocks, several pieces, the last of them inline.
  constexpr std::uint64_t counts[] = {1, 40, 500, 1500, 9000, 60'000, 250'000, 524'288 + 3, 900'000};
  const std::uint64_t random = mixed(seed * 1000003 + number);
  Step step;
  step.number = number;
  step.kind = kinds[random % 8];
  step.reduce = random / 8 % 3 == 0 ? ReduceOp::avg : ReduceOp::sum;
  step.count = counts[random / 64 % std::size(counts)];
  const bool lists = step.kind != OpKind::all_reduce && step.kind != OpKind::broadcast;
  if (lists) step.count = std::min<std::uint64_t>(step.count, 60'000);
  step.root = Rank{static_cast<std::uint32_t>(random / 1024 % members)};
  const bool root = step.root == Rank{rank};
  std::uint64_t inputs = step.count;
  std::uint64_t outputs = step.count;
  if (step.kind == OpKind::all_gather) outputs *= members;
  if (step.kind == OpKind::reduce_scatter) inputs *= members;
  if (step.kind == OpKind::gather) outputs *= root ? members : 0;
  if (step.kind == OpKind::scatter) inputs *= root ? members : 0;
  step.input.resize(inputs);
  for (std::uint64_t i = 0; i < inputs; ++i) step.input[i] = input_value(rank, number, i);
  step.output.assign(outputs, -1000.0f);
  return step;
}

void issue(Step& step, Communicator& group) {
  Call call;
  call.kind = step.kind;
  call.dtype = DType::float32;
  call.reduce = step.reduce;
  call.root = step.root;
  if (!step.input.empty()) call.inputs = {buffer(step.input)};
  // all_reduce and broadcast in place: a repaired op must not read what it has overwritten.
  const bool in_place = step.kind == OpKind::all_reduce || step.kind == OpKind::broadcast;
  if (!step.output.empty()) call.outputs = {buffer(in_place ? step.input : step.output)};
  step.op = group.issue(std::move(call));
}

using Ranks = std::vector<std::uint32_t>;

// What the elements of the result must be if exactly `ranks` contributed.
float expected(const Step& step, const Ranks& ranks, std::uint32_t rank, std::uint64_t index) {
  const auto reduced = [&](std::uint64_t at) {
    float sum = 0.0f;
    for (const std::uint32_t r : ranks) sum += input_value(r, step.number, at);
    return step.reduce == ReduceOp::avg ? sum / static_cast<float>(ranks.size()) : sum;
  };
  const auto gathered = [&]() -> float {
    const auto source = static_cast<std::uint32_t>(index / step.count);
    const bool counts = std::find(ranks.begin(), ranks.end(), source) != ranks.end();
    return counts ? input_value(source, step.number, index % step.count) : 0.0f;
  };
  switch (step.kind) {
    case OpKind::all_reduce:
      return reduced(index);
    case OpKind::reduce_scatter:
      return reduced(rank * step.count + index);
    case OpKind::broadcast:
      return input_value(step.root.value(), step.number, index);
    case OpKind::scatter:
      return input_value(step.root.value(), step.number, rank * step.count + index);
    default:
      return gathered();
  }
}

// Throws unless every element of the result is right for the contributors; adds the outcome to `digest`, which must be
// the same on all survivors. `present`: before the op and after it nobody of these was lost.
void verify(const Step& step, Communicator& group, std::uint32_t rank, std::uint64_t& digest) {
  const std::string what =
      std::string(name_of(step.kind)) + " #" + std::to_string(step.number) + " of " + std::to_string(step.count);
  const Status status = step.op->wait(milliseconds{0});
  digest = mixed(digest ^ static_cast<std::uint64_t>(status.fault()));
  if (!status.ok()) {
    const bool may_fail = step.kind == OpKind::broadcast || step.kind == OpKind::gather || step.kind == OpKind::scatter;
    require(may_fail && status.fault() == Fault::peer_lost, what + ": " + status.message());
    return;
  }
  const Contributors contributors = step.op->contributors();
  Ranks all;
  for (const Slot slot : contributors.slots) all.push_back(slot.value());
  for (const std::uint32_t r : all) digest = mixed(digest ^ (r + 1));
  const std::vector<Slot> present = group.present();
  for (const Slot slot : present) {
    require(std::find(all.begin(), all.end(), slot.value()) != all.end(), what + ": a present slot does not count");
  }
  // Pieces of a large op may have different contributors: then each element must be right for some set between those
  // present now and the union.
  std::vector<Ranks> candidates{all};
  if (!contributors.uniform) {
    for (const std::uint32_t r : all) {
      if (std::find(present.begin(), present.end(), Slot{r}) != present.end()) continue;
      for (std::size_t i = candidates.size(); i-- > 0;) {
        Ranks without = candidates[i];
        std::erase(without, r);
        candidates.push_back(without);
      }
    }
  }
  const bool in_place = step.kind == OpKind::all_reduce || step.kind == OpKind::broadcast;
  const std::vector<float>& result = in_place ? step.input : step.output;
  for (std::uint64_t i = 0; i < result.size(); ++i) {
    const bool right = std::any_of(candidates.begin(), candidates.end(),
                                   [&](const Ranks& ranks) { return result[i] == expected(step, ranks, rank, i); });
    if (right) continue;
    throw what + ": element " + std::to_string(i) + " is " + std::to_string(result[i]) + ", expected " +
        std::to_string(expected(step, all, rank, i)) + " of " + std::to_string(all.size());
  }
}

// Random ops, up to `in_flight` at once, until the test says stop; then all survivors compare what they saw.
std::string random_ops(std::uint32_t rank, Engine& engine, JobBoard& board, std::uint64_t seed, std::uint32_t members) {
  const std::shared_ptr<Communicator> group = make_group(engine, "random", members, Policy::repair);
  constexpr std::uint64_t in_flight = 4;
  std::uint64_t digest = seed;
  for (std::uint64_t number = 0;; number += in_flight) {
    std::vector<Step> steps;
    for (std::uint64_t i = 0; i < in_flight; ++i) steps.push_back(step_of(number + i, seed, rank, members));
    for (Step& step : steps) issue(step, *group);
    for (const Step& step : steps) verify(step, *group, rank, digest);
    board.rounds.fetch_add(1);
    // Everybody stops after the same op: those who contributed to it agree.
    std::vector<std::int32_t> stop{board.stop.load() ? 1 : 0};
    Call call;
    call.kind = OpKind::all_reduce;
    call.dtype = DType::int32;
    call.reduce = ReduceOp::max;
    call.inputs = {buffer(stop)};
    call.outputs = {buffer(stop)};
    call.wait_follows = true;
    require(group->issue(std::move(call))->wait(milliseconds{0}), "stop");
    if (stop[0] != 0) break;
  }
  std::vector<std::uint64_t> mine{digest};
  std::vector<std::uint64_t> all(members);
  Call call;
  call.kind = OpKind::all_gather;
  call.dtype = DType::int64;
  call.inputs = {buffer(mine)};
  call.outputs = {buffer(all)};
  const auto op = group->issue(std::move(call));
  require(op->wait(milliseconds{0}), "digests");
  for (const Slot slot : op->contributors().slots) {
    require(all[slot.value()] == digest, "survivors saw different outcomes: slot " + std::to_string(slot.value()));
  }
  group->shutdown(milliseconds{0});
  return "";
}

std::uint64_t wanted_kills() {
  const char* soak = std::getenv("CLOSERANKS_SOAK");
  return soak != nullptr && std::string(soak) != "0" ? 300 : 20;
}

TEST(Repair, SurvivorsOfRandomKillsHaveTheRightAnswers) {
  const char* chosen = std::getenv("CLOSERANKS_SEED");
  std::uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  std::uint64_t kills = 0;
  while (kills < wanted_kills()) {
    std::mt19937_64 random(seed);
    const auto members = static_cast<std::uint32_t>(3 + random() % 3);
    TestJob job(members, [=](std::uint32_t rank, Engine& engine, JobBoard& board) {
      return random_ops(rank, engine, board, seed, members);
    });
    Ranks alive;
    for (std::uint32_t rank = 0; rank < members; ++rank) alive.push_back(rank);
    while (alive.size() > 1) {
      // Some before the first op, most in the middle of ops, some close behind the last one.
      std::this_thread::sleep_for(milliseconds{random() % 8 == 0 ? random() % 20 : 20 + random() % 150});
      Ranks victims;
      const std::uint64_t at_once = random() % 4 == 0 ? 2 : 1;
      while (victims.size() < at_once && alive.size() > 1) {
        const std::size_t pick = random() % alive.size();
        victims.push_back(alive[pick]);
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      job.kill(victims);
      kills += victims.size();
      if (random() % 3 == 0) break;
    }
    std::this_thread::sleep_for(milliseconds{100});
    job.board().stop.store(true);
    ASSERT_EQ(job.join(), "") << "seed " << seed << " (replay: CLOSERANKS_SEED)";
    ++seed;
  }
}

TEST(Repair, AnAllReduceOutlivesADeath) {
  // The victim does not issue this round's op, so the others are in it when it dies.
  constexpr std::uint64_t last_round = 20;
  TestJob job(4, [=](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 4, Policy::repair);
    std::int64_t longest = 0;
    for (std::uint64_t round = 0; !board.stop.load() || round < 30; ++round) {
      while (rank == 2 && round == last_round) std::this_thread::sleep_for(milliseconds{100});
      std::vector<float> tensor(250'000, 1.0f);
      Call call;
      call.kind = OpKind::all_reduce;
      call.dtype = DType::float32;
      call.inputs = {buffer(tensor)};
      call.outputs = {buffer(tensor)};
      const std::int64_t start = JobBoard::now_ns();
      const auto op = group->issue(std::move(call));
      if (rank == 0 && round == last_round) board.rounds.store(last_round);
      require(op->wait(milliseconds{0}), "all_reduce");
      longest = std::max(longest, JobBoard::now_ns() - start);
      const auto count = static_cast<float>(op->contributors().slots.size());
      require(tensor[0] == count && tensor[249'999] == count, "sum");
      // By the op's contributors, which are the same on all: a view may be installed between two members' looks, and
      // who left on seeing it would be waited for, and excluded, by one that has begun another round.
      if (op->contributors().slots.size() == 3) {
        if (rank == 0) board.longest_op_ns.store(longest);
        require(group->present().size() == 3, "present");
        require(engine.present().size() == 3 && engine.view().n > 0, "view");
        return "";
      }
    }
    return "nobody was excluded";
  });
  while (job.board().rounds.load() < last_round) std::this_thread::sleep_for(milliseconds{1});
  job.kill({2});
  EXPECT_EQ(job.join(), "");
  RecordProperty("longest_op_ms", static_cast<int>(job.board().longest_op_ns.load() / 1'000'000));
  EXPECT_EQ(job.events(coordinator::EventKind::worker_excluded).size(), 1u);
  EXPECT_FALSE(job.events(coordinator::EventKind::op_repaired).empty());
}

}  // namespace
}  // namespace closeranks::communicator_test

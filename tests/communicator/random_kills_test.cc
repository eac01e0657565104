// SIGKILL at random instants inside ops of random kind, size and memory, between real processes: every result of every
// survivor is compared, element by element, with what its contributors had given; and all survivors with each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "tensors.h"
#include "test_job.h"

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;
using Ranks = std::vector<std::uint32_t>;

std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 31;
  value *= 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

// Small whole numbers: exact in sums of a few of them.
float input_value(std::uint32_t rank, std::uint64_t op, std::uint64_t index) {
  return static_cast<float>((index * 5 + op * 3 + rank * 17) % 23) - 7.0f;
}

float factor_of(std::uint32_t rank) { return 1.0f + static_cast<float>(rank % 3); }

// One op of the endless row that all members make alike: a function of seed and number.
struct Plan {
  Plan(std::uint64_t op, std::uint64_t seed, std::uint32_t group_size) : number(op), members(group_size) {
    std::mt19937_64 random(mixed(seed * 1000003 + op));
    constexpr OpKind kinds[] = {OpKind::all_reduce, OpKind::all_reduce,     OpKind::all_reduce, OpKind::broadcast,
                                OpKind::all_gather, OpKind::reduce_scatter, OpKind::gather,     OpKind::scatter,
                                OpKind::reduce,     OpKind::all_to_all,     OpKind::barrier};
    // Nothing, inline, one block, several blocks, several pieces, the last of them inline.
    constexpr std::uint64_t counts[] = {0, 1, 40, 500, 1500, 9000, 60'000, 250'000, 900'000, 524'288 + 3};
    constexpr ReduceOp reductions[] = {ReduceOp::sum, ReduceOp::sum, ReduceOp::avg, ReduceOp::max,
                                       ReduceOp::premul_sum};
    kind = kinds[random() % 11];
    reduce = reductions[random() % 5];
    count = kind == OpKind::barrier ? 0 : counts[random() % std::size(counts)];
    const bool one_unit = kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::broadcast;
    if (!one_unit) count = std::min<std::uint64_t>(count, 150'000);
    root = static_cast<std::uint32_t>(random() % members);
    in_place = random() % 2 == 0;
    by_run = random() % 3 == 0;
    memory = random();
  }
  [[nodiscard]] bool rooted() const {
    return kind == OpKind::broadcast || kind == OpKind::gather || kind == OpKind::scatter || kind == OpKind::reduce;
  }
  // all_to_all: elements from one to another.
  [[nodiscard]] std::uint64_t pair(std::uint32_t from, std::uint32_t to) const {
    return count * ((from * 2 + to + number) % 4) / 3;
  }
  [[nodiscard]] std::uint64_t inputs_of(std::uint32_t rank) const {
    std::uint64_t sum = 0;
    switch (kind) {
      case OpKind::reduce_scatter:
        return count * members;
      case OpKind::scatter:
        return rank == root ? count * members : 0;
      case OpKind::all_to_all:
        for (std::uint32_t r = 0; r < members; ++r) sum += pair(rank, r);
        return sum;
      default:
        return count;
    }
  }
  [[nodiscard]] std::uint64_t outputs_of(std::uint32_t rank) const {
    std::uint64_t sum = 0;
    switch (kind) {
      case OpKind::all_gather:
        return count * members;
      case OpKind::gather:
        return rank == root ? count * members : 0;
      case OpKind::reduce:
        return rank == root ? count : 0;
      case OpKind::all_to_all:
        for (std::uint32_t r = 0; r < members; ++r) sum += pair(r, rank);
        return sum;
      default:
        return count;
    }
  }
  // What the result of `rank` is when exactly `ranks` contribute.
  [[nodiscard]] std::vector<float> expected(const Ranks& ranks, std::uint32_t rank) const {
    std::vector<float> result(outputs_of(rank));
    const auto counts_in = [&](std::uint32_t r) { return std::find(ranks.begin(), ranks.end(), r) != ranks.end(); };
    const auto reduced = [&](std::uint64_t index) {
      float sum = reduce == ReduceOp::max ? -1000.0f : 0.0f;
      for (const std::uint32_t r : ranks) {
        const float value = input_value(r, number, index);
        if (reduce == ReduceOp::max) {
          sum = std::max(sum, value);
        } else {
          sum += reduce == ReduceOp::premul_sum ? value * factor_of(r) : value;
        }
      }
      return reduce == ReduceOp::avg ? sum / static_cast<float>(ranks.size()) : sum;
    };
    std::uint64_t next = 0;
    switch (kind) {
      case OpKind::all_reduce:
      case OpKind::reduce:
        for (float& value : result) value = reduced(next++);
        break;
      case OpKind::reduce_scatter:
        for (float& value : result) value = reduced(rank * count + next++);
        break;
      case OpKind::broadcast:
        for (float& value : result) value = input_value(root, number, next++);
        break;
      case OpKind::scatter:
        for (float& value : result) value = input_value(root, number, rank * count + next++);
        break;
      case OpKind::all_gather:
      case OpKind::gather:
        for (std::uint64_t i = 0; i < result.size(); ++i) {
          const auto source = static_cast<std::uint32_t>(i / count);
          result[i] = counts_in(source) ? input_value(source, number, i % count) : 0.0f;
        }
        break;
      case OpKind::all_to_all:
        for (std::uint32_t source = 0; source < members; ++source) {
          std::uint64_t before = 0;
          for (std::uint32_t r = 0; r < rank; ++r) before += pair(source, r);
          for (std::uint64_t i = 0; i < pair(source, rank); ++i) {
            result[next++] = counts_in(source) ? input_value(source, number, before + i) : 0.0f;
          }
        }
        break;
      default:
        break;
    }
    return result;
  }
  [[nodiscard]] std::string text() const {
    return std::string(closeranks::name_of(kind)) + " #" + std::to_string(number) + " of " + std::to_string(count);
  }

  std::uint64_t number;
  std::uint32_t members;
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  std::uint64_t count = 0;
  std::uint32_t root = 0;
  bool in_place = false;
  bool by_run = false;
  std::uint64_t memory = 0;
};

// One member's part of one op.
class Part {
 public:
  Part(const Plan& plan, Engine& engine, std::uint32_t rank)
      : plan_(plan),
        rank_(rank),
        same_memory_(plan.kind == OpKind::broadcast ||
                     (plan.in_place && (plan.kind == OpKind::all_reduce || plan.kind == OpKind::reduce))),
        input_(engine, is_shared(Memory::mixed, rank, plan.memory), plan.inputs_of(rank)),
        output_(engine, is_shared(Memory::mixed, rank, plan.memory + 1), same_memory_ ? 0 : plan.outputs_of(rank),
                -1000.0f) {
    for (std::uint64_t i = 0; i < input_.size(); ++i) input_[i] = input_value(rank, plan.number, i);
  }

  void start(Communicator& group) {
    Call call;
    call.kind = plan_.kind;
    call.dtype = plan_.kind == OpKind::barrier ? DType::bytes : DType::float32;
    call.reduce = plan_.reduce;
    call.root = Rank{plan_.root};
    call.factor = factor_of(rank_);
    call.fingerprint = plan_.number;
    if (input_.size() > 0) call.inputs = {input_.buffer()};
    if (result().size() > 0 && plan_.outputs_of(rank_) > 0) call.outputs = {result().buffer()};
    for (std::uint32_t r = 0; r < plan_.members && plan_.kind == OpKind::all_to_all; ++r) {
      call.input_bytes.push_back(plan_.pair(rank_, r) * sizeof(float));
      call.output_bytes.push_back(plan_.pair(r, rank_) * sizeof(float));
    }
    if (plan_.by_run) {
      status_ = group.run(call);
      contributors_ = group.last_contributors();
    } else {
      op_ = group.issue(std::move(call));
    }
  }
  void finish() {
    if (!op_) return;
    status_ = op_->wait(milliseconds{0});
    if (status_.ok()) contributors_ = op_->contributors();
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  Tensor<float>& result() { return same_memory_ ? input_ : output_; }

  // Throws unless the outcome is right; adds it to `digest`, which must be the same on all survivors. `present`: after
  // the op.
  void verify(const std::vector<Slot>& present, Policy policy, std::uint64_t& digest) {
    digest = mixed(digest ^ static_cast<std::uint64_t>(status_.fault()));
    const auto is_present = [&](Slot slot) { return std::find(present.begin(), present.end(), slot) != present.end(); };
    if (!status_.ok()) {
      const bool root_lost = status_.fault() == Fault::peer_lost && plan_.rooted() &&
                             status_.slot == Slot{plan_.root} && !is_present(Slot{plan_.root});
      const bool incomplete = status_.fault() == Fault::incomplete && policy == Policy::exact &&
                              status_.slot.has_value() && !is_present(*status_.slot);
      require(root_lost || incomplete, plan_.text() + ": " + status_.message());
      return;
    }
    Ranks all;
    for (const Slot slot : contributors_.slots) all.push_back(slot.value());
    for (const std::uint32_t r : all) digest = mixed(digest ^ (r + 1));
    for (const Slot slot : contributors_.slots_in_all) digest = mixed(digest ^ (slot.value() + 100));
    for (const Slot slot : present) {
      require(std::find(all.begin(), all.end(), slot.value()) != all.end(),
              plan_.text() + ": a present slot does not count");
    }
    compare(all);
    const bool same_everywhere =
        plan_.kind == OpKind::all_reduce || plan_.kind == OpKind::broadcast || plan_.kind == OpKind::all_gather;
    for (std::uint64_t i = 0; i < result().size() && same_everywhere; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &result()[i], sizeof(bits));
      digest = (digest ^ bits) * 0x100000001b3;
    }
  }

 private:
  // Pieces of a large op may have different contributors: then each element is right for some set between those in all
  // pieces and those in any.
  void compare(const Ranks& all) {
    std::vector<Ranks> sets{all};
    for (const std::uint32_t r : all) {
      const auto& certain = contributors_.slots_in_all;
      if (std::find(certain.begin(), certain.end(), Slot{r}) != certain.end()) continue;
      require(!contributors_.uniform, plan_.text() + ": uniform, but not in all pieces");
      for (std::size_t i = sets.size(); i-- > 0;) {
        Ranks without = sets[i];
        std::erase(without, r);
        sets.push_back(without);
      }
    }
    std::vector<std::vector<float>> expected;
    expected.reserve(sets.size());
    for (const Ranks& ranks : sets) expected.push_back(plan_.expected(ranks, rank_));
    const std::uint64_t elements = plan_.outputs_of(rank_);
    for (std::uint64_t i = 0; i < elements; ++i) {
      const bool right = std::any_of(expected.begin(), expected.end(),
                                     [&](const std::vector<float>& values) { return values[i] == result()[i]; });
      if (right) continue;
      throw plan_.text() + ": element " + std::to_string(i) + " is " + std::to_string(result()[i]) + ", expected " +
          std::to_string(expected[0][i]) + " of " + std::to_string(all.size()) +
          (contributors_.uniform ? "" : " or fewer") + (plan_.by_run ? ", run" : ", issued");
    }
  }

  Plan plan_;
  std::uint32_t rank_;
  bool same_memory_;
  Tensor<float> input_;
  Tensor<float> output_;
  std::shared_ptr<Op> op_;
  Status status_;
  Contributors contributors_;
};

// The answer of all that go on: whether somebody has been told to stop. Under policy exact the call may have to be made
// again.
bool everybody_stops(Communicator& group, Engine& engine, std::uint64_t step, bool stop) {
  for (;;) {
    std::vector<std::int32_t> word{stop ? 1 : 0};
    Call call;
    call.kind = OpKind::all_reduce;
    call.dtype = DType::int32;
    call.reduce = ReduceOp::max;
    call.inputs = {buffer(word)};
    call.outputs = {buffer(word)};
    const Status status = group.run(call);
    if (status.ok()) return word[0] != 0;
    require(status.fault() == Fault::incomplete, "stop: " + status.message());
    require(engine.at_boundary(step, std::chrono::milliseconds{0}).status(), "boundary");
  }
}

void compare_digests(Communicator& group, std::uint32_t members, std::uint64_t digest) {
  std::vector<std::uint64_t> mine{digest};
  std::vector<std::uint64_t> all(members);
  Call call;
  call.kind = OpKind::all_gather;
  call.dtype = DType::int64;
  call.inputs = {buffer(mine)};
  call.outputs = {buffer(all)};
  const auto op = group.issue(std::move(call));
  const Status status = op->wait(milliseconds{0});
  if (status.fault() == Fault::incomplete) return;  // a kill behind the last op; the others' digests say enough
  require(status, "digests");
  for (const Slot slot : op->contributors().slots) {
    require(all[slot.value()] == digest, "survivors saw different outcomes: slot " + std::to_string(slot.value()));
  }
}

constexpr std::uint64_t in_flight = 4;

// Policies repair and exact: until the test says stop.
std::string go_on(std::uint32_t rank, Engine& engine, JobBoard& board, std::uint64_t seed, std::uint32_t members,
                  Policy policy) {
  const std::shared_ptr<Communicator> group = make_group(engine, "random", members, policy);
  std::uint64_t digest = seed;
  std::uint64_t step = 1;
  for (std::uint64_t number = 0;; number += in_flight) {
    require(engine.at_boundary(step, std::chrono::milliseconds{0}).status(), "boundary");
    std::vector<Part> parts;
    parts.reserve(in_flight);
    for (std::uint64_t i = 0; i < in_flight; ++i) parts.emplace_back(Plan(number + i, seed, members), engine, rank);
    for (Part& part : parts) part.start(*group);
    for (Part& part : parts) part.finish();
    const std::vector<Slot> present = group->present();
    bool incomplete = false;
    for (Part& part : parts) {
      part.verify(present, policy, digest);
      incomplete = incomplete || part.status().fault() == Fault::incomplete;
    }
    board.rounds.fetch_add(1);
    if (everybody_stops(*group, engine, step, board.stop.load())) break;
    if (!incomplete) ++step;
  }
  compare_digests(*group, members, digest);
  group->shutdown(milliseconds{0});
  return "";
}

// Policy fail: until the first error. What the error leaves behind does not change any more.
std::string go_until_the_error(std::uint32_t rank, Engine& engine, JobBoard& board, std::uint64_t seed,
                               std::uint32_t members) {
  const std::shared_ptr<Communicator> group = make_group(engine, "random", members, Policy::fail);
  std::uint64_t digest = seed;
  for (std::uint64_t number = 0;; number += in_flight) {
    std::vector<Part> parts;
    parts.reserve(in_flight);
    for (std::uint64_t i = 0; i < in_flight; ++i) parts.emplace_back(Plan(number + i, seed, members), engine, rank);
    for (Part& part : parts) part.start(*group);
    for (Part& part : parts) part.finish();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = parts[i];
      if (part.status().ok()) {
        part.verify({}, Policy::fail, digest);
        continue;
      }
      require(part.status().fault() == Fault::peer_lost, part.plan().text() + ": " + part.status().message());
      for (std::size_t later = i; later < parts.size(); ++later) {
        require(parts[later].status().fault() == Fault::peer_lost, "a later op succeeds");
      }
      std::vector<std::vector<float>> left_behind;
      for (Part& failed : parts)
        left_behind.emplace_back(failed.result().data(), failed.result().data() + failed.result().size());
      std::this_thread::sleep_for(milliseconds{30});
      for (std::size_t k = 0; k < parts.size(); ++k) {
        require(std::equal(left_behind[k].begin(), left_behind[k].end(), parts[k].result().data()),
                parts[k].plan().text() + " changes after its error");
      }
      board.outcomes[rank].store(mixed(digest ^ part.plan().number) | 1);
      return "";
    }
    board.rounds.fetch_add(1);
  }
}

constexpr int shares = 10;  // each a test, well within its time limit

std::uint64_t kills_of_a_share() {
  const char* soak = std::getenv("CLOSERANKS_SOAK");
  return soak != nullptr && std::string(soak) != "0" ? 200 : 10;
}

// One job of the seed; how many it killed.
std::uint64_t kill_in_one_job(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto members = static_cast<std::uint32_t>(2 + random() % 4);
  const std::uint64_t draw = random() % 10;
  const Policy policy = draw < 6 ? Policy::repair : draw < 8 ? Policy::exact : Policy::fail;
  TestJob job(members, [=](std::uint32_t rank, Engine& engine, JobBoard& board) {
    return policy == Policy::fail ? go_until_the_error(rank, engine, board, seed, members)
                                  : go_on(rank, engine, board, seed, members, policy);
  });
  Ranks alive;
  for (std::uint32_t rank = 0; rank < members; ++rank) alive.push_back(rank);
  std::uint64_t kills = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  // Sometimes before the first op, mostly in the middle of ops.
  const std::uint64_t rounds = random() % 8 == 0 ? 0 : members;
  while (job.board().rounds.load() < rounds && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds{1});
  }
  while (alive.size() > 1) {
    std::this_thread::sleep_for(std::chrono::microseconds{random() % 60'000});
    Ranks victims;
    const std::uint64_t at_once = random() % 4 == 0 ? 2 : 1;
    while (victims.size() < at_once && alive.size() > 1) {
      const std::size_t pick = random() % alive.size();
      victims.push_back(alive[pick]);
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    job.kill(victims);
    kills += victims.size();
    if (random() % 4 == 0 || policy == Policy::fail) break;
  }
  std::this_thread::sleep_for(milliseconds{20});
  job.board().stop.store(true);
  EXPECT_EQ(job.join(), "") << "seed " << seed << " (replay: CLOSERANKS_SEED)";
  for (const std::uint32_t rank : alive) {
    if (policy != Policy::fail) break;
    EXPECT_EQ(job.board().outcomes[rank].load(), job.board().outcomes[alive.front()].load())
        << "survivors saw different outcomes, seed " << seed << " (replay: CLOSERANKS_SEED)";
  }
  return kills;
}

class RandomKills : public ::testing::TestWithParam<int> {};

TEST_P(RandomKills, SurvivorsHaveTheRightAnswers) {
  if (const char* chosen = std::getenv("CLOSERANKS_SEED")) {
    kill_in_one_job(std::strtoull(chosen, nullptr, 10));
    return;
  }
  std::uint64_t kills = 0;
  for (auto seed = static_cast<std::uint64_t>(GetParam()) * 100'000; kills < kills_of_a_share() && !HasFailure();) {
    kills += kill_in_one_job(++seed);
  }
  RecordProperty("kills", static_cast<int>(kills));
}

INSTANTIATE_TEST_SUITE_P(Share, RandomKills, ::testing::Range(0, shares));

}  // namespace
}  // namespace closeranks::communicator_test

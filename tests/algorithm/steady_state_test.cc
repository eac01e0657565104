// In steady state the machine allocates nothing: it runs between two loads of an eight-byte all_reduce.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "algorithm/group_machine.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

// Counts what this program allocates; everything else is as before.
void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) {
    return memory;
  }
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace closeranks::algorithm {
namespace {

// All members but rank 0 are always where rank 0 is: entered, and with the blocks of their share distributed.
class EagerPeers : public Words {
 public:
  std::uint64_t entered(Rank) const override { return ~std::uint64_t{0}; }
  std::uint64_t completed(Rank) const override { return ~std::uint64_t{0}; }
  std::uint64_t block_word(Rank, std::uint64_t sequence, std::uint32_t block) const override {
    return block % 4 == 0 ? own[sequence % 16][block] : BlockWord{sequence, BlockState::distributed, block % 4}.pack();
  }
  std::uint64_t signature(Rank, std::uint64_t) const override { return 1; }
  std::uint64_t decision_word(std::uint64_t sequence) const override { return decisions[sequence % 16]; }

  std::vector<std::vector<std::uint64_t>> own =
      std::vector<std::vector<std::uint64_t>>(16, std::vector<std::uint64_t>(1024));
  std::vector<std::uint64_t> decisions = std::vector<std::uint64_t>(16);
};

void one_entry(GroupMachine& machine, EagerPeers& words, const EntryPlan& plan) {
  ASSERT_TRUE(machine.may_enter(words));
  machine.enter({machine.next_sequence(), plan, 1});
  for (Action action = machine.next(words); action.kind != Action::Kind::none; action = machine.next(words)) {
    if (action.kind == Action::Kind::publish_block || action.kind == Action::Kind::claim_block) {
      words.own[action.sequence % 16][action.block] = action.word().pack();
    } else if (action.kind == Action::Kind::decide) {
      words.decisions[action.sequence % 16] = DecisionWord{action.sequence, action.decision, 0}.pack();
    }
    machine.done(action);
  }
  ASSERT_EQ(machine.completed(), machine.entered());
}

TEST(SteadyState, AllocatesNothing) {
  for (const Policy policy : {Policy::repair, Policy::fail}) {
    MachineOptions options;
    options.members = 4;
    options.slots = {Slot{0}, Slot{1}, Slot{2}, Slot{3}};
    options.policy = policy;
    GroupMachine machine(options);
    EagerPeers words;
    if (policy == Policy::repair) {
      machine.install({GroupKey{1}, {1, 1}, {{WorkerId{3}, Slot{3}, {1, 1}, 0}}});
    }
    std::vector<EntryPlan> plans;
    for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast, OpKind::all_gather,
                              OpKind::reduce_scatter, OpKind::gather, OpKind::scatter, OpKind::all_to_all}) {
      for (const std::uint64_t unit : {8U, 1U << 20}) {
        plans.push_back(make_plan(kind, DType::float32, ReduceOp::sum, Rank{0}, unit, 4));
      }
    }
    const std::uint64_t before = allocations.load();
    for (int round = 0; round < 10; ++round) {
      for (const EntryPlan& plan : plans) {
        one_entry(machine, words, plan);
      }
    }
    EXPECT_EQ(allocations.load(), before);
  }
}

}  // namespace
}  // namespace closeranks::algorithm

#include "communicator/inline_combine.h"

#include <array>
#include <cstddef>
#include <vector>

#include "base/assert.h"
#include "communicator/buffer_list.h"
#include "communicator/in_place.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {
namespace {

constexpr std::array<std::byte, algorithm::inline_bytes> zeros{};

// Larger groups take the lists' memory from the heap.
constexpr std::size_t usual_members = 64;

struct Sources {
  std::span<const std::byte*> sources;
  std::span<double> weights;
};

void reduce_to(const algorithm::EntryPlan& plan, const Sources& from, std::byte* to) {
  if (plan.reduce == ReduceOp::avg) {
    reduce_weighted(plan.dtype, from.sources, from.weights, to, plan.unit_bytes);
  } else if (plan.reduce == ReduceOp::premul_sum) {
    reduce_scaled(plan.dtype, from.sources, from.weights, to, plan.unit_bytes);
  } else {
    reduce(plan.dtype, plan.reduce, from.sources, to, plan.unit_bytes);
  }
}

// The unit at `offset` of every payload, to `to` of the outputs.
void reduce_payloads(const algorithm::EntryPlan& plan, std::span<const std::byte* const> payloads,
                     std::span<const double> weights, std::uint64_t offset, const std::vector<Buffer>& outputs,
                     std::uint64_t to) {
  std::array<const std::byte*, usual_members> few_sources;
  std::array<double, usual_members> few_weights;
  std::vector<const std::byte*> many_sources;
  std::vector<double> many_weights;
  Sources from{few_sources, few_weights};
  if (payloads.size() > usual_members) {
    many_sources.resize(payloads.size());
    many_weights.resize(payloads.size());
    from = {many_sources, many_weights};
  }
  std::size_t count = 0;
  for (std::size_t r = 0; r < payloads.size(); ++r) {
    if (payloads[r] == nullptr || (plan.reduce == ReduceOp::avg && weights[r] == 0)) continue;
    from.sources[count] = payloads[r] + offset;
    from.weights[count] = weights[r];
    ++count;
  }
  from = {from.sources.first(count), from.weights.first(count)};
  std::byte* whole = range_in(outputs, to, plan.unit_bytes);
  if (whole != nullptr && aligned_to(plan.dtype, whole)) {
    reduce_to(plan, from, whole);
    return;
  }
  alignas(64) std::array<std::byte, algorithm::inline_bytes> result;
  reduce_to(plan, from, result.data());
  copy_to(outputs, to, result.data(), plan.unit_bytes);
}

}  // namespace

void combine_inline(const algorithm::EntryPlan& plan, std::span<const std::byte* const> payloads,
                    std::span<const double> weights, Rank root, Rank self, const std::vector<Buffer>& outputs,
                    OutputUnits units) {
  CR_ASSERT(plan.inlined);
  const std::uint64_t unit = plan.unit_bytes;
  const auto collect = [&] {
    for (std::size_t r = 0; r < payloads.size(); ++r) {
      copy_to(outputs, r * units.stride + units.offset, payloads[r] != nullptr ? payloads[r] : zeros.data(), unit);
    }
  };
  switch (plan.kind) {
    case OpKind::barrier:
      return;
    case OpKind::all_reduce:
      return reduce_payloads(plan, payloads, weights, 0, outputs, units.offset);
    case OpKind::reduce:
      if (self == root) reduce_payloads(plan, payloads, weights, 0, outputs, units.offset);
      return;
    case OpKind::reduce_scatter:
      return reduce_payloads(plan, payloads, weights, self.value() * unit, outputs, units.offset);
    case OpKind::broadcast:
      return copy_to(outputs, units.offset, payloads[root.value()], unit);
    case OpKind::scatter:
      return copy_to(outputs, units.offset, payloads[root.value()] + self.value() * unit, unit);
    case OpKind::all_gather:
      return collect();
    case OpKind::gather:
      if (self == root) collect();
      return;
    case OpKind::all_to_all:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  CR_ASSERT(!"a kind that is never inlined");
}

}  // namespace closeranks::communicator

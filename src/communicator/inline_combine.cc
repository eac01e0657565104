#include "communicator/inline_combine.h"

#include <array>
#include <cstddef>
#include <vector>

#include "base/assert.h"
#include "communicator/buffer_list.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {
namespace {

constexpr std::array<std::byte, algorithm::inline_bytes> zeros{};

}  // namespace

void combine_inline(const algorithm::EntryPlan& plan, const algorithm::RankSet& contributors,
                    std::span<const std::byte* const> payloads, std::span<const double> weights, Rank root, Rank self,
                    const std::vector<Buffer>& outputs) {
  CR_ASSERT(plan.inlined);
  const std::uint64_t unit = plan.unit_bytes;
  // The reductions' offset of this member's share in every payload.
  const auto reduce_from = [&](std::uint64_t offset) {
    alignas(64) std::array<std::byte, algorithm::inline_bytes> result;
    std::vector<const std::byte*> sources;
    std::vector<double> shares;
    sources.reserve(payloads.size());
    const bool weighted = plan.reduce == ReduceOp::avg;
    for (std::size_t r = 0; r < payloads.size(); ++r) {
      if (!contributors[r] || (weighted && weights[r] == 0)) continue;
      sources.push_back(payloads[r] + offset);
      if (weighted) shares.push_back(weights[r]);
    }
    if (weighted) {
      reduce_weighted(plan.dtype, sources, shares, result.data(), unit);
    } else {
      reduce(plan.dtype, plan.reduce, sources, result.data(), unit);
    }
    copy_to(outputs, 0, result.data(), unit);
  };
  const auto collect = [&] {
    for (std::size_t r = 0; r < payloads.size(); ++r) {
      copy_to(outputs, r * unit, contributors[r] ? payloads[r] : zeros.data(), unit);
    }
  };
  switch (plan.kind) {
    case OpKind::barrier:
      return;
    case OpKind::all_reduce:
      return reduce_from(0);
    case OpKind::reduce_scatter:
      return reduce_from(self.value() * unit);
    case OpKind::broadcast:
      return copy_to(outputs, 0, payloads[root.value()], unit);
    case OpKind::scatter:
      return copy_to(outputs, 0, payloads[root.value()] + self.value() * unit, unit);
    case OpKind::all_gather:
      return collect();
    case OpKind::gather:
      if (self == root) collect();
      return;
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  CR_ASSERT(!"a kind that is never inlined");
}

}  // namespace closeranks::communicator

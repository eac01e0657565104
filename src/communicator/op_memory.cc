#include "communicator/op_memory.h"

#include <algorithm>

namespace closeranks::communicator {
namespace {

// Ops a group remembers for recent_ops().
constexpr std::size_t remembered_ops = 1024;

}  // namespace

OpMemory::OpMemory() : ring_(remembered_ops), last_(std::make_shared<const Contributors>()) {}

void OpMemory::add(std::uint64_t sequence, OpKind kind, std::uint64_t bytes, std::int64_t finished_unix_ns,
                   const std::shared_ptr<const Contributors>& contributors) {
  Line& line = ring_[added_++ % remembered_ops];
  line.sequence = sequence;
  line.kind = kind;
  line.bytes = bytes;
  line.finished_unix_ns = finished_unix_ns;
  // A count less to touch: nearly always it is the same object as before.
  if (line.contributors != contributors) line.contributors = contributors;
  if (last_ != contributors) last_ = contributors;
}

void OpMemory::forget() {
  added_ = 0;
  last_ = std::make_shared<const Contributors>();
}

std::vector<FinishedOp> OpMemory::lines(std::int64_t after) const {
  std::vector<FinishedOp> lines;
  const std::uint64_t kept = std::min<std::uint64_t>(added_, remembered_ops);
  for (std::uint64_t i = 1; i <= kept; ++i) {
    const Line& line = ring_[(added_ - i) % remembered_ops];
    if (static_cast<std::int64_t>(line.sequence) > after) {
      lines.push_back({line.sequence, line.kind, line.bytes, line.finished_unix_ns, *line.contributors});
    } else if (line.kind != OpKind::send && line.kind != OpKind::recv) {
      break;  // collectives end in the order of their numbers
    }
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace closeranks::communicator

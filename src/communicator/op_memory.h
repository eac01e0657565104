// What a group remembers of its ops that are done: who contributed to the last one, and a line of each of the last
// ones. Adding a line allocates nothing. Not thread-safe (drive lock).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "closeranks/communicator.h"

namespace closeranks::communicator {

class OpMemory {
 public:
  OpMemory();
  void add(std::uint64_t sequence, OpKind kind, std::uint64_t bytes, std::int64_t finished_unix_ns,
           const std::shared_ptr<const Contributors>& contributors);
  void forget();
  [[nodiscard]] const Contributors& last_contributors() const { return *last_; }
  // Communicator::recent_ops(). Looks at no more lines than it returns, and one: the others are not in the caches.
  [[nodiscard]] std::vector<FinishedOp> lines(std::int64_t after) const;

 private:
  struct Line {
    std::uint64_t sequence = 0;
    OpKind kind = OpKind::barrier;
    std::uint64_t bytes = 0;
    std::int64_t finished_unix_ns = 0;
    std::shared_ptr<const Contributors> contributors;
  };
  std::vector<Line> ring_;
  std::uint64_t added_ = 0;
  std::shared_ptr<const Contributors> last_;
};

}  // namespace closeranks::communicator

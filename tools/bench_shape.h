// One measured op: how large each buffer is, what goes in, and what must come out. Knows no library, so that ours and
// its peers move the same bytes and are held to the same results. Elements are float32 throughout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace closeranks::bench {

enum class Operation : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  send_recv,
  // No ops, but what memory alone would allow: each process copies its input to its output, or goes once over its only
  // buffer, reading and writing it.
  copy,
  update,
};

std::optional<Operation> operation_named(std::string_view name);

// `bytes`, as asked for, are those of the larger of a process's two buffers, rounded up to whole elements per part; the
// root is rank 0. all_reduce, broadcast and reduce work in place; the others have separate buffers.
// send_recv: rank 2i sends to 2i+1 and gets the message back; a last odd rank has nobody and does nothing.
struct Shape {
  Operation operation = Operation::barrier;
  std::uint32_t ranks = 0;
  std::uint32_t rank = 0;
  std::size_t unit = 0;  // bytes of one part: the message of a pair, or the whole buffer where there are no parts
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;  // in place: those of the only buffer
  bool in_place = false;

  [[nodiscard]] bool is_root() const { return rank == 0; }
  // send_recv's partner; nullopt: none.
  [[nodiscard]] std::optional<std::uint32_t> partner() const;
  // How many ops one run of the work is: a message there and back counts as two.
  [[nodiscard]] std::uint32_t ops_per_run() const { return operation == Operation::send_recv ? 2 : 1; }
  // Each process works by itself: what memory alone would allow.
  [[nodiscard]] bool alone() const { return operation == Operation::copy || operation == Operation::update; }
  // A member may leave these before the others have come: back to back, some libraries would be measured by how far
  // ahead they let it run. So each run starts after a barrier, outside of its time (as in the OSU benchmarks).
  [[nodiscard]] bool apart() const {
    return operation == Operation::reduce || operation == Operation::broadcast || operation == Operation::gather ||
           operation == Operation::scatter;
  }
};

Shape shape_of(Operation operation, std::size_t bytes, std::uint32_t ranks, std::uint32_t rank);

// Small whole numbers that differ by rank and place: their sums are exact in any order.
void fill(const Shape& shape, float* input);
// After one run on filled buffers: "", or what is wrong.
std::string check(const Shape& shape, const float* output);

}  // namespace closeranks::bench

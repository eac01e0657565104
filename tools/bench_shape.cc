#include "bench_shape.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace closeranks::bench {
namespace {

constexpr std::array<std::pair<std::string_view, Operation>, 12> names{{
    {"all_reduce", Operation::all_reduce},
    {"reduce", Operation::reduce},
    {"broadcast", Operation::broadcast},
    {"all_gather", Operation::all_gather},
    {"gather", Operation::gather},
    {"scatter", Operation::scatter},
    {"reduce_scatter", Operation::reduce_scatter},
    {"all_to_all", Operation::all_to_all},
    {"barrier", Operation::barrier},
    {"send_recv", Operation::send_recv},
    {"copy", Operation::copy},
    {"update", Operation::update},
}};

// Longer outputs are looked at in every 61st element and the last: a block is thousands of elements, and none of them
// is a multiple of 61 long.
constexpr std::size_t every_element = std::size_t{1} << 18;

float value(std::uint32_t rank, std::size_t element) { return static_cast<float>(rank + 1 + element % 7); }

float sum_over_ranks(std::uint32_t ranks, std::size_t element) {
  return static_cast<float>(ranks * (ranks + 1) / 2 + ranks * (element % 7));
}

// What element `i` of the output must be.
float expected(const Shape& shape, std::size_t i) {
  const std::size_t count = shape.unit / sizeof(float);
  const auto part = static_cast<std::uint32_t>(count == 0 ? 0 : i / count);
  const std::size_t within = count == 0 ? 0 : i % count;
  switch (shape.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      return sum_over_ranks(shape.ranks, i);
    case Operation::broadcast:
      return value(0, i);
    case Operation::all_gather:
    case Operation::gather:
      return value(part, within);
    case Operation::scatter:
      return value(0, shape.rank * count + i);
    case Operation::reduce_scatter:
      return sum_over_ranks(shape.ranks, shape.rank * count + i);
    case Operation::all_to_all:
      return value(part, shape.rank * count + within);
    case Operation::send_recv:  // there and back: the even rank's own values, at both
      return value(shape.rank & ~1U, i);
    case Operation::update:
      return -value(shape.rank, i);
    case Operation::barrier:
    case Operation::copy:
      return value(shape.rank, i);
  }
  return 0;
}

}  // namespace

std::optional<Operation> operation_named(std::string_view name) {
  for (const auto& [known, operation] : names) {
    if (known == name) return operation;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Shape::partner() const {
  const std::uint32_t other = rank ^ 1U;
  return other < ranks ? std::optional(other) : std::nullopt;
}

Shape shape_of(Operation operation, std::size_t bytes, std::uint32_t ranks, std::uint32_t rank) {
  Shape shape{.operation = operation, .ranks = ranks, .rank = rank};
  const auto elements = [](std::size_t size, std::size_t parts) {
    const std::size_t element = parts * sizeof(float);
    return (size + element - 1) / element * sizeof(float);
  };
  const std::size_t whole = elements(bytes, 1);
  const std::size_t part = elements(bytes, ranks);
  switch (operation) {
    case Operation::all_reduce:
    case Operation::broadcast:
    case Operation::reduce:
    case Operation::update:
      shape.unit = shape.input_bytes = shape.output_bytes = whole;
      shape.in_place = true;
      break;
    case Operation::all_gather:
    case Operation::gather:
      shape.unit = shape.input_bytes = part;
      shape.output_bytes = operation == Operation::all_gather || shape.is_root() ? ranks * part : 0;
      break;
    case Operation::scatter:
    case Operation::reduce_scatter:
      shape.unit = shape.output_bytes = part;
      shape.input_bytes = operation == Operation::reduce_scatter || shape.is_root() ? ranks * part : 0;
      break;
    case Operation::all_to_all:
      shape.unit = part;
      shape.input_bytes = shape.output_bytes = ranks * part;
      break;
    case Operation::send_recv:
    case Operation::copy:
      shape.unit = shape.input_bytes = shape.output_bytes = whole;
      break;
    case Operation::barrier:
      break;
  }
  return shape;
}

void fill(const Shape& shape, float* input) {
  const std::size_t count = shape.input_bytes / sizeof(float);
  const std::size_t first = std::min<std::size_t>(count, 7 * 1024);
  for (std::size_t i = 0; i < first; ++i) input[i] = value(shape.rank, i);
  // The values have a period of 7.
  for (std::size_t i = first; i < count; i += first) {
    std::memcpy(input + i, input, std::min(first, count - i) * sizeof(float));
  }
}

std::string check(const Shape& shape, const float* output) {
  // reduce leaves nothing in particular at the others; a process without a partner gets no message.
  if (shape.operation == Operation::reduce && !shape.is_root()) return "";
  if (shape.operation == Operation::send_recv && !shape.partner()) return "";
  const std::size_t count = shape.output_bytes / sizeof(float);
  const std::size_t step = count > every_element ? 61 : 1;
  const auto wrong = [&](std::size_t i) { return output[i] != expected(shape, i); };
  std::size_t at = 0;
  while (at < count && !wrong(at)) at += step;
  if (at >= count && (count == 0 || !wrong(count - 1))) return "";
  at = std::min(at, count - 1);
  return "wrong result: element " + std::to_string(at) + " of rank " + std::to_string(shape.rank) + " is " +
         std::to_string(output[at]) + " and should be " + std::to_string(expected(shape, at));
}

}  // namespace closeranks::bench

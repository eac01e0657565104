#include "communicator/not_finite.h"

#include <algorithm>
#include <cstring>

#include "communicator/call_shape.h"

namespace closeranks::communicator {
namespace {

// Looked at in one go, without a branch per element.
constexpr std::uint64_t chunk_elements = 4096;

// An IEEE number is not finite when all bits of its exponent are set. Adding the lowest of them to the exponent alone
// carries into the sign bit then, and only then: so many can be looked at together by one "or".
template <class Word>
std::optional<std::uint64_t> first_with(const std::byte* data, std::uint64_t elements, Word exponent) {
  const Word lowest = exponent & static_cast<Word>(~exponent + 1);
  const Word sign = static_cast<Word>(Word{1} << (sizeof(Word) * 8 - 1));
  for (std::uint64_t start = 0; start < elements; start += chunk_elements) {
    const std::uint64_t end = std::min(elements, start + chunk_elements);
    Word any = 0;
    for (std::uint64_t i = start; i < end; ++i) {
      Word word;  // NOLINT: filled by the copy
      std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
      any |= static_cast<Word>((word & exponent) + lowest);
    }
    if ((any & sign) == 0) continue;
    for (std::uint64_t i = start; i < end; ++i) {
      Word word;  // NOLINT: filled by the copy
      std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
      if ((word & exponent) == exponent) return i;
    }
  }
  return std::nullopt;
}

template <class Word>
std::optional<NotFinite> search(const Call& call, Word exponent, std::uint64_t words_per_element) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const Buffer& buffer = call.inputs[i];
    const auto* data = static_cast<const std::byte*>(buffer.data);
    if (data == nullptr) continue;
    const auto found = first_with<Word>(data, buffer.bytes / sizeof(Word), exponent);
    if (!found) continue;
    Word word;  // NOLINT: filled by the copy
    std::memcpy(&word, data + *found * sizeof(Word), sizeof(Word));
    const Word sign = static_cast<Word>(Word{1} << (sizeof(Word) * 8 - 1));
    const auto mantissa = static_cast<Word>(word & static_cast<Word>(~(exponent | sign)));
    return NotFinite{i, *found / words_per_element, mantissa != 0};
  }
  return std::nullopt;
}

}  // namespace

std::optional<NotFinite> first_not_finite(const Call& call) {
  if (!is_reduction(call.kind)) return std::nullopt;
  constexpr std::uint32_t single_exponent = 0x7f800000;
  constexpr std::uint64_t double_exponent = 0x7ff0000000000000;
  switch (call.dtype) {
    case DType::float16:
      return search<std::uint16_t>(call, 0x7c00, 1);
    case DType::bfloat16:
      return search<std::uint16_t>(call, 0x7f80, 1);
    case DType::float32:
      return search<std::uint32_t>(call, single_exponent, 1);
    case DType::complex64:
      return search<std::uint32_t>(call, single_exponent, 2);
    case DType::float64:
      return search<std::uint64_t>(call, double_exponent, 1);
    case DType::complex128:
      return search<std::uint64_t>(call, double_exponent, 2);
    default:
      return std::nullopt;
  }
}

std::string describe(const NotFinite& found, const Call& call) {
  std::string text = (found.nan ? "NaN" : "infinity") + std::string(" at element ") + std::to_string(found.element);
  if (call.inputs.size() > 1) text += " of tensor " + std::to_string(found.buffer);
  return text;
}

}  // namespace closeranks::communicator

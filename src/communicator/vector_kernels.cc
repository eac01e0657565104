#include "communicator/vector_kernels.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "communicator/vector_kernels.cc"
#include "hwy/foreach_target.h"  // compiles the rest of this file once per instruction set
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace closeranks::communicator {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How a vector of accumulators is loaded from and stored to memory. Native<T>: as it is.
template <class T>
struct Native {
  using Element = T;
  using Tag = hn::ScalableTag<T>;
  static HWY_INLINE hn::Vec<Tag> load(const Element* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void store(hn::Vec<Tag> value, Element* to) { hn::StoreU(value, Tag(), to); }
};

// bfloat16 in float32 vectors. Stores round to nearest even by hand: Highway's demotion truncates on AVX2 and AVX3.
struct Brain {
  using Element = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Half = hn::Rebind<std::uint16_t, Tag>;
  static HWY_INLINE hn::Vec<Tag> load(const Element* from) {
    return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), hn::LoadU(Half(), from))));
  }
  static HWY_INLINE void store(hn::Vec<Tag> value, Element* to) {
    const Bits bits;
    const auto word = hn::BitCast(bits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(word), hn::Set(bits, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(word, hn::Add(odd, hn::Set(bits, 0x7fff))));
    const auto result = hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(value)), hn::Set(bits, 0x7fc0), rounded);
    hn::StoreU(hn::DemoteTo(Half(), hn::BitCast(hn::RebindToSigned<Tag>(), result)), Half(), to);
  }
};

// IEEE float16 in float32 vectors, in integer arithmetic on every target: the conversion instructions are missing on
// some, and Highway's replacement truncates and saturates there (SSSE3).
struct Ieee {
  using Element = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Half = hn::Rebind<std::uint16_t, Tag>;

  static HWY_INLINE hn::Vec<Tag> load(const Element* from) {
    const Bits bits;
    const Tag tag;
    const auto half = hn::PromoteTo(bits, hn::LoadU(Half(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(bits, 0x8000)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(bits, 0x7fff)));
    const auto exponent = hn::And(magnitude, hn::Set(bits, 0x7c00u << 13));
    const auto rebias = hn::Set(bits, (127u - 15u) << 23);
    const auto normal = hn::Add(magnitude, rebias);
    const auto special = hn::Add(normal, hn::Set(bits, (128u - 16u) << 23));  // infinity and NaN
    // Subnormal: give it the smallest normal's exponent, then subtract that normal: exact in float32.
    const auto smallest = hn::Set(bits, 113u << 23);
    const auto subnormal = hn::BitCast(
        bits, hn::Sub(hn::BitCast(tag, hn::Add(normal, hn::Set(bits, 1u << 23))), hn::BitCast(tag, smallest)));
    auto word = hn::IfThenElse(hn::Eq(exponent, hn::Set(bits, 0x7c00u << 13)), special, normal);
    word = hn::IfThenElse(hn::Eq(exponent, hn::Zero(bits)), subnormal, word);
    return hn::BitCast(tag, hn::Or(word, sign));
  }

  static HWY_INLINE void store(hn::Vec<Tag> value, Element* to) {
    const Bits bits;
    const Tag tag;
    const auto word = hn::BitCast(bits, value);
    const auto sign = hn::And(word, hn::Set(bits, 0x80000000u));
    const auto magnitude = hn::Xor(word, sign);
    // Normal: rebias the exponent and round by carrying into it.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 1));
    const auto rebias = hn::Set(bits, static_cast<std::uint32_t>((15 - 127) * (1 << 23) + 0xfff));
    const auto normal = hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(rebias, odd)));
    // Subnormal: adding 0.5 lines the mantissa up at float16's last place, and the adder rounds to nearest even.
    const auto half = hn::Set(bits, ((127u - 15u) + (23u - 10u) + 1u) << 23);
    const auto subnormal =
        hn::Sub(hn::BitCast(bits, hn::Add(hn::BitCast(tag, magnitude), hn::BitCast(tag, half))), half);
    const auto size = hn::BitCast(tag, magnitude);  // not negative: float order is bit order
    auto result = hn::IfThenElse(hn::RebindMask(bits, hn::Lt(size, hn::BitCast(tag, hn::Set(bits, 113u << 23)))),
                                 subnormal, normal);
    result = hn::IfThenElse(hn::RebindMask(bits, hn::Ge(size, hn::Set(tag, 65536.0f))), hn::Set(bits, 0x7c00), result);
    result = hn::Or(result, hn::ShiftRight<16>(sign));
    result = hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(value)), hn::Set(bits, 0x7e00), result);
    hn::StoreU(hn::DemoteTo(Half(), hn::BitCast(hn::RebindToSigned<Tag>(), result)), Half(), to);
  }
};

struct Sum {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Product {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::Mul(a, b);
  }
};
struct IntegerMin {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::Min(a, b);
  }
};
struct IntegerMax {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::Max(a, b);
  }
};
// hn::Min and Max drop a NaN or not, depending on its side and the target: say what we mean. `b` wins when it is
// strictly smaller (larger), or when it is NaN and `a` is not.
struct FloatMin {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::AndNot(hn::IsNaN(a), hn::IsNaN(b))), b, a);
  }
};
struct FloatMax {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::AndNot(hn::IsNaN(a), hn::IsNaN(b))), b, a);
  }
};

struct Keep {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V value) const {
    return value;
  }
};
struct Divide {
  double divisor;
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag tag, V value) const {
    return hn::Div(value, hn::Set(tag, static_cast<hn::TFromD<Tag>>(divisor)));
  }
};

// Four columns of vectors at a time, so that the additions of one do not wait for those of the other.
template <class Memory, class Combine, class Finish>
void columns(const std::byte* const* sources, std::size_t source_count, std::byte* destination, std::size_t bytes,
             Combine combine, Finish finish) {
  using Element = typename Memory::Element;
  const typename Memory::Tag tag;
  const std::size_t lanes = hn::Lanes(tag);
  const std::size_t count = bytes / sizeof(Element);
  auto* out = reinterpret_cast<Element*>(destination);
  const auto source = [sources](std::size_t s) { return reinterpret_cast<const Element*>(sources[s]); };
  std::size_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    const Element* from = source(0) + at;
    auto a = Memory::load(from);
    auto b = Memory::load(from + lanes);
    auto c = Memory::load(from + 2 * lanes);
    auto d = Memory::load(from + 3 * lanes);
    for (std::size_t s = 1; s < source_count; ++s) {
      from = source(s) + at;
      a = combine(tag, a, Memory::load(from));
      b = combine(tag, b, Memory::load(from + lanes));
      c = combine(tag, c, Memory::load(from + 2 * lanes));
      d = combine(tag, d, Memory::load(from + 3 * lanes));
    }
    Memory::store(finish(tag, a), out + at);
    Memory::store(finish(tag, b), out + at + lanes);
    Memory::store(finish(tag, c), out + at + 2 * lanes);
    Memory::store(finish(tag, d), out + at + 3 * lanes);
  }
  for (; at + lanes <= count; at += lanes) {
    auto a = Memory::load(source(0) + at);
    for (std::size_t s = 1; s < source_count; ++s) a = combine(tag, a, Memory::load(source(s) + at));
    Memory::store(finish(tag, a), out + at);
  }
  if (at == count) return;
  // The tail in a padded vector: the same instructions, so the same bits as in the body.
  Element padded[HWY_MAX_BYTES / sizeof(Element)] = {};
  const std::size_t rest = (count - at) * sizeof(Element);
  std::memcpy(padded, source(0) + at, rest);
  auto a = Memory::load(padded);
  for (std::size_t s = 1; s < source_count; ++s) {
    std::memcpy(padded, source(s) + at, rest);
    a = combine(tag, a, Memory::load(padded));
  }
  Memory::store(finish(tag, a), padded);
  std::memcpy(out + at, padded, rest);
}

// As columns(), each source times its weight. Multiplied and added apart: a fused instruction, where there is one,
// would round otherwise (CMakeLists.txt keeps the compiler from fusing them).
template <class Memory>
void weighted_columns(const std::byte* const* sources, const double* weights, std::size_t source_count,
                      std::byte* destination, std::size_t bytes) {
  using Element = typename Memory::Element;
  using Real = hn::TFromD<typename Memory::Tag>;
  const typename Memory::Tag tag;
  const std::size_t lanes = hn::Lanes(tag);
  const std::size_t count = bytes / sizeof(Element);
  auto* out = reinterpret_cast<Element*>(destination);
  const auto source = [sources](std::size_t s) { return reinterpret_cast<const Element*>(sources[s]); };
  const auto weight = [&](std::size_t s) { return hn::Set(tag, static_cast<Real>(weights[s])); };
  double sum = 0;
  for (std::size_t s = 0; s < source_count; ++s) sum += weights[s];
  const auto total = hn::Set(tag, static_cast<Real>(sum));
  std::size_t at = 0;
  for (; at + 2 * lanes <= count; at += 2 * lanes) {
    auto a = hn::Mul(weight(0), Memory::load(source(0) + at));
    auto b = hn::Mul(weight(0), Memory::load(source(0) + at + lanes));
    for (std::size_t s = 1; s < source_count; ++s) {
      a = hn::Add(a, hn::Mul(weight(s), Memory::load(source(s) + at)));
      b = hn::Add(b, hn::Mul(weight(s), Memory::load(source(s) + at + lanes)));
    }
    Memory::store(hn::Div(a, total), out + at);
    Memory::store(hn::Div(b, total), out + at + lanes);
  }
  while (at < count) {
    Element padded[HWY_MAX_BYTES / sizeof(Element)] = {};
    const std::size_t rest = (count - at < lanes ? count - at : lanes) * sizeof(Element);
    std::memcpy(padded, source(0) + at, rest);
    auto a = hn::Mul(weight(0), Memory::load(padded));
    for (std::size_t s = 1; s < source_count; ++s) {
      std::memcpy(padded, source(s) + at, rest);
      a = hn::Add(a, hn::Mul(weight(s), Memory::load(padded)));
    }
    Memory::store(hn::Div(a, total), padded);
    std::memcpy(out + at, padded, rest);
    at += rest / sizeof(Element);
  }
}

bool weigh_here(DType dtype, const std::byte* const* sources, const double* weights, std::size_t source_count,
                std::byte* destination, std::size_t bytes) {
  switch (dtype) {
    case DType::float32:
      weighted_columns<Native<float>>(sources, weights, source_count, destination, bytes);
      return true;
    case DType::float64:
      weighted_columns<Native<double>>(sources, weights, source_count, destination, bytes);
      return true;
    case DType::bfloat16:
      weighted_columns<Brain>(sources, weights, source_count, destination, bytes);
      return true;
    case DType::float16:
      weighted_columns<Ieee>(sources, weights, source_count, destination, bytes);
      return true;
    default:
      return false;
  }
}

template <class Memory>
bool floats(ReduceOp reduce, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
            std::size_t bytes) {
  switch (reduce) {
    case ReduceOp::sum:
      columns<Memory>(sources, source_count, destination, bytes, Sum(), Keep());
      return true;
    case ReduceOp::avg:
      columns<Memory>(sources, source_count, destination, bytes, Sum(), Divide{static_cast<double>(source_count)});
      return true;
    case ReduceOp::product:
      columns<Memory>(sources, source_count, destination, bytes, Product(), Keep());
      return true;
    case ReduceOp::min:
      columns<Memory>(sources, source_count, destination, bytes, FloatMin(), Keep());
      return true;
    case ReduceOp::max:
      columns<Memory>(sources, source_count, destination, bytes, FloatMax(), Keep());
      return true;
    default:
      return false;
  }
}

template <class T>
bool integers(ReduceOp reduce, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
              std::size_t bytes) {
  using Memory = Native<T>;
  switch (reduce) {
    case ReduceOp::sum:
      columns<Memory>(sources, source_count, destination, bytes, Sum(), Keep());
      return true;
    case ReduceOp::min:
      columns<Memory>(sources, source_count, destination, bytes, IntegerMin(), Keep());
      return true;
    case ReduceOp::max:
      columns<Memory>(sources, source_count, destination, bytes, IntegerMax(), Keep());
      return true;
    default:
      return false;
  }
}

bool reduce_here(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                 std::byte* destination, std::size_t bytes) {
  switch (dtype) {
    case DType::float32:
      return floats<Native<float>>(reduce, sources, source_count, destination, bytes);
    case DType::float64:
      return floats<Native<double>>(reduce, sources, source_count, destination, bytes);
    case DType::bfloat16:
      return floats<Brain>(reduce, sources, source_count, destination, bytes);
    case DType::float16:
      return floats<Ieee>(reduce, sources, source_count, destination, bytes);
    case DType::int32:
      return integers<std::int32_t>(reduce, sources, source_count, destination, bytes);
    case DType::int64:
      return integers<std::int64_t>(reduce, sources, source_count, destination, bytes);
    default:
      return false;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace closeranks::communicator
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace closeranks::communicator {

HWY_EXPORT(reduce_here);
HWY_EXPORT(weigh_here);

bool reduce_with_vectors(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                         std::byte* destination, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(reduce_here)(dtype, reduce, sources, source_count, destination, bytes);
}

bool weigh_with_vectors(DType dtype, const std::byte* const* sources, const double* weights, std::size_t source_count,
                        std::byte* destination, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(weigh_here)(dtype, sources, weights, source_count, destination, bytes);
}

}  // namespace closeranks::communicator
#endif

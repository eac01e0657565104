// float16 and bfloat16 as float32 vectors: exact loads, stores rounded once to nearest even. Included by
// vector_kernels.cc once per instruction set, so the guard is Highway's.
#if defined(CLOSERANKS_COMMUNICATOR_HALF_PRECISION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CLOSERANKS_COMMUNICATOR_HALF_PRECISION_INL_H_
#undef CLOSERANKS_COMMUNICATOR_HALF_PRECISION_INL_H_
#else
#define CLOSERANKS_COMMUNICATOR_HALF_PRECISION_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace closeranks::communicator {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// bfloat16 is the upper half of a float32, so a vector of words holds two vectors of numbers: those at even places,
// shifted up, and those at odd places, with the rest cut off. Nothing has to be widened or packed.
#if HWY_TARGET != HWY_SCALAR
struct Brain {
  using Element = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Words = hn::Repartition<std::uint16_t, Tag>;
  struct Vector {
    hn::Vec<Tag> even;
    hn::Vec<Tag> odd;
  };
  static HWY_INLINE std::size_t lanes() { return hn::Lanes(Words()); }
  static HWY_INLINE Vector load(const Element* from) {
    const auto words = hn::BitCast(Bits(), hn::LoadU(Words(), from));
    return {hn::BitCast(Tag(), hn::ShiftLeft<16>(words)),
            hn::BitCast(Tag(), hn::And(words, hn::Set(Bits(), 0xffff0000)))};
  }
  static HWY_INLINE void store(Vector value, Element* to) {
    const auto words =
        hn::Or(hn::ShiftRight<16>(rounded(value.even)), hn::And(rounded(value.odd), hn::Set(Bits(), 0xffff0000)));
    hn::StoreU(hn::BitCast(Words(), words), Words(), to);
  }
  template <class F, class... Vectors>
  static HWY_INLINE Vector map(F f, Vectors... vectors) {
    return {f(Tag(), vectors.even...), f(Tag(), vectors.odd...)};
  }
  // In the upper half. By hand: Highway's demotion truncates on AVX2 and AVX3.
  static HWY_INLINE hn::Vec<Bits> rounded(hn::Vec<Tag> value) {
    const Bits bits;
    const auto word = hn::BitCast(bits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(word), hn::Set(bits, 1));
    const auto up = hn::Add(word, hn::Add(odd, hn::Set(bits, 0x7fff)));
    return hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(value)), hn::Set(bits, 0x7fc00000), up);
  }
};
#else
struct Brain {
  using Element = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  using Vector = hn::Vec<Tag>;
  static HWY_INLINE std::size_t lanes() { return 1; }
  static HWY_INLINE Vector load(const Element* from) {
    return hn::Set(Tag(), std::bit_cast<float>(static_cast<std::uint32_t>(*from) << 16));
  }
  static HWY_INLINE void store(Vector value, Element* to) {
    const auto word = std::bit_cast<std::uint32_t>(hn::GetLane(value));
    const bool nan = (word & 0x7fffffff) > 0x7f800000;
    *to = static_cast<Element>(nan ? 0x7fc0 : (word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  template <class F, class... Vectors>
  static HWY_INLINE Vector map(F f, Vectors... vectors) {
    return f(Tag(), vectors...);
  }
};
#endif

// IEEE float16 in float32 vectors: by the processor's conversions where all processors of the target have them, in
// integer arithmetic elsewhere (Highway's own replacement truncates and saturates there).
struct Ieee {
  using Element = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  using Vector = hn::Vec<Tag>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Half = hn::Rebind<std::uint16_t, Tag>;

  static HWY_INLINE std::size_t lanes() { return hn::Lanes(Tag()); }
  template <class F, class... Vectors>
  static HWY_INLINE Vector map(F f, Vectors... vectors) {
    return f(Tag(), vectors...);
  }

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  using Number = hn::Rebind<hwy::float16_t, Tag>;
  static HWY_INLINE Vector load(const Element* from) {
    return hn::PromoteTo(Tag(), hn::BitCast(Number(), hn::LoadU(Half(), from)));
  }
  static HWY_INLINE void store(Vector value, Element* to) {
    const auto quiet = hn::BitCast(Tag(), hn::Set(Bits(), 0x7fc00000));
    const auto half = hn::DemoteTo(Number(), hn::IfThenElse(hn::IsNaN(value), quiet, value));
    hn::StoreU(hn::BitCast(Half(), half), Half(), to);
  }
#else
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
#endif
};

}  // namespace HWY_NAMESPACE
}  // namespace closeranks::communicator
HWY_AFTER_NAMESPACE();

#endif  // CLOSERANKS_COMMUNICATOR_HALF_PRECISION_INL_H_

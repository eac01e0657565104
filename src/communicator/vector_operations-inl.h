// What the reductions do to vectors: combine two, prepare one that was loaded, finish the sum of all. Included by
// vector_kernels.cc once per instruction set, so the guard is Highway's.
#if defined(CLOSERANKS_COMMUNICATOR_VECTOR_OPERATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CLOSERANKS_COMMUNICATOR_VECTOR_OPERATIONS_INL_H_
#undef CLOSERANKS_COMMUNICATOR_VECTOR_OPERATIONS_INL_H_
#else
#define CLOSERANKS_COMMUNICATOR_VECTOR_OPERATIONS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace closeranks::communicator {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

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
// Highway multiplies no bytes: two at a time in 16 bits, whose low halves are right whatever lies above.
struct ByteProduct {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag tag, V a, V b) const {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(tag, static_cast<std::uint8_t>(hn::GetLane(a) * hn::GetLane(b)));
#else
    const hn::Repartition<std::uint16_t, Tag> wide;
    const auto left = hn::BitCast(wide, a);
    const auto right = hn::BitCast(wide, b);
    const auto low = hn::And(hn::Mul(left, right), hn::Set(wide, 0xff));
    const auto high = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(left), hn::ShiftRight<8>(right)));
    return hn::BitCast(tag, hn::Or(low, high));
#endif
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
struct BitAnd {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V a, V b) const {
    return hn::Xor(a, b);
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
// What is done to a source before it is combined, and to the sum of all before it is stored.
struct AsItIs {
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag, V value, std::size_t /*source*/) const {
    return value;
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
// Multiplied and added apart: a fused instruction, where there is one, would round otherwise (CMakeLists.txt keeps the
// compiler from fusing them).
struct Times {
  const double* factors;
  template <class Tag, class V>
  HWY_INLINE V operator()(Tag tag, V value, std::size_t source) const {
    return hn::Mul(hn::Set(tag, static_cast<hn::TFromD<Tag>>(factors[source])), value);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace closeranks::communicator
HWY_AFTER_NAMESPACE();

#endif  // CLOSERANKS_COMMUNICATOR_VECTOR_OPERATIONS_INL_H_

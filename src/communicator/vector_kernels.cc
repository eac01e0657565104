#include "communicator/vector_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "communicator/vector_kernels.cc"
#include "hwy/foreach_target.h"  // compiles the rest of this file once per instruction set
// after it:
#include "communicator/half_precision-inl.h"
#include "communicator/vector_operations-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace closeranks::communicator {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// How a vector of accumulators is loaded from and stored to memory: as it is, as logic, or widened (Brain and Ieee of
// half_precision-inl.h).
template <class T>
struct Native {
  using Element = T;
  using Tag = hn::ScalableTag<T>;
  using Vector = hn::Vec<Tag>;
  static HWY_INLINE std::size_t lanes() { return hn::Lanes(Tag()); }
  static HWY_INLINE Vector load(const Element* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void store(Vector value, Element* to) { hn::StoreU(value, Tag(), to); }
  template <class F, class... Vectors>
  static HWY_INLINE Vector map(F f, Vectors... vectors) {
    return f(Tag(), vectors...);
  }
};
// Any non-zero byte is true, and results are 0 or 1.
struct Truth : Native<std::uint8_t> {
  static HWY_INLINE Vector load(const Element* from) { return hn::Min(hn::LoadU(Tag(), from), hn::Set(Tag(), 1)); }
};

// Four columns of vectors at a time, so that the additions of one do not wait for those of the other.
template <class Memory, class Prepare, class Combine, class Finish>
void columns(const std::byte* const* sources, std::size_t source_count, std::byte* destination, std::size_t bytes,
             Prepare prepare, Combine combine, Finish finish) {
  using Element = typename Memory::Element;
  using Vector = typename Memory::Vector;
  const std::size_t lanes = Memory::lanes();
  const std::size_t count = bytes / sizeof(Element);
  auto* out = reinterpret_cast<Element*>(destination);
  const auto source = [sources](std::size_t s) { return reinterpret_cast<const Element*>(sources[s]); };
  const auto load = [prepare](const Element* from, std::size_t s) HWY_ATTR -> Vector {
    return Memory::map([prepare, s](auto tag, auto value) HWY_ATTR { return prepare(tag, value, s); },
                       Memory::load(from));
  };
  const auto store = [finish](Vector value, Element* to) HWY_ATTR { Memory::store(Memory::map(finish, value), to); };
  std::size_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    const Element* from = source(0) + at;
    auto a = load(from, 0);
    auto b = load(from + lanes, 0);
    auto c = load(from + 2 * lanes, 0);
    auto d = load(from + 3 * lanes, 0);
    for (std::size_t s = 1; s < source_count; ++s) {
      from = source(s) + at;
      a = Memory::map(combine, a, load(from, s));
      b = Memory::map(combine, b, load(from + lanes, s));
      c = Memory::map(combine, c, load(from + 2 * lanes, s));
      d = Memory::map(combine, d, load(from + 3 * lanes, s));
    }
    store(a, out + at);
    store(b, out + at + lanes);
    store(c, out + at + 2 * lanes);
    store(d, out + at + 3 * lanes);
  }
  for (; at + lanes <= count; at += lanes) {
    auto a = load(source(0) + at, 0);
    for (std::size_t s = 1; s < source_count; ++s) a = Memory::map(combine, a, load(source(s) + at, s));
    store(a, out + at);
  }
  if (at == count) return;
  // The tail in a padded vector: the same instructions, so the same bits as in the body.
  Element padded[HWY_MAX_BYTES / sizeof(Element)] = {};
  const std::size_t rest = (count - at) * sizeof(Element);
  std::memcpy(padded, source(0) + at, rest);
  auto a = load(padded, 0);
  for (std::size_t s = 1; s < source_count; ++s) {
    std::memcpy(padded, source(s) + at, rest);
    a = Memory::map(combine, a, load(padded, s));
  }
  store(a, padded);
  std::memcpy(out + at, padded, rest);
}

// One call's arguments, and the ops as they are named in op.h.
struct Range {
  const std::byte* const* sources;
  std::size_t source_count;
  std::byte* destination;
  std::size_t bytes;

  template <class Memory, class Combine, class Finish = Keep>
  HWY_INLINE bool run(Combine combine, Finish finish = {}) const {
    columns<Memory>(sources, source_count, destination, bytes, AsItIs(), combine, finish);
    return true;
  }

  template <class Memory>
  bool reals(ReduceOp reduce) const {
    switch (reduce) {
      case ReduceOp::sum:
        return run<Memory>(Sum());
      case ReduceOp::avg:
        return run<Memory>(Sum(), Divide{static_cast<double>(source_count)});
      case ReduceOp::product:
        return run<Memory>(Product());
      case ReduceOp::min:
        return run<Memory>(FloatMin());
      case ReduceOp::max:
        return run<Memory>(FloatMax());
      default:
        return false;
    }
  }

  // Sums and means of complex numbers are those of their parts.
  template <class Real>
  bool complexes(ReduceOp reduce) const {
    return reduce != ReduceOp::product && reals<Native<Real>>(reduce);
  }

  bool bits(ReduceOp reduce) const {
    switch (reduce) {
      case ReduceOp::band:
        return run<Native<std::uint8_t>>(BitAnd());
      case ReduceOp::bor:
        return run<Native<std::uint8_t>>(BitOr());
      case ReduceOp::bxor:
        return run<Native<std::uint8_t>>(BitXor());
      default:
        return false;
    }
  }

  // Sums and products wrap around: the same bits with and without a sign.
  template <class T>
  bool integers(ReduceOp reduce) const {
    using Unsigned = hwy::MakeUnsigned<T>;
    switch (reduce) {
      case ReduceOp::sum:
        return run<Native<Unsigned>>(Sum());
      case ReduceOp::product:
        return run<Native<Unsigned>>(std::conditional_t<sizeof(T) == 1, ByteProduct, Product>());
      case ReduceOp::min:
        return run<Native<T>>(IntegerMin());
      case ReduceOp::max:
        return run<Native<T>>(IntegerMax());
      default:
        return bits(reduce);
    }
  }

  bool truths(ReduceOp reduce) const {
    switch (reduce) {
      case ReduceOp::sum:
      case ReduceOp::max:
      case ReduceOp::bor:
        return run<Truth>(BitOr());
      case ReduceOp::product:
      case ReduceOp::min:
      case ReduceOp::band:
        return run<Truth>(BitAnd());
      case ReduceOp::bxor:
        return run<Truth>(BitXor());
      default:
        return false;
    }
  }
};

bool reduce_here(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                 std::byte* destination, std::size_t bytes) {
  const Range range{sources, source_count, destination, bytes};
  switch (dtype) {
    case DType::boolean:
      return range.truths(reduce);
    case DType::int8:
      return range.integers<std::int8_t>(reduce);
    case DType::uint8:
      return range.integers<std::uint8_t>(reduce);
    case DType::int16:
      return range.integers<std::int16_t>(reduce);
    case DType::uint16:
      return range.integers<std::uint16_t>(reduce);
    case DType::int32:
      return range.integers<std::int32_t>(reduce);
    case DType::uint32:
      return range.integers<std::uint32_t>(reduce);
    case DType::int64:
      return range.integers<std::int64_t>(reduce);
    case DType::uint64:
      return range.integers<std::uint64_t>(reduce);
    case DType::float16:
      return range.reals<Ieee>(reduce);
    case DType::bfloat16:
      return range.reals<Brain>(reduce);
    case DType::float32:
      return range.reals<Native<float>>(reduce);
    case DType::float64:
      return range.reals<Native<double>>(reduce);
    case DType::complex64:
      return range.complexes<float>(reduce);
    case DType::complex128:
      return range.complexes<double>(reduce);
    case DType::bytes:
      break;
  }
  return false;
}

template <class Memory>
bool scale(const std::byte* const* sources, const double* factors, std::size_t source_count, const double* divisor,
           std::byte* destination, std::size_t bytes) {
  if (divisor == nullptr) {
    columns<Memory>(sources, source_count, destination, bytes, Times{factors}, Sum(), Keep());
  } else {
    columns<Memory>(sources, source_count, destination, bytes, Times{factors}, Sum(), Divide{*divisor});
  }
  return true;
}

bool scale_here(DType dtype, const std::byte* const* sources, const double* factors, std::size_t source_count,
                const double* divisor, std::byte* destination, std::size_t bytes) {
  const auto run = [&](auto kernel) { return kernel(sources, factors, source_count, divisor, destination, bytes); };
  switch (dtype) {
    case DType::float16:
      return run(scale<Ieee>);
    case DType::bfloat16:
      return run(scale<Brain>);
    case DType::float32:
    case DType::complex64:
      return run(scale<Native<float>>);
    case DType::float64:
    case DType::complex128:
      return run(scale<Native<double>>);
    default:
      return false;
  }
}

void stream_here(std::byte* to, const std::byte* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t lanes = hn::Lanes(tag);
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  const auto* in = reinterpret_cast<const std::uint8_t*>(from);
  const std::size_t head = std::min((-reinterpret_cast<std::uintptr_t>(out)) % (4 * lanes), bytes);
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + 4 * lanes <= bytes; at += 4 * lanes) {
    const auto a = hn::LoadU(tag, in + at);
    const auto b = hn::LoadU(tag, in + at + lanes);
    const auto c = hn::LoadU(tag, in + at + 2 * lanes);
    const auto d = hn::LoadU(tag, in + at + 3 * lanes);
    hn::Stream(a, tag, out + at);
    hn::Stream(b, tag, out + at + lanes);
    hn::Stream(c, tag, out + at + 2 * lanes);
    hn::Stream(d, tag, out + at + 3 * lanes);
  }
  std::memcpy(out + at, in + at, bytes - at);
  // Ahead of every store that tells others the bytes are there.
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace closeranks::communicator
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace closeranks::communicator {

HWY_EXPORT(reduce_here);
HWY_EXPORT(scale_here);
HWY_EXPORT(stream_here);

bool reduce_with_vectors(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                         std::byte* destination, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(reduce_here)(dtype, reduce, sources, source_count, destination, bytes);
}

bool scale_with_vectors(DType dtype, const std::byte* const* sources, const double* factors, std::size_t source_count,
                        const double* divisor, std::byte* destination, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(scale_here)(dtype, sources, factors, source_count, divisor, destination, bytes);
}

void stream_with_vectors(std::byte* to, const std::byte* from, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(stream_here)(to, from, bytes);
}

}  // namespace closeranks::communicator
#endif

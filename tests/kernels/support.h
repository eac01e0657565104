// What the tests of the kernels share: types, calls on vectors of values, bits, instruction sets.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "communicator/kernels.h"
#include "hwy/targets.h"

namespace closeranks::communicator {

// Every sum and product of a few 64-bit numbers.
__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

inline constexpr std::array all_dtypes{DType::boolean, DType::int8,      DType::uint8,     DType::int16,
                                       DType::uint16,  DType::int32,     DType::uint32,    DType::int64,
                                       DType::uint64,  DType::float16,   DType::bfloat16,  DType::float32,
                                       DType::float64, DType::complex64, DType::complex128};
inline constexpr std::array all_reductions{ReduceOp::sum, ReduceOp::avg,  ReduceOp::product,
                                           ReduceOp::min, ReduceOp::max,  ReduceOp::band,
                                           ReduceOp::bor, ReduceOp::bxor, ReduceOp::premul_sum};

template <class T>
std::vector<const std::byte*> pointers(const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  return sources;
}

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> result(inputs[0].size());
  reduce(dtype, op, pointers(inputs), reinterpret_cast<std::byte*>(result.data()), result.size() * sizeof(T));
  return result;
}

template <class T>
std::vector<T> weighted(DType dtype, const std::vector<std::vector<T>>& inputs, const std::vector<double>& weights) {
  std::vector<T> result(inputs[0].size());
  reduce_weighted(dtype, pointers(inputs), weights, reinterpret_cast<std::byte*>(result.data()),
                  result.size() * sizeof(T));
  return result;
}

template <class T>
std::vector<T> scaled(DType dtype, const std::vector<std::vector<T>>& inputs, const std::vector<double>& factors) {
  std::vector<T> result(inputs[0].size());
  reduce_scaled(dtype, pointers(inputs), factors, reinterpret_cast<std::byte*>(result.data()),
                result.size() * sizeof(T));
  return result;
}

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

inline std::vector<std::vector<std::uint8_t>> random_bytes(std::size_t members, std::size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::uint8_t>> inputs(members, std::vector<std::uint8_t>(bytes));
  for (auto& input : inputs) {
    for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
  }
  return inputs;
}

// Which of two NaNs wins is not ours to say (kernels.h): all alike for comparison.
inline std::vector<std::uint8_t> without_nans(DType dtype, std::vector<std::uint8_t> bytes) {
  const auto replace = [&bytes]<class T>(T) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      if (std::isnan(value)) std::memset(bytes.data() + at, 0xff, sizeof(T));
    }
  };
  if (dtype == DType::float32 || dtype == DType::complex64) replace(float{});
  if (dtype == DType::float64 || dtype == DType::complex128) replace(double{});
  return bytes;
}

// Calls `run(name)` with each instruction set of this machine chosen in turn.
template <class Run>
void on_every_target(Run run) {
  const std::int64_t supported = hwy::SupportedTargets();
  for (std::int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    run(hwy::TargetName(rest & -rest));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace closeranks::communicator

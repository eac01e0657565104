// Shapes of tensors as the flight recorder names them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace closeranks::torch_binding {

// The recorder's name of "[64, 3]", "[2] x 4" of four alike, "[2], [3, 4]" of different ones; 0 without a recorder.
// A shape that this thread has asked for lately is found without making the text.
std::uint32_t shape_name(const std::vector<at::Tensor>& tensors);

}  // namespace closeranks::torch_binding

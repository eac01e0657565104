// The first NaN or infinity in a call's input (closeranks run --check-nan).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "closeranks/communicator.h"

namespace closeranks::communicator {

struct NotFinite {
  std::size_t buffer = 0;  // of Call::inputs
  std::uint64_t element = 0;
  bool nan = false;  // else an infinity
};

// Of a call that reduces floating-point or complex elements; nullopt for any other. Reads the whole input, once: about
// the price of copying it.
std::optional<NotFinite> first_not_finite(const Call& call);

// "NaN at element 17"
std::string describe(const NotFinite& found, const Call& call);

}  // namespace closeranks::communicator

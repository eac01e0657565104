// The stack that an op was called from, as records, exports and sentences have it: a line per frame, innermost first,
// in faulthandler's form: `File "train.py", line 34 in step`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace closeranks::recorder {

struct Frame {
  std::string file;
  std::int64_t line = 0;
  std::string function;
};

// One more frame, outward. False: it would be longer than op_stack_max_bytes, and the stack stays as it is.
bool append_frame(std::string& stack, const Frame& frame);
// What does not look like a frame is left out.
std::vector<Frame> frames_of(std::string_view stack);

}  // namespace closeranks::recorder

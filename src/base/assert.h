// A broken invariant stops the process with its reason, in release builds too.
#pragma once

namespace closeranks {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}

#define CR_ASSERT(expression)                           \
  (static_cast<bool>(expression) ? static_cast<void>(0) \
                                 : ::closeranks::assertion_failed(#expression, __FILE__, __LINE__))

// A promise that a fuzz target checks; breaking it is a finding like any crash.
#pragma once

#include <cstdio>
#include <cstdlib>

#define FUZZ_REQUIRE(expression)                                                           \
  do {                                                                                     \
    if (!(expression)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #expression); \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

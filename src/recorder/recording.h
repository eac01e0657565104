// Whether this build records at all (CMake: CLOSERANKS_RECORDER). Off only to measure what recording costs.
#pragma once

namespace closeranks::recorder {

#ifdef CLOSERANKS_WITHOUT_RECORDER
inline constexpr bool recording = false;
#else
inline constexpr bool recording = true;
#endif

}  // namespace closeranks::recorder

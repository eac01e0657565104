// Every deadline of worker, agent and coordinator, by name and with its reason. `closeranks run --dry-run` prints them.
#pragma once

#include <chrono>

namespace closeranks::deadlines {

using std::chrono::milliseconds;

// A worker connects and is answered at start. Generous: a busy machine imports torch on every core meanwhile.
inline constexpr milliseconds connect{60'000};
// Token challenge and first frame on a fresh connection; a silent connection is closed after this.
inline constexpr milliseconds handshake{5'000};
// A survivor answers prepared. Past it the survivor becomes a suspect itself.
inline constexpr milliseconds prepared{10'000};
// The host proves that an excluded worker is gone. Past it the coordinator says so and asks again.
inline constexpr milliseconds fence{10'000};
// State T lasts this long before a worker is suspected: Ctrl-Z and back kills nobody.
inline constexpr milliseconds stop{5'000};
// A worker that reaches neither the coordinator nor a member of the op it waits in ends by itself.
inline constexpr milliseconds orphan{60'000};
// SIGTERM to SIGKILL when the job is ended from outside.
inline constexpr milliseconds terminate{10'000};
// Without --shrink: after the first failure the others may see its error and end by themselves this long.
inline constexpr milliseconds failure_grace{5'000};
// A worker whose control connection broke tries again this often.
inline constexpr milliseconds reconnect{200};

}  // namespace closeranks::deadlines

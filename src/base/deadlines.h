// Every deadline of worker, agent and coordinator, by name and with its reason. `closeranks run --dry-run` prints them;
// docs/timeouts.md is the table.
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
// All others wait for a worker that makes no progress: a checkpoint or an evaluation on one worker fits into it.
inline constexpr milliseconds hang{60'000};
// Where the job's own history allows less than `hang`, never less than this: a page of disk reads is no hang.
inline constexpr milliseconds hang_least{5'000};
// A hung worker writes its Python stack before it is killed; the file has to grow and then to rest for stack_settled.
inline constexpr milliseconds stack{500};
inline constexpr milliseconds stack_settled{50};
// A round of joining: everybody has come to its boundary; a step with an evaluation in it fits into it. Then it is
// cancelled and tried again.
inline constexpr milliseconds boundary{600'000};
// Everybody waits at the boundary meanwhile: the state has arrived (100 GB at 1 GB/s), else the others go on without
// the newcomer, which tries again.
inline constexpr milliseconds state_transfer{120'000};
// A worker that reaches neither the coordinator nor a member of the op it waits in ends by itself.
inline constexpr milliseconds orphan{60'000};
// The agent that holds the coordinator has ended, and with it whoever could repair the job: a worker's ops fail at
// once, and what has not ended by itself after this is killed. An exception handler may save something meanwhile.
inline constexpr milliseconds agent_lost{5'000};
// SIGTERM to the agent until the workers get one too: they leave at their next boundary meanwhile.
inline constexpr milliseconds drain_grace{30'000};
// SIGTERM to SIGKILL when the job is ended from outside.
inline constexpr milliseconds terminate{10'000};
// Without --shrink: after the first failure the others may see its error and end by themselves this long.
inline constexpr milliseconds failure_grace{5'000};
// The job is over: a newcomer that was never let in is told so and may end by itself this long.
inline constexpr milliseconds newcomer_end{2'000};
// A worker whose control connection broke tries again this often.
inline constexpr milliseconds reconnect{200};
// Ends of a slot's workers before their first finished step are counted over this long (--max-replacements), ...
inline constexpr milliseconds replacement_window{600'000};
// ... and delay the next try: a full disk or a busy port may pass. Doubled with each in a row, up to the longest.
inline constexpr milliseconds replacement_backoff{1'000};
inline constexpr milliseconds replacement_backoff_longest{30'000};
// A spare has imported torch; measured 2 s idle, 12 s on a busy machine. Past it the spare is killed.
inline constexpr milliseconds spare_ready{120'000};
// The next spare is started when the newcomer trains, at the latest after this: importing takes a core for seconds.
inline constexpr milliseconds spare_after_newcomer{20'000};
// A spare that died is started again after this, doubled with each in a row, up to the longest.
inline constexpr milliseconds spare_backoff{2'000};
inline constexpr milliseconds spare_backoff_longest{60'000};
// A connection to the job's control socket (`closeranks job`) is asked and answered within this.
inline constexpr milliseconds job_command{5'000};

}  // namespace closeranks::deadlines

// What the user sees and what the log files keep: the workers' output in whole lines, each with its slot, and the
// agent's own lines, from one thread, so that nothing is torn or mixed.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/launch_options.h"
#include "base/file_descriptor.h"
#include "closeranks/ids.h"

namespace closeranks::agent {

struct OutputOptions {
  std::string log_folder;   // NAME.stdout.log and NAME.stderr.log are written there; empty: nowhere
  StreamChoice redirects;   // not shown
  std::vector<Slot> shown;  // empty: all
};

class Output {
 public:
  explicit Output(OutputOptions options);
  // finish() without a deadline to wait for: what was read is written.
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // All functions may be called from any thread. A reader of our stdout that is slow slows the workers down, as it
  // would without us; it delays nothing else.

  // Takes over the read ends of a worker's stdout and stderr. `log_name`: of its log files, "slot-2"; those of the
  // worker before it in the slot may still be open.
  void attach(Slot slot, const std::string& log_name, FileDescriptor output, FileDescriptor errors);
  // A line of the agent's own, to stderr, as "closeranks: ...".
  void say(std::string_view line);
  // Waits until all attached streams have ended and everything is written, up to `deadline`; what is held is shown then
  // in any case. Streams that were not at their end are let go: false.
  bool finish(std::chrono::milliseconds deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace closeranks::agent

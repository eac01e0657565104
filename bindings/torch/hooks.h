// The hooks torch attaches to a backend: completion hooks (its flight recorder retires entries by them) and abort hooks
// (the recorder's dump, the health check).
//
// Thread-safe. Hooks run with no lock of ours held and without the GIL. Abort hooks run at most once per group, for
// the first failure that the group does not survive: health is sticky and the recorder dumps once per process, so a
// death that was repaired must not fire them. They run on a thread of their own, since a dump takes long enough to keep
// the error from whoever waits for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Hooks.hpp>

#include "closeranks/status.h"

namespace closeranks::torch_binding {

class HookTable {
 public:
  HookTable() = default;
  HookTable(const HookTable&) = delete;
  HookTable& operator=(const HookTable&) = delete;
  ~HookTable();

  void add_completion(std::int64_t id, c10d::CompletionHook hook);
  void remove_completion(std::int64_t id);
  void add_abort(std::int64_t id, c10d::AbortHook hook);
  void remove_abort(std::int64_t id);

  // Once per successful Work, with its completion key.
  void completed(std::uint64_t completion_key);
  // A failure of an op, or an abort. Ignores what a dump would not explain: wrong calls and orderly shutdowns.
  void failed(Fault fault);
  // Waits for abort hooks that run. Not with the GIL: they may take it.
  void join();

 private:
  std::mutex mutex_;
  std::map<std::int64_t, c10d::CompletionHook> completion_;
  std::map<std::int64_t, c10d::AbortHook> abort_;
  std::atomic<bool> has_completion_{false};
  bool aborted_ = false;
  std::thread aborting_;
};

}  // namespace closeranks::torch_binding

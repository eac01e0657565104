// torch's completion hooks: its flight recorder attaches one to every group and retires entries by it, so that a dump
// tells an op that has finished from one that hangs.
//
// Abort hooks are not supported, on purpose: the recorder's dumps for the first failure import Python modules for
// seconds, on threads of its own that outlive an interpreter which ends with the error, and abort it. The trace can be
// had by hand: torch._C._distributed_c10d._dump_fr_trace(backend="closeranks").
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Hooks.hpp>

namespace closeranks::torch_binding {

// Thread-safe. Hooks run with no lock of ours held and without the GIL.
class CompletionHooks {
 public:
  void add(std::int64_t id, c10d::CompletionHook hook);
  void remove(std::int64_t id);
  // Once per successful Work, with its completion key.
  void completed(std::uint64_t completion_key);

 private:
  using Table = std::map<std::int64_t, c10d::CompletionHook>;

  std::mutex changing_;
  // Never changed, only replaced: an op that completes takes a reference and no lock.
  std::atomic<std::shared_ptr<const Table>> table_{std::make_shared<const Table>()};
};

}  // namespace closeranks::torch_binding

// Options of a closeranks group: what `pg_options` of init_process_group and new_group may carry.
#pragma once

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "closeranks/op.h"

namespace closeranks::torch_binding {

struct GroupSettings final : c10d::Backend::Options {
  explicit GroupSettings(std::chrono::milliseconds group_timeout = kBackendDefaultTimeout)
      : Options("closeranks", group_timeout) {}
  // split_group clones the parent's options; without this the clone would lose the fields below.
  c10::intrusive_ptr<Options> clone() const override { return c10::make_intrusive<GroupSettings>(*this); }

  // What becomes of ops when a member is lost. Unset: CLOSERANKS_POLICY for the world group, fail for any other.
  std::optional<Policy> policy;
  // The lowest contributing member takes the root's place in broadcasts, and all_gather answers a vacant slot's part
  // with the caller's own: right for DDP's own calls only (closeranks.data_parallel).
  bool lowest_member_is_root = false;
};

}  // namespace closeranks::torch_binding

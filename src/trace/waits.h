// Who waits for whom at the end, and at whom every wait ends.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trace/job_index.h"
#include "trace/verdict.h"

namespace closeranks::trace {

// One op that somebody is in at the end, or ended in, and for whom it waits.
struct Wait {
  Slot slot;
  const GroupIndex* group = nullptr;  // null: a send or receive
  const recorder::OpTrace* op = nullptr;
  std::string group_name;
  std::int64_t since_ns = 0;
  std::int64_t until_ns = 0;    // when it failed, or the latest moment that the files know
  std::vector<Slot> for_slots;  // members that have not made the call
  std::vector<Slot> unknown;    // members without a file that would tell
};

struct Hang {
  Kind kind = Kind::no_culprit;
  std::vector<Slot> culprits;  // one, unless the files cannot tell which; of a circle: the side that is wrong
  const Wait* wait = nullptr;  // in which a culprit is missed, or of a circle
  std::int64_t at_ns = 0;      // since when
  std::string state;           // "stopped (T)", "in the kernel: fuse_..."
  std::string stack;           // Python's
  std::vector<std::string> evidence;
  std::vector<Slot> circle;  // of wrong_order
  std::vector<Slot> silent;  // of no_culprit: slots without a file that are waited for
};

class Waits {
 public:
  Waits(const JobIndex& index, const VerdictOptions& options);

  [[nodiscard]] const std::vector<Wait>& all() const { return waits_; }
  // nullopt: nobody waits for long.
  [[nodiscard]] std::optional<Hang> find_hang() const;

 private:
  void add(Slot slot, const GroupIndex* group, const recorder::OpTrace& op, const std::string& name);
  void add_missing(Wait& wait, const GroupIndex& group) const;
  [[nodiscard]] bool is_long(const Wait& wait) const;
  [[nodiscard]] std::vector<const Wait*> waits_of(Slot slot) const;
  [[nodiscard]] std::optional<Hang> find_circle(const std::vector<Slot>& reached) const;
  void decide_circle(Hang& hang) const;
  [[nodiscard]] Hang judge_sink(Slot slot) const;
  [[nodiscard]] bool has_gone_on(Slot slot, const Wait& wait, std::string& how) const;

  const JobIndex& index_;
  const VerdictOptions options_;
  const std::vector<Slot> vacant_;  // nobody waits for these
  std::vector<Wait> waits_;
};

}  // namespace closeranks::trace

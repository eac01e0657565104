// What the coordinator has to be told of this host's workers, and again on each new connection to it: who was started,
// what became of them, and what was asked of the job (a restarted coordinator's journal does not have it). A spare is
// nobody's business until it takes a slot: what is known of it by then is kept, so that one which dies in that very
// moment is not lost. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "closeranks/ids.h"
#include "membership/messages.h"

namespace closeranks::agent {

class Reports {
 public:
  using Messages = std::vector<membership::FromAgent>;

  // Workers below `known` are in the coordinator's roster from the start.
  explicit Reports(std::uint32_t known) : known_(known) {}

  // Each returns what is to be sent now, in this order.
  Messages started(const membership::Started& message);
  Messages ended(WorkerId worker, const membership::FromAgent& message);  // Fenced, Exited
  Messages asked(const membership::Drain& message);
  Messages asked(const membership::Resize& message);  // in place of an earlier one
  // After AgentHello on a new connection: every Started, then every Fenced and Exited, then what was asked.
  [[nodiscard]] Messages all() const;

 private:
  const std::uint32_t known_;
  mutable std::mutex mutex_;
  std::map<WorkerId, membership::Started> started_;
  std::map<WorkerId, Messages> ended_;
  std::optional<membership::Drain> drain_;
  std::optional<membership::Resize> resize_;
};

}  // namespace closeranks::agent

// Where the coordinator's decisions are kept before they are announced (protocol rule 21). On one host the journal
// lives as long as the agent's process; its file comes with several hosts.
#pragma once

#include <mutex>

#include "closeranks/status.h"
#include "membership/journal.h"

namespace closeranks::coordinator {

class Journal {
 public:
  virtual ~Journal() = default;
  // Returns when the record is kept for good. On an error the decision must not be announced.
  virtual Status append(const membership::JournalRecord& record) = 0;
  // All records so far, oldest first.
  [[nodiscard]] virtual membership::Journal records() const = 0;
};

// Any thread. Outlives the servers that use it, so that a restarted coordinator can continue in the same process.
class MemoryJournal : public Journal {
 public:
  Status append(const membership::JournalRecord& record) override;
  [[nodiscard]] membership::Journal records() const override;

 private:
  mutable std::mutex mutex_;
  membership::Journal records_;
};

}  // namespace closeranks::coordinator

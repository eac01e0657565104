#include "coordinator/journal.h"

namespace closeranks::coordinator {

Status MemoryJournal::append(const membership::JournalRecord& record) {
  const std::lock_guard lock(mutex_);
  records_.push_back(record);
  return {};
}

membership::Journal MemoryJournal::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

}  // namespace closeranks::coordinator

#include "agent/reports.h"

namespace closeranks::agent {

Reports::Messages Reports::started(const membership::Started& message) {
  const std::scoped_lock lock(mutex_);
  started_.insert_or_assign(message.worker, message);
  Messages messages{message};
  if (const auto ended = ended_.find(message.worker); ended != ended_.end()) {
    messages.insert(messages.end(), ended->second.begin(), ended->second.end());
  }
  return messages;
}

Reports::Messages Reports::ended(WorkerId worker, const membership::FromAgent& message) {
  const std::scoped_lock lock(mutex_);
  ended_[worker].push_back(message);
  const bool announced = worker.value() < known_ || started_.contains(worker);
  return announced ? Messages{message} : Messages{};
}

Reports::Messages Reports::asked(const membership::Drain& message) {
  const std::scoped_lock lock(mutex_);
  drain_ = message;
  return {message};
}

Reports::Messages Reports::asked(const membership::Resize& message) {
  const std::scoped_lock lock(mutex_);
  resize_ = message;
  return {message};
}

Reports::Messages Reports::all() const {
  const std::scoped_lock lock(mutex_);
  Messages messages;
  for (const auto& [worker, message] : started_) messages.emplace_back(message);
  for (const auto& [worker, of_worker] : ended_) {
    if (worker.value() >= known_ && !started_.contains(worker)) continue;
    messages.insert(messages.end(), of_worker.begin(), of_worker.end());
  }
  // Last: who has ended already is not asked to leave, and does not count.
  if (drain_) messages.emplace_back(*drain_);
  if (resize_) messages.emplace_back(*resize_);
  return messages;
}

}  // namespace closeranks::agent

#include "simulator/membership_transcript.h"

namespace closeranks::simulator {

using namespace membership;

namespace {

std::string list_of(const std::vector<ExcludedMember>& members) {
  std::string text = "{";
  for (const ExcludedMember& member : members) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(member.worker.value());
  }
  return text + "}";
}

std::string list_of(const std::vector<Departure>& departures) {
  std::string text;
  for (const Departure& departure : departures) {
    text += (text.empty() ? "" : ", ") + std::to_string(departure.worker.value()) + " counts in entries below " +
            std::to_string(departure.last_op);
  }
  return text;
}

std::string list_of(const std::vector<FailedRange>& failed) {
  std::string text;
  for (const FailedRange& range : failed) {
    text += ", entries " + std::to_string(range.from) + ".." + std::to_string(range.until - 1) +
            " fail because of slot " + std::to_string(range.culprit_slot.value());
  }
  return text;
}

std::string number(std::uint64_t value) { return std::to_string(value); }

}  // namespace

std::string describe(ViewNumber view) { return "(" + number(view.term) + ", " + number(view.n) + ")"; }

std::string describe(const FromWorker& message) {
  if (const auto* hello = std::get_if<Hello>(&message)) {
    return "hello, installed " + describe(hello->installed) + ", prepared " + describe(hello->prepared);
  }
  if (const auto* prepared = std::get_if<Prepared>(&message)) {
    std::string text = "prepared " + describe(prepared->view);
    for (const GroupStatus& status : prepared->statuses) {
      text += "; group " + number(status.group.value()) + " entered " + number(status.entered) + " completed " +
              number(status.completed);
      for (const ObservedEntry& entry : status.observed) {
        text += ", worker " + number(entry.worker.value()) + " had entered " + number(entry.entered);
      }
      if (!status.departures.empty()) text += " (" + list_of(status.departures) + ")";
    }
    return text;
  }
  if (const auto* suspicion = std::get_if<Suspicion>(&message)) {
    return "suspects worker " + number(suspicion->suspect.value()) + ": " + suspicion->reason +
           (suspicion->in_op ? ", an op waits" : "");
  }
  if (std::get_if<Goodbye>(&message) != nullptr) return "goodbye";
  return "op repaired";
}

std::string describe(const ToWorker& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    return "welcome to view " + describe(welcome->view) + " of term " + number(welcome->term) + ", " +
           number(welcome->workers.size()) + " addresses";
  }
  if (const auto* propose = std::get_if<Propose>(&message)) {
    return "propose " + describe(propose->view) + " without " + list_of(propose->excluding);
  }
  if (const auto* install = std::get_if<Install>(&message)) {
    std::string text = "install " + describe(install->view) + " without " + list_of(install->excluded);
    for (const GroupResolution& resolution : install->groups) {
      text += "; group " + number(resolution.group.value()) + ": worker " + list_of(resolution.departures) +
              list_of(resolution.failed);
    }
    return text;
  }
  return "evicted: " + std::get<Evicted>(message).reason;
}

std::string describe(const ToAgent& message) {
  const auto& fence = std::get<Fence>(message);
  return "fence worker " + number(fence.worker.value()) + ": " + fence.reason;
}

std::string describe(const JournalRecord& record) {
  if (const auto* started = std::get_if<TermStarted>(&record)) return "term " + number(started->term);
  if (const auto* registered = std::get_if<WorkerRegistered>(&record)) {
    return "worker " + number(registered->address.worker.value()) + " is registered";
  }
  const auto& decided = std::get<ViewDecided>(record);
  return "view " + describe(decided.view) + " without " + list_of(decided.excluded);
}

std::string describe(const Event& event) {
  std::string text(name_of(event.kind));
  if (event.slot) text += " slot " + number(event.slot->value());
  if (event.worker) text += " worker " + number(event.worker->value());
  return text + " view " + describe(event.view) + ": " + event.reason;
}

std::string describe(const FromAgent& message) {
  if (std::get_if<AgentHello>(&message) != nullptr) return "hello";
  if (const auto* suspicion = std::get_if<AgentSuspicion>(&message)) {
    return "suspects worker " + number(suspicion->worker.value()) + ": " + suspicion->reason;
  }
  if (const auto* fenced = std::get_if<Fenced>(&message)) {
    return "fenced worker " + number(fenced->worker.value()) + (fenced->by_itself ? " by itself" : "") +
           (fenced->reaped ? ", reaped" : "") + ": " + fenced->reason;
  }
  const auto& exited = std::get<Exited>(message);
  return "exited worker " + number(exited.worker.value()) + ": " + exited.reason;
}

}  // namespace closeranks::simulator

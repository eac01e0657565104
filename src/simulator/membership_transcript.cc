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

std::string number(std::uint64_t value) { return std::to_string(value); }

std::string list_of(const std::vector<WorkerAddress>& workers) {
  std::string text = "{";
  for (const WorkerAddress& address : workers) {
    text += (text.size() > 1 ? ", " : "") + number(address.worker.value()) + " in slot " + number(address.slot.value());
  }
  return text + "}";
}

std::string list_of(const std::vector<Slot>& slots) {
  std::string text = "{";
  for (const Slot slot : slots) text += (text.size() > 1 ? ", " : "") + number(slot.value());
  return text + "}";
}

std::string of_status(const GroupStatus& status) {
  if (status.alone) return "; group " + number(status.group.value()) + " alone";
  std::string text = "; group " + number(status.group.value()) + " entered " + number(status.entered) + " completed " +
                     number(status.completed);
  if (status.epoch != ViewNumber{}) text += " of epoch " + describe(status.epoch) + " from " + number(status.base);
  for (const ObservedEntry& entry : status.observed) {
    text += ", worker " + number(entry.worker.value()) + " had entered " + number(entry.entered);
  }
  if (!status.departures.empty()) text += " (" + list_of(status.departures) + ")";
  return text;
}

}  // namespace

std::string describe(ViewNumber view) { return "(" + number(view.term) + ", " + number(view.n) + ")"; }

std::string describe(const FromWorker& message) {
  if (const auto* hello = std::get_if<Hello>(&message)) {
    return "hello, installed " + describe(hello->installed) + ", prepared " + describe(hello->prepared);
  }
  if (const auto* prepared = std::get_if<Prepared>(&message)) {
    std::string text = "prepared " + describe(prepared->view);
    for (const GroupStatus& status : prepared->statuses) text += of_status(status);
    return text;
  }
  if (const auto* suspicion = std::get_if<Suspicion>(&message)) {
    return "suspects worker " + number(suspicion->suspect.value()) + ": " + suspicion->reason +
           (suspicion->in_op ? ", an op waits" : "");
  }
  if (const auto* goodbye = std::get_if<Goodbye>(&message)) return goodbye->for_good ? "goodbye for good" : "goodbye";
  if (const auto* request = std::get_if<JoinRequest>(&message)) {
    std::string text = "asks to join";
    for (const GroupIntroduction& group : request->groups) {
      text += "; group " + number(group.group.value()) + " of " + list_of(group.members);
    }
    return text;
  }
  if (const auto* holding = std::get_if<Holding>(&message)) {
    return "holds for " + describe(holding->round) + " in step " + number(holding->step);
  }
  if (const auto* served = std::get_if<StateServed>(&message)) return "state served for " + describe(served->round);
  if (const auto* received = std::get_if<StateReceived>(&message)) {
    return "state received for " + describe(received->round);
  }
  if (const auto* failed = std::get_if<JoinFailed>(&message)) {
    return "join failed in " + describe(failed->round) + ": " + failed->reason;
  }
  if (const auto* progress = std::get_if<Progress>(&message)) {
    return "is in step " + number(progress->step) + (progress->in_session ? " of a session" : "");
  }
  if (const auto* step = std::get_if<FirstStep>(&message)) return "finished its first step " + number(step->step);
  if (const auto* pause = std::get_if<Pause>(&message)) {
    return "pauses for up to " + number(pause->up_to_ms) + " ms: " + pause->what;
  }
  return "op repaired";
}

std::string describe(const ToWorker& message) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    return "welcome to view " + describe(welcome->view) + " of term " + number(welcome->term) + ", " +
           number(welcome->workers.size()) + " addresses" + (welcome->newcomer ? ", as a newcomer" : "");
  }
  if (const auto* propose = std::get_if<Propose>(&message)) {
    return "propose " + describe(propose->view) + " without " + list_of(propose->excluding);
  }
  if (const auto* install = std::get_if<Install>(&message)) {
    std::string text = "install " + describe(install->view) + " without " + list_of(install->excluded);
    if (!install->joined.empty()) text += ", joined by " + list_of(install->joined);
    for (const GroupResolution& resolution : install->groups) {
      text += "; group " + number(resolution.group.value()) + ":";
      if (resolution.epoch != ViewNumber{}) {
        text += " epoch " + describe(resolution.epoch) + " from " + number(resolution.base);
      }
      if (!resolution.departures.empty()) text += " worker " + list_of(resolution.departures);
    }
    return text;
  }
  if (const auto* hold = std::get_if<Hold>(&message)) {
    return "hold for " + describe(hold->round) + ", newcomers " + list_of(hold->newcomers);
  }
  if (const auto* admit = std::get_if<Admit>(&message)) {
    return "admit " + describe(admit->round) + " at the boundary before step " + number(admit->step);
  }
  if (const auto* transfer = std::get_if<Transfer>(&message)) {
    return "transfer for " + describe(transfer->round) + " from " + list_of(transfer->sources) + " to " +
           list_of(transfer->newcomers);
  }
  if (const auto* cancel = std::get_if<Cancel>(&message)) {
    return "cancel " + describe(cancel->round) + ": " + cancel->reason;
  }
  if (std::get_if<JobFinished>(&message) != nullptr) return "the job has finished";
  if (const auto* leave = std::get_if<Leave>(&message)) return "leave: " + leave->reason;
  return "evicted: " + std::get<Evicted>(message).reason;
}

std::string describe(const ToAgent& message) {
  const auto& fence = std::get<Fence>(message);
  return "fence worker " + number(fence.worker.value()) + (fence.keep_stack ? ", its stack first: " : ": ") +
         fence.reason;
}

std::string describe(const JournalRecord& record) {
  if (const auto* started = std::get_if<TermStarted>(&record)) return "term " + number(started->term);
  if (const auto* registered = std::get_if<WorkerRegistered>(&record)) {
    return "worker " + number(registered->address.worker.value()) + " is registered";
  }
  if (const auto* started = std::get_if<WorkerStarted>(&record)) {
    return "worker " + number(started->worker.value()) + " is started for slot " + number(started->slot.value());
  }
  const auto& decided = std::get<ViewDecided>(record);
  std::string members;
  for (const Filled& filled : decided.members) members += (members.empty() ? "" : ", ") + number(filled.worker.value());
  return "view " + describe(decided.view) + " of {" + members + "} without " + list_of(decided.excluded);
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
  if (const auto* started = std::get_if<Started>(&message)) {
    return "starts worker " + number(started->worker.value()) + " for slot " + number(started->slot.value());
  }
  if (const auto* drain = std::get_if<Drain>(&message)) return "drain: " + drain->reason;
  if (const auto* resize = std::get_if<Resize>(&message)) return "resize to " + number(resize->present);
  const auto& exited = std::get<Exited>(message);
  return "exited worker " + number(exited.worker.value()) + ": " + exited.reason;
}

}  // namespace closeranks::simulator

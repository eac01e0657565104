// Deaths, deadlines and failures of a group, and the sentences that tell them.
#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "communicator/group.h"

namespace closeranks::communicator {
namespace {

std::string seconds(Group::Clock::duration duration) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(duration).count());
  return text.data();
}

std::string why_gone(const Peer& peer) {
  if (!peer.excluded_because.empty()) return peer.excluded_because;
  if (peer.left()) return "it has left the job";
  return "its process has ended";
}

}  // namespace

// Ranks that keep an op from going on: not connected yet, not entered, blocks of theirs not distributed, or messages.
std::vector<Rank> Group::waiting_for() const {
  std::vector<bool> awaited(members_.size(), false);
  const auto add = [&awaited](const std::vector<Rank>& ranks) {
    for (const Rank rank : ranks) awaited[rank.value()] = true;
  };
  if (!entries_.empty() || !queue_.empty()) {
    const bool connecting = machine_.next_sequence() == machine_.base();
    const std::vector<Rank> missing = connecting ? members_.not_connected(machine_.present()) : std::vector<Rank>{};
    add(missing.empty() ? machine_.waiting_for(members_) : missing);
  }
  if (!transfers_.empty()) add(point_to_point_.waiting_for());
  awaited[members_.self().value()] = false;
  std::vector<Rank> ranks;
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (awaited[r]) ranks.push_back(Rank{r});
  }
  return ranks;
}

std::vector<const transport::PeerLife*> Group::watched() const {
  std::vector<const transport::PeerLife*> lives;
  if (broken_ || !open()) return lives;
  for (const Rank rank : waiting_for()) {
    const std::shared_ptr<Peer>& peer = members_.peer(rank);
    if (peer && peer->life.has_value() && !lost_[rank.value()]) lives.push_back(&*peer->life);
  }
  return lives;
}

void Group::look_for_deaths() {
  if (broken_ || !open()) return;
  std::vector<Rank> gone;
  for (const Rank rank : waiting_for()) {
    const std::shared_ptr<Peer>& peer = members_.peer(rank);
    if (peer && peer->gone() && !lost_[rank.value()]) gone.push_back(rank);
  }
  if (gone.empty()) return;
  // Whatever they stored before they died is visible now: it may be all that the op needed.
  while (step()) {
  }
  if (broken_) return;
  const std::vector<Rank> still = waiting_for();
  for (const Rank rank : gone) {
    if (std::find(still.begin(), still.end(), rank) != still.end()) lose(rank);
  }
}

void Group::lose(Rank rank) {
  lost_[rank.value()] = true;
  const Peer& peer = *members_.peer(rank);
  record_loss(rank);
  point_to_point_.member_gone(rank, departure_of(members_.peer(rank)), why_gone(peer));
  // The coordinator learns it in any case: it may be the only one to know that the job waits for this worker.
  if (host_.coordinated()) host_.suspect(peer, why_gone(peer));
  if (machine_.policy() == Policy::fail && !(entries_.empty() && queue_.empty())) machine_.peer_lost(rank);
}

// Once for each that is lost: it was seen to go, or another member's decision says so.
void Group::record_loss(Rank rank) {
  const std::shared_ptr<Peer>& peer = members_.peer(rank);
  if (!recorder_.on() || peer == nullptr || recorded_loss_ == peer->worker) return;
  recorded_loss_ = peer->worker;
  const Slot slot = members_.slot(rank);
  const std::string how = why_gone(*peer);
  recorder_.event({.kind = recorder::EventKind::peer_lost,
                   .slots = {&slot, 1},
                   .worker = peer->worker,
                   .detail = how,
                   .use = recorder::NameUse::last_words});
}

PointToPoint::Departure Group::departure_of(const std::shared_ptr<Peer>& peer) {
  return peer && peer->left() ? PointToPoint::Departure::left : PointToPoint::Departure::died;
}

std::vector<Slot> Group::waiting_without_address(Clock::time_point now, Clock::duration patience) const {
  std::vector<Slot> slots;
  if (broken_ || !open()) return slots;
  Clock::time_point issued = Clock::time_point::max();
  entries_.for_each([&](const InFlight& entry) { issued = std::min(issued, entry.operation->issued()); });
  for (const auto& operation : queue_) issued = std::min(issued, operation->issued());
  for (const auto& [id, operation] : transfers_) issued = std::min(issued, operation->issued());
  if (issued > now - patience) return slots;
  for (const Rank rank : waiting_for()) {
    if (!members_.peer(rank)) slots.push_back(members_.slot(rank));
  }
  return slots;
}

bool Group::waits_for_gone() const {
  if (broken_ || !open()) return false;
  const std::vector<Rank> waiting = waiting_for();
  return std::any_of(waiting.begin(), waiting.end(), [this](Rank rank) {
    const std::shared_ptr<Peer>& peer = members_.peer(rank);
    return peer && peer->gone();
  });
}

Group::Clock::time_point Group::next_deadline() const {
  Clock::time_point next = Clock::time_point::max();
  entries_.for_each([&](const InFlight& entry) { next = std::min(next, entry.operation->deadline()); });
  for (const auto& operation : queue_) next = std::min(next, operation->deadline());
  for (const auto& [id, operation] : transfers_) next = std::min(next, operation->deadline());
  return next;
}

void Group::look_for_deadlines(Clock::time_point now) {
  if (broken_) return;
  for (const auto& [id, operation] : transfers_) {
    if (operation->deadline() > now) continue;
    const Status status = timed_out(*operation, now);
    note_timeout(*operation, status);
    point_to_point_.cancel(id, status);
  }
  std::shared_ptr<Operation> expired;
  const auto look_at = [&](const std::shared_ptr<Operation>& operation) {
    if (!expired && operation->deadline() <= now) expired = operation;
  };
  entries_.for_each([&](const InFlight& entry) { look_at(entry.operation); });
  for (const auto& operation : queue_) look_at(operation);
  if (!expired) return;
  const Status status = timed_out(*expired, now);
  note_timeout(*expired, status);
  fail(status);
}

std::vector<Rank> Group::awaited_by_any(const Operation& operation) const {
  const bool transfers = operation.call().kind == OpKind::send || operation.call().kind == OpKind::recv;
  if (!transfers) return waiting_for();
  return operation.call().any_source ? point_to_point_.waiting_for() : std::vector<Rank>{operation.call().root};
}

std::string Group::waiting_text(const Operation& operation, Clock::time_point now) const {
  const std::string op = describe_op(operation);
  const std::string where = " of group '" + options_.name + "'";
  const std::string waited = "; waited " + seconds(now - operation.issued());
  const bool sends = operation.call().kind == OpKind::send;
  const bool transfers = sends || operation.call().kind == OpKind::recv;
  const std::vector<Rank> waiting = awaited_by_any(operation);
  const std::string have = waiting.size() == 1 ? " has" : " have";
  std::string text;
  if (transfers && !waiting.empty()) {
    text = members_.names(waiting) + have + (sends ? " not taken " : " not sent what is missing of ") + op + where +
           waited;
  } else if (waiting.empty()) {
    text = op + where + " is not done" + waited;
  } else if (machine_.next_sequence() == machine_.base()) {
    text = members_.names(waiting) + have + " not joined group '" + options_.name + "', " + op + " waits" + waited;
  } else {
    const std::uint64_t lowest = entries_.empty() ? operation.sequence() : entries_.front().sequence;
    const bool entered =
        std::all_of(waiting.begin(), waiting.end(), [&](Rank rank) { return members_.entered(rank) > lowest; });
    text = members_.names(waiting) + have + (entered ? " not finished its part of " : " not entered ") + op + where +
           waited;
  }
  if (machine_.frozen()) text += " (a change of view is under way: the coordinator has not answered)";
  return text;
}

Status Group::timed_out(const Operation& operation, Clock::time_point now) const {
  const std::vector<Rank> waiting = awaited_by_any(operation);
  const std::string states = members_.states(waiting);
  Status status(Fault::timeout, Move::give_up,
                waiting_text(operation, now) + (states.empty() ? "" : "; " + states) +
                    ". See what that process is doing, or raise the timeout of the group");
  if (!waiting.empty()) {
    status.slot = members_.slot(waiting.front());
    if (const auto& peer = members_.peer(waiting.front())) status.worker = peer->worker;
  }
  status.group = options_.name;
  status.op = describe_op(operation);
  status.sequence = operation.sequence();
  return status;
}

void Group::fail(Status status) {
  if (broken_) return;
  broken_ = std::move(status);
  usual_ = false;
  machine_.fail_all(broken_->fault(), members_.self());
  point_to_point_.fail_all(*broken_);
  // Others may still write into the staging region: it is not used again (broken_ stops entering).
  std::vector<std::shared_ptr<Operation>> ended;
  // After a mismatch nothing of the entry or a later one moves; under policy fail the others' ops fail, too.
  const bool others_go_on = broken_->fault() != Fault::mismatch && broken_->fault() != Fault::peer_lost;
  for (; !entries_.empty(); entries_.pop()) {
    const InFlight& entry = entries_.front();
    abandon(entry, others_go_on);
    if (ended.empty() || ended.back() != entry.operation) ended.push_back(entry.operation);
  }
  for (auto& operation : queue_) {
    if (ended.empty() || ended.back() != operation) ended.push_back(std::move(operation));
  }
  queue_.clear();
  entries_queued_ = 0;
  for (const auto& operation : ended) {
    operation->add_failure(*broken_);
    finish(operation);
  }
  ring_pending_ = true;
}

std::string Group::describe_op(const Operation& operation) const {
  const Call& call = operation.call();
  const std::string text = describe(call.kind, call.dtype, call.reduce, call.root, operation.shape().unit_bytes,
                                    options_.lowest_member_is_root);
  if (call.kind == OpKind::send) return text + " to rank " + std::to_string(call.root.value());
  if (call.kind == OpKind::recv) {
    return text + (call.any_source ? " from any rank" : " from rank " + std::to_string(call.root.value()));
  }
  return text + " #" + std::to_string(operation.sequence());
}

Status Group::disagreement_status(const ExchangeTable::Disagreement& pair, const std::string& op) const {
  Status status(Fault::mismatch, Move::fix_call,
                members_.name(pair.source) + " sends " + std::to_string(pair.sent_bytes) + " bytes to " +
                    members_.name(pair.destination) + ", which expects " + std::to_string(pair.expected_bytes) +
                    " bytes from it: in " + op + " of group '" + options_.name +
                    "' both must name the same number. Nothing was sent; later ops of the group go on");
  status.slot = members_.slot(pair.source);
  status.group = options_.name;
  status.op = op;
  return status;
}

Status Group::status_of(Fault outcome, Rank culprit, const Operation& operation, std::uint64_t sequence) const {
  const std::string op = describe_op(operation);
  Status status;
  if (outcome == Fault::peer_lost) {
    status = peer_lost_status(culprit, op);
  } else if (outcome == Fault::incomplete) {
    status = incomplete_status(culprit, op);
  } else if (outcome == Fault::mismatch) {
    status = mismatch_status(culprit, sequence, op);
  } else if (outcome == Fault::evicted) {
    status = Status(Fault::evicted, Move::give_up,
                    members_.name(members_.self()) + " was excluded from the job: " + op + " of group '" +
                        options_.name + "' goes on without it. This process must end");
  } else {
    status = Status(outcome, Move::give_up, op + " of group '" + options_.name + "' has failed");
  }
  status.slot = members_.slot(culprit);
  if (const auto& peer = members_.peer(culprit)) status.worker = peer->worker;
  status.group = options_.name;
  status.op = op;
  status.sequence = sequence;
  return status;
}

Status Group::peer_lost_status(Rank culprit, const std::string& op) const {
  const std::shared_ptr<Peer>& peer = members_.peer(culprit);
  std::string text = members_.name(culprit) + " is gone";
  if (peer) text += " (" + why_gone(*peer) + ")";
  text += ": " + op + " of group '" + options_.name + "' ";
  if (machine_.policy() == Policy::fail) {
    text += host_.coordinated()
                ? "cannot be finished. Start again without it, or let the group go on without lost members "
                  "(closeranks.set_policy)"
                : "cannot be finished. Start again without it";
  } else {
    text +=
        "needs it. Use closeranks.data_parallel, whose own broadcasts take the lowest present slot as root, or "
        "choose a present root";
  }
  Status status(Fault::peer_lost, Move::repair_group, text);
  status.slot = members_.slot(culprit);
  if (peer) status.worker = peer->worker;
  status.group = options_.name;
  status.op = op;
  return status;
}

Status Group::incomplete_status(Rank culprit, const std::string& op) const {
  const std::shared_ptr<Peer>& peer = members_.peer(culprit);
  return {Fault::incomplete, Move::retry,
          members_.name(culprit) + " is gone" + (peer ? " (" + why_gone(*peer) + ")" : "") + ": " + op + " of group '" +
              options_.name +
              "' lacks its input, and the policy of the group is exact. Repeat the step: the others go on without it"};
}

Status Group::mismatch_status(Rank culprit, std::uint64_t sequence, const std::string& op) const {
  // The culprit against this member; if that is this member itself, against the lowest other one that counts.
  Rank other = members_.self();
  for (std::uint32_t r = 0; culprit == members_.self() && r < members_.size(); ++r) {
    if (Rank{r} != culprit && machine_.contributes(Rank{r}, sequence)) {
      other = Rank{r};
      break;
    }
  }
  const auto fingerprint_of = [&](Rank rank) -> std::uint64_t {
    const transport::Segment* segment = members_.segment(rank);
    return segment == nullptr ? 0 : segment->descriptor_slot(sequence).fingerprint.load(std::memory_order_relaxed);
  };
  const bool fingerprints_differ = fingerprint_of(culprit) != fingerprint_of(other);
  const auto called = [&](Rank rank) -> std::string {
    const transport::Segment* segment = members_.segment(rank);
    if (segment == nullptr) return members_.name(rank) + " made another call";
    const transport::DescriptorSlot& slot = segment->descriptor_slot(sequence);
    const auto relaxed = std::memory_order_relaxed;
    const auto kind = static_cast<OpKind>(slot.kind.load(relaxed));
    const auto dtype = static_cast<DType>(slot.dtype.load(relaxed));
    const auto reduce = static_cast<ReduceOp>(slot.reduce.load(relaxed));
    if (kind > OpKind::recv || dtype > DType::bytes || reduce > ReduceOp::premul_sum) {
      return members_.name(rank) + " made a call of another version";
    }
    std::string text = members_.name(rank) + " called " +
                       describe(kind, dtype, reduce, Rank{slot.root.load(relaxed)}, slot.unit_bytes.load(relaxed),
                                options_.lowest_member_is_root);
    if (fingerprints_differ) {
      std::array<char, 32> number{};
      std::snprintf(number.data(), number.size(), "%016llx", static_cast<unsigned long long>(fingerprint_of(rank)));
      text += std::string(" with contents of fingerprint ") + number.data();
    }
    if (slot.policy.load(relaxed) != static_cast<std::uint8_t>(machine_.policy())) {
      text += " under policy " +
              std::string(name_of(std::min(static_cast<Policy>(slot.policy.load(relaxed)), Policy::exact)));
    }
    return text;
  };
  return {
      Fault::mismatch, Move::fix_call,
      called(culprit) + ", " + called(other) + ": op #" + std::to_string(sequence) + " of group '" + options_.name +
          "' must be the same call on every member" +
          (fingerprints_differ ? " (the same size may hold other things: under DDP, gradients in another order)" : "") +
          "; " + op + " and all later ops of the group fail"};
}

}  // namespace closeranks::communicator

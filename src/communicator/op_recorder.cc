#include "communicator/op_recorder.h"

#include <algorithm>
#include <limits>

#include "communicator/call_shape.h"
#include "communicator/operation.h"

namespace closeranks::communicator {
namespace {

using recorder::Record;
using recorder::RecordKind;

std::uint64_t bytes_of(const std::vector<Buffer>& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes;
  return bytes;
}

std::uint64_t bytes_of(const Call& call) { return std::max(bytes_of(call.inputs), bytes_of(call.outputs)); }

static_assert(std::ratio_equal_v<Operation::Clock::period, std::nano>, "the recorder's clock is the engine's");

std::uint32_t cut_to_32_bits(std::int64_t duration_ns) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(duration_ns, 0, std::numeric_limits<std::uint32_t>::max()));
}

std::uint16_t rank_field(Rank rank) { return static_cast<std::uint16_t>(rank.value()); }

}  // namespace

OpRecorder::OpRecorder(std::shared_ptr<recorder::RingWriter> ring, const GroupOptions& options, GroupKey key, Rank self)
    : self_(self), members_(options.members.size()) {
  if (!recorder::recording || ring == nullptr) return;
  group_ = ring->add_group(options.name, key.value(), options.members, self, options.policy);
  if (group_ != recorder::no_group) ring_ = std::move(ring);
}

recorder::CallFacts OpRecorder::facts_of(const Call& call) {
  recorder::CallFacts facts;
  const bool transfers = call.kind == OpKind::send || (call.kind == OpKind::recv && !call.any_source);
  if (transfers || algorithm::is_rooted(call.kind)) facts.root = rank_field(call.root);
  facts.op = static_cast<std::uint8_t>(call.kind);
  facts.dtype = static_cast<std::uint8_t>(call.dtype);
  if (is_reduction(call.kind)) facts.reduce = static_cast<std::uint8_t>(call.reduce);
  facts.shape = call.shape;
  return facts;
}

void OpRecorder::current(const Operation* oldest) {
  const bool is_entered = oldest != nullptr && oldest->times.entered_ns != 0;
  const std::uint64_t key = oldest == nullptr ? 0 : std::uint64_t{oldest->times.number} * 2 + (is_entered ? 1 : 0);
  if (key == current_) return;
  current_ = key;
  recorder::CurrentOp current;
  if (oldest != nullptr) {
    current.sequence = oldest->sequence();
    current.issued_ns = oldest->times.issued_ns;
    current.entered_ns = oldest->times.entered_ns;
    current.bytes = bytes_of(oldest->call());
    current.call = facts_of(oldest->call());
    current.call.algorithm = oldest->times.algorithm;
    current.number = oldest->times.number;
    current.stack = oldest->call().stack;
    current.present = 1;
  }
  ring_->current(group_, current);
}

void OpRecorder::issued(Operation& operation, std::int64_t at_ns) {
  if (++issued_ == 0) ++issued_;
  operation.times.number = issued_;
  operation.times.issued_ns = at_ns == 0 ? operation.issued().time_since_epoch().count() : at_ns;
  Record record;
  record.at_ns = operation.times.issued_ns;
  record.extra = issued_;
  record.group = group_;
  record.kind = RecordKind::issued;
  const Call& call = operation.call();
  ring_->write(record, recorder::CallBody{operation.sequence(), bytes_of(call), facts_of(call), call.stack});
}

void OpRecorder::entered(Operation& operation, recorder::Algorithm algorithm, std::int64_t at_ns) {
  OpTimes& times = operation.times;
  times.algorithm = static_cast<std::uint8_t>(algorithm);
  times.entered_ns = at_ns == 0 ? recorder::now_ns() : at_ns;
  Record record;
  record.at_ns = times.entered_ns;
  record.extra = times.number;
  record.group = group_;
  record.kind = RecordKind::entered;
  const Call& call = operation.call();
  recorder::CallBody body{operation.sequence(), bytes_of(call), facts_of(call), call.stack};
  body.call.algorithm = times.algorithm;
  ring_->write(record, body);
}

void OpRecorder::ended(const Operation& operation) {
  const OpTimes& times = operation.times;
  if (times.number == 0) return;
  Record record;
  record.at_ns = recorder::now_ns();
  record.extra = times.number;
  record.group = group_;
  if (times.first_byte_ns != 0) {
    record.kind = RecordKind::moved;
    ring_->write(record, recorder::MovedBody{operation.sequence(), times.first_byte_ns, times.last_byte_ns, 0});
  }
  recorder::EndBody body{};
  body.sequence = operation.sequence();
  body.issued_ns = times.issued_ns;
  body.last_arrival = recorder::no_rank;
  body.op = static_cast<std::uint8_t>(operation.call().kind);
  body.algorithm = times.algorithm;
  if (times.all_here_ns != 0) {
    body.last_arrival = rank_field(times.last_arrival);
    if (times.last_arrival != self_) body.waited_ns = times.all_here_ns - times.entered_ns;
  }
  const Status status = operation.status();
  record.kind = status.ok() ? RecordKind::finished : RecordKind::failed;
  record.flags = operation.repaired ? recorder::flag_repaired : 0;
  const bool transfers = operation.call().kind == OpKind::send || operation.call().kind == OpKind::recv;
  if (!status.ok()) {
    body.detail = ring_->text(status.message(), recorder::NameUse::last_words);
    if (status.fault() == Fault::mismatch) {
      event({.kind = recorder::EventKind::mismatch,
             .number = operation.sequence(),
             .detail = status.message(),
             .use = recorder::NameUse::last_words});
    }
  } else if (transfers) {
    transferred_bytes_ += bytes_of(operation.call());
  } else {
    body.detail = contributors_name(operation.who_contributed());
  }
  ring_->write(record, body);
}

recorder::NameId OpRecorder::contributors_name(const std::shared_ptr<const Contributors>& contributors) {
  if (contributors == nullptr || contributors->slots.size() == members_) return recorder::no_name;
  if (named_ != contributors) {
    named_ = contributors;
    named_id_ = ring_->slots(contributors->slots);
  }
  return named_id_;
}

namespace {

recorder::SmallBody body_of(const OpRecorder::Small& small) {
  recorder::SmallBody body{};
  body.sequence = small.sequence;
  body.bytes = static_cast<std::uint32_t>(small.bytes);
  body.shape = small.facts.shape;
  body.root = small.facts.root;
  body.last_arrival = recorder::no_rank;
  body.op = small.facts.op;
  body.dtype = small.facts.dtype;
  body.reduce = small.facts.reduce;
  return body;
}

}  // namespace

void OpRecorder::tell_of_wait(Small& small) {
  small.start_ns = clock_.now();
  Record record;
  record.at_ns = small.start_ns;
  record.group = group_;
  record.kind = RecordKind::waiting;
  ring_->write_small(record, body_of(small));
}

std::int64_t OpRecorder::small_ends(const Small& small, Rank last_arrival,
                                    const std::shared_ptr<const Contributors>& contributors) {
  Record record;
  record.at_ns = clock_.now();
  record.extra = contributors_name(contributors);
  record.group = group_;
  record.kind = RecordKind::small;
  recorder::SmallBody body = body_of(small);
  if (small.start_ns != 0) body.duration_ns = cut_to_32_bits(record.at_ns - small.start_ns);
  if (last_arrival != self_) body.waited_ns = body.duration_ns;
  body.last_arrival = rank_field(last_arrival);
  ring_->write_small(record, body);
  return record.at_ns + ring_->unix_offset_ns();
}

void OpRecorder::event(recorder::EventRecord event) {
  event.group = group_;
  ring_->event(event);
}

void OpRecorder::group_ended() { ring_->end_group(group_); }

}  // namespace closeranks::communicator

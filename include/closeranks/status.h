// Errors are values. A Status says what happened, who and which op it concerns, and what the caller can do about it.
// Nothing in the C++ core throws; the Python edge turns a Status into an exception (bindings/torch).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "closeranks/ids.h"

namespace closeranks {

// The caller's next move.
enum class Move : std::uint8_t {
  none,             // no error
  retry,            // the same call may succeed later
  repair_group,     // the group lost a member: reconfigure it or go on without the member
  fix_call,         // the call itself is wrong; repeating it fails again
  give_up,          // this process cannot go on in the job
  outcome_unknown,  // the op may or may not have taken effect on other members
};

// What happened. The Python exceptions mirror these names.
enum class Fault : std::uint8_t {
  none,
  peer_lost,         // a member is gone: PeerLost
  evicted,           // this worker was excluded: Evicted
  incomplete,        // policy exact: the op lacks the input of a member that was expected: Incomplete
  mismatch,          // members made different calls under the same number: Mismatch
  timeout,           // a deadline passed: Timeout
  closed,            // the group or engine was shut down: Closed
  invalid_argument,  // InvalidCall
  unsupported,       // Unsupported
  refused,           // wrong token, version or frame on a connection: Refused
  system,            // the operating system said no (errno in the message): SystemFault
};

// Copyable, cheap when ok. `message` is one sentence naming who, where, which op and what to do;
// the fields repeat its facts for programs.
class [[nodiscard]] Status {
 public:
  // ok. Written out: a defaulted one would have `Status{}` cleared before it is made, at each small op's end.
  Status() {}  // NOLINT(modernize-use-equals-default)
  Status(Fault fault, Move move, std::string message) : fault_(fault), move_(move), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return fault_ == Fault::none; }
  [[nodiscard]] Fault fault() const { return fault_; }
  [[nodiscard]] Move move() const { return move_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // The same in other words: everything else is kept.
  [[nodiscard]] Status with_message(std::string message) const {
    Status other = *this;
    other.message_ = std::move(message);
    return other;
  }

  std::optional<Slot> slot;
  std::optional<WorkerId> worker;
  std::string host;
  std::string group;
  std::string op;
  std::optional<std::uint64_t> sequence;
  std::optional<ViewNumber> view;

 private:
  Fault fault_ = Fault::none;
  Move move_ = Move::none;
  std::string message_;
};

// A T or the Status that says why there is none. Precondition of value(): ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}           // NOLINT: implicit on purpose
  Result(Status failure) : content_(std::move(failure)) {}  // NOLINT: implicit on purpose

  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(content_); }
  [[nodiscard]] T& value() { return std::get<T>(content_); }
  [[nodiscard]] const T& value() const { return std::get<T>(content_); }
  [[nodiscard]] Status status() const { return ok() ? Status{} : std::get<Status>(content_); }

 private:
  std::variant<T, Status> content_;
};

}  // namespace closeranks

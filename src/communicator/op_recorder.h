// What a group tells the flight recorder: its ops from issue to end, its words, and what befalls it. Nothing here
// blocks or allocates on the way of an op that is as the one before. Under the drive lock.
#pragma once

#include <cstdint>
#include <memory>

#include "algorithm/plan.h"
#include "closeranks/communicator.h"
#include "communicator/op_times.h"
#include "recorder/recording.h"
#include "recorder/ring_writer.h"

namespace closeranks::communicator {

class Operation;

class OpRecorder {
 public:
  // `ring`: nullptr: nothing is recorded.
  OpRecorder(std::shared_ptr<recorder::RingWriter> ring, const GroupOptions& options, GroupKey key, Rank self);

  // Precondition of everything below. A group that found no place in the file is not recorded.
  [[nodiscard]] bool on() const { return recorder::recording && ring_ != nullptr; }
  [[nodiscard]] recorder::RingWriter& ring() const { return *ring_; }
  [[nodiscard]] std::uint16_t group() const { return group_; }

  // ---- words ----------------------------------------------------------------------------------------------------
  void words(std::uint64_t entered, std::uint64_t completed) {
    ring_->entered(group_, entered);
    ring_->completed(group_, completed);
  }
  void entered_word(std::uint64_t entries) { ring_->entered(group_, entries); }
  void completed_word(std::uint64_t entries) { ring_->completed(group_, entries); }
  void policy(Policy policy) { ring_->set_policy(group_, policy); }
  // The oldest op that is not over; nullptr: there is none.
  void current(const Operation* oldest);

  // ---- an op that takes its time --------------------------------------------------------------------------------
  // `at_ns` 0: as the operation has it.
  void issued(Operation& operation, std::int64_t at_ns = 0);
  // Its first entry; `at_ns` 0: now.
  void entered(Operation& operation, recorder::Algorithm algorithm, std::int64_t at_ns = 0);
  static void moved(OpTimes& times) {
    times.last_byte_ns = recorder::now_ns();
    if (times.first_byte_ns == 0) times.first_byte_ns = times.last_byte_ns;
  }
  void ended(const Operation& operation);

  // ---- a small one, in one go -----------------------------------------------------------------------------------
  // What does not change from one call to the next but the shape.
  static recorder::CallFacts facts_of(const Call& call);
  struct Small {
    std::int64_t start_ns = 0;  // 0: it has not waited for anybody worth the telling
    std::uint32_t looks = 0;    // in vain
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    recorder::CallFacts facts;
  };
  // It is entered, and somebody is not; looks for him again and again. A wait begins when it has looked some times:
  // where cores are shared every op waits a little, and would pay for a record that its end takes the place of at once.
  void small_waits(Small& small) {
    if (++small.looks == looks_before_told) tell_of_wait(small);
  }
  // Returns its end, in unix time.
  std::int64_t small_ends(const Small& small, Rank last_arrival,
                          const std::shared_ptr<const Contributors>& contributors);

  // ---- events ---------------------------------------------------------------------------------------------------
  // Of this group.
  void event(recorder::EventRecord event);
  void group_ended();
  // Bytes of the sends and recvs that have ended well.
  [[nodiscard]] std::uint64_t transferred_bytes() const { return transferred_bytes_; }

 private:
  static constexpr std::uint32_t looks_before_told = 8;
  void tell_of_wait(Small& small);
  recorder::NameId contributors_name(const std::shared_ptr<const Contributors>& contributors);

  std::shared_ptr<recorder::RingWriter> ring_;
  std::uint16_t group_ = recorder::no_group;
  recorder::QuickClock clock_;
  Rank self_;
  std::size_t members_ = 0;
  std::uint64_t transferred_bytes_ = 0;
  std::uint32_t issued_ = 0;   // ops, numbered from 1
  std::uint64_t current_ = 0;  // the word as it was written last: number * 2 + whether it was entered; 0: none or small
  std::shared_ptr<const Contributors> named_;  // those that contributors_name() was asked for last
  recorder::NameId named_id_ = recorder::no_name;
};

}  // namespace closeranks::communicator

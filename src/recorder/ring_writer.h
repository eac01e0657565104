// Writes a recorder's file: one per worker, one per agent. Every function may be called from any thread, at any time,
// with no lock held or needed, where not said otherwise; none blocks, and but for open() none allocates. What was
// written before a SIGKILL is in the file, which the kernel keeps: no cooperation of the dying process is needed.
//
// A fork child writes into its parent's file, under its own thread ids.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "closeranks/status.h"
#include "recorder/quick_clock.h"
#include "recorder/ring_layout.h"

namespace closeranks::recorder {

inline constexpr std::uint64_t default_ring_bytes = std::uint64_t{4} * 1024 * 1024;
inline constexpr std::uint64_t least_ring_bytes = std::uint64_t{128} * 1024;
inline constexpr std::uint64_t most_ring_bytes = std::uint64_t{64} * 1024 * 1024;

struct RingOptions {
  std::string directory;                     // is made if it is not there
  std::uint64_t bytes = default_ring_bytes;  // at most that; brought within least_ and most_ring_bytes
  Role role = Role::worker;
  std::string job;
  std::optional<Slot> slot;
  std::optional<WorkerId> worker;
  std::uint32_t slots_in_job = 0;
};

// Who may fill the table of names how far: what is written once at the end finds room whatever was written before.
enum class NameUse : std::uint8_t {
  free_text,  // a user's marks: half of it
  ordinary,   // three quarters
  last_words  // all
};

struct EventRecord {
  EventKind kind = EventKind::mark;
  std::uint16_t group = no_group;
  std::uint64_t number = 0;
  std::int64_t since_ns = 0;
  std::span<const Slot> slots{};
  std::optional<WorkerId> worker{};
  std::string_view detail{};
  std::string_view stack{};
  NameUse use = NameUse::ordinary;
};

class RingWriter {
 public:
  // A fresh file, preallocated: of `bytes`, or of less where the disk has no room for it. Fault::system when there is
  // none for the least one either, or the directory cannot be written: the caller says so once and goes on without.
  static Result<std::shared_ptr<RingWriter>> open(const RingOptions& options);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Its host's clock + this = unix time, as it was at the start.
  [[nodiscard]] std::int64_t unix_offset_ns() const { return unix_offset_ns_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // What it would have been on a disk with room for it.
  [[nodiscard]] std::uint64_t wanted_bytes() const { return wanted_bytes_; }

  // The number of a name that is or becomes part of the table; lost_name if it is full. Longer ones are cut.
  NameId text(std::string_view text, NameUse use = NameUse::ordinary);
  NameId slots(std::span<const Slot> slots);

  // no_group if the table is full: ops of such a group are not recorded.
  std::uint16_t add_group(std::string_view name, std::uint64_t key, std::span<const Slot> members, Rank self,
                          Policy policy);
  // Precondition of the following: not no_group.
  void end_group(std::uint16_t group);
  void set_policy(std::uint16_t group, Policy policy) { entry(group).policy.store(static_cast<std::uint8_t>(policy)); }
  // The group's words. One thread at a time per group.
  void entered(std::uint16_t group, std::uint64_t entries) {
    entry(group).entered.store(entries, std::memory_order_release);
  }
  void completed(std::uint16_t group, std::uint64_t entries) {
    entry(group).completed.store(entries, std::memory_order_release);
  }
  void current(std::uint16_t group, CurrentOp op) {
    op.thread = thread();
    store_sealed(&entry(group).current, words_of(op));
  }

  // Of an op: one thread at a time, as ops have it anyway (a locked instruction would wait for the stores that the
  // others wait for). `record`: all but stamp, thread and check. at_ns 0: now.
  template <class Body>
  void write(Record record, const Body& body) {
    const std::uint64_t number = next_record_++;
    put(records_[number & record_mask_], number, record, body);
  }
  // Of a small op, cheaper: kind `waiting`, then in the same place `small`. No other page of the file is touched: on a
  // virtual machine, with another process's turn before, finding one costs more than all the rest. Precondition: at_ns
  // is set.
  void write_small(Record record, const SmallBody& body) {
    record.thread = thread();
    record.stamp = next_record_ + 1;
    store_sealed(&records_[next_record_ & record_mask_], words_of(record, body));
    if (record.kind != RecordKind::small) return;
    ++next_record_;
    // Stores become visible in their order: the next op's would wait for a line that is fetched when it is written.
    __builtin_prefetch(&records_[(next_record_ + 1) & record_mask_], 1);
  }
  void event(const EventRecord& event);

  // This process ends in order. Once; `how` as EventKind::ended's detail.
  void end(std::string_view how);
  void set_clock_offset(std::int64_t offset_ns) {
    header_->clock_offset_ns.store(offset_ns, std::memory_order_relaxed);
  }

 private:
  RingWriter(std::string path, std::byte* data, std::uint64_t bytes);
  // Texts seen before, found again without reading the file's table from its start. A power of 2.
  static constexpr std::size_t known_names = 8192;

  static std::uint32_t thread() {
    static thread_local std::uint32_t id = 0;
    return id != 0 ? id : id = thread_id();
  }
  static std::uint32_t thread_id();
  template <class Body>
  static void put(Record& place, std::uint64_t number, Record record, const Body& body) {
    static_assert(sizeof(Body) == sizeof(record.body));
    std::memcpy(record.body.data(), &body, sizeof(body));
    if (record.at_ns == 0) record.at_ns = now_ns();
    record.thread = thread();
    record.stamp = number + 1;
    record.check = block_check(&record);
    std::memcpy(&place, &record, sizeof(record));
  }
  [[nodiscard]] GroupEntry& entry(std::uint16_t group) const { return groups_[group]; }
  NameId name(NameKind kind, std::string_view bytes, NameUse use);
  [[nodiscard]] bool is(NameId id, std::uint32_t check, NameKind kind, std::string_view bytes) const;
  void lay_out(const RingOptions& options);

  const std::string path_;
  std::byte* const data_;
  const std::uint64_t bytes_;
  std::uint64_t wanted_bytes_ = 0;
  std::int64_t unix_offset_ns_ = 0;
  FileHeader* header_ = nullptr;
  std::byte* names_ = nullptr;
  std::uint64_t names_bytes_ = 0;
  GroupEntry* groups_ = nullptr;
  std::uint32_t group_count_ = 0;
  Record* records_ = nullptr;
  std::uint64_t record_mask_ = 0;
  std::uint64_t next_record_ = 0;
  Record* events_ = nullptr;
  std::uint64_t event_mask_ = 0;
  std::array<std::atomic<NameId>, known_names> known_{};
};

}  // namespace closeranks::recorder

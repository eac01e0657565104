#include "transport/wait_board.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transport/fixed_text.h"

namespace closeranks::transport {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
// A writer needs well under a microsecond: who finds him at it this often looks again later.
constexpr int read_attempts = 4;

template <std::size_t words>
void write_text(std::array<std::atomic<std::uint64_t>, words>& field, const std::string& text) {
  std::array<char, words * 8> bytes;
  write_fixed_text(bytes, text);
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * 8, 8);
    field[i].store(word, relaxed);
  }
}

template <std::size_t words>
std::string read_text(const std::array<std::atomic<std::uint64_t>, words>& field) {
  std::array<char, words * 8> bytes;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = field[i].load(relaxed);
    std::memcpy(bytes.data() + i * 8, &word, 8);
  }
  return printable_text(read_fixed_text(bytes));
}

void write(GroupEpochWords& words, const GroupEpoch& group) {
  words.group.store(group.group.value(), relaxed);
  words.epoch.store(group.epoch, relaxed);
}

void write(WaitKeyWords& words, const WaitKey& key) {
  words.worker.store(key.worker.value(), relaxed);
  words.wait.store(key.wait, relaxed);
  words.record.store(key.record, relaxed);
}

void write(CircleThreadWords& words, const CircleThread& thread) {
  write(words.key, thread.key);
  write(words.group, thread.group);
}

// As many as fit.
template <class Words, std::size_t size, class Value>
void write_list(std::array<Words, size>& field, std::atomic<std::uint32_t>& count, const std::vector<Value>& values) {
  const std::size_t written = std::min(values.size(), field.size());
  count.store(static_cast<std::uint32_t>(written), relaxed);
  for (std::size_t i = 0; i < written; ++i) write(field[i], values[i]);
}

GroupEpoch read(const GroupEpochWords& words) {
  return {GroupKey(words.group.load(relaxed)), words.epoch.load(relaxed)};
}

// nullopt: a record that no board has.
std::optional<WaitKey> read(const WaitKeyWords& words) {
  const std::uint64_t record = words.record.load(relaxed);
  if (record >= wait_records) return std::nullopt;
  return WaitKey{WorkerId(words.worker.load(relaxed)), words.wait.load(relaxed), static_cast<std::uint32_t>(record)};
}

std::optional<CircleThread> read(const CircleThreadWords& words) {
  const std::optional<WaitKey> key = read(words.key);
  if (!key) return std::nullopt;
  return CircleThread{*key, read(words.group)};
}

// False: a count or a record that no board has.
template <class Words, std::size_t size, class Value>
bool read_list(const std::array<Words, size>& field, const std::atomic<std::uint32_t>& count,
               std::vector<Value>& values) {
  const std::uint32_t written = count.load(relaxed);
  if (written > field.size()) return false;
  for (std::uint32_t i = 0; i < written; ++i) {
    const std::optional<Value> value = read(field[i]);
    if (!value) return false;
    values.push_back(*value);
  }
  return true;
}

// What `copy` returns, if the owner did not write meanwhile.
template <class Copy>
auto read_whole(const std::atomic<std::uint64_t>& sequence, Copy copy) -> decltype(copy()) {
  for (int attempt = 0; attempt < read_attempts; ++attempt) {
    const std::uint64_t before = sequence.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;
    if (before % 2 == 1) continue;
    auto copied = copy();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (sequence.load(relaxed) == before) return copied;
  }
  return std::nullopt;
}

template <class Store>
void write_whole(std::atomic<std::uint64_t>& sequence, std::uint64_t& own, Store store) {
  sequence.store(++own, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  store();
  sequence.store(++own, std::memory_order_release);
}

}  // namespace

std::optional<WaitRecord> WaitBoard::record(std::uint32_t record) const {
  if (record >= wait_records) return std::nullopt;
  const WaitRecordWords& words = words_->records[record];
  return read_whole(words.sequence, [&words]() -> std::optional<WaitRecord> {
    WaitRecord found;
    found.wait = words.wait.load(relaxed);
    const std::uint64_t thread = words.thread.load(relaxed);
    if (found.wait == 0 || thread == 0 || thread > UINT32_MAX) return std::nullopt;
    found.thread = static_cast<std::uint32_t>(thread);
    found.any = words.any.load(relaxed) != 0;
    found.group = read(words.group);
    if (!read_list(words.awaited, words.awaited_count, found.awaited)) return std::nullopt;
    found.call = read_text(words.call);
    return found;
  });
}

std::vector<WaitBoard::Blocked> WaitBoard::blocked() const {
  std::vector<Blocked> threads;
  for (std::uint32_t i = 0; i < wait_records; ++i) {
    const WaitRecordWords& words = words_->records[i];
    if (words.wait.load(relaxed) == 0) continue;
    const auto one = read_whole(words.sequence, [&words, i]() -> std::optional<Blocked> {
      return Blocked{static_cast<std::uint32_t>(words.thread.load(relaxed)), i, words.wait.load(relaxed),
                     words.awaited_count.load(relaxed) > 0};
    });
    if (!one || one->wait == 0 || one->thread == 0) continue;
    const auto same = std::find_if(threads.begin(), threads.end(),
                                   [&one](const Blocked& other) { return other.thread == one->thread; });
    if (same == threads.end()) {
      threads.push_back(*one);
    } else if (same->wait < one->wait) {
      *same = *one;
    }
  }
  return threads;
}

bool WaitBoard::lasts(std::uint32_t record, std::uint64_t wait) const {
  return record < wait_records && wait != 0 && words_->records[record].wait.load(std::memory_order_acquire) == wait;
}

std::vector<WaitVerdict> WaitBoard::verdicts() const {
  std::vector<WaitVerdict> found;
  for (const WaitVerdictWords& words : words_->verdicts) {
    auto one = read_whole(words.sequence, [&words]() -> std::optional<WaitVerdict> {
      WaitVerdict verdict;
      verdict.group = read(words.group);
      verdict.place = words.place.load(relaxed);
      if (!read_list(words.circle, words.circle_count, verdict.circle)) return std::nullopt;
      verdict.sentence = read_text(words.sentence);
      return verdict;
    });
    if (one) found.push_back(std::move(*one));
  }
  return found;
}

bool WaitBoard::has_verdicts() const { return words_->verdicts[0].sequence.load(relaxed) != 0; }

std::optional<OwnWaitBoard::Taken> OwnWaitBoard::take(std::uint32_t thread) {
  CR_ASSERT(thread != 0);
  for (std::uint32_t i = 0; i < wait_records; ++i) {
    if (taken_[i] != 0) continue;
    WaitRecordWords& words = words_->records[i];
    const Taken taken{i, ++waits_};
    taken_[i] = taken.wait;
    write_whole(words.sequence, record_sequences_[i], [&] {
      words.thread.store(thread, relaxed);
      words.any.store(0, relaxed);
      words.awaited_count.store(0, relaxed);
      words.call[0].store(0, relaxed);
      words.wait.store(taken.wait, std::memory_order_release);
    });
    return taken;
  }
  return std::nullopt;
}

void OwnWaitBoard::tell(const Taken& taken, const WaitRecord& what) {
  CR_ASSERT(taken_.at(taken.record) == taken.wait);
  WaitRecordWords& words = words_->records[taken.record];
  write_whole(words.sequence, record_sequences_[taken.record], [&] {
    words.any.store(what.any ? 1 : 0, relaxed);
    write(words.group, what.group);
    write_list(words.awaited, words.awaited_count, what.awaited);
    write_text(words.call, what.call);
  });
}

void OwnWaitBoard::release(const Taken& taken) {
  CR_ASSERT(taken_.at(taken.record) == taken.wait);
  taken_[taken.record] = 0;
  WaitRecordWords& words = words_->records[taken.record];
  write_whole(words.sequence, record_sequences_[taken.record], [&] {
    words.wait.store(0, relaxed);
    words.thread.store(0, relaxed);
  });
}

void OwnWaitBoard::declare(const WaitVerdict& verdict) {
  const std::uint32_t place = declared_++ % wait_verdicts;
  WaitVerdictWords& words = words_->verdicts[place];
  write_whole(words.sequence, verdict_sequences_[place], [&] {
    write(words.group, verdict.group);
    words.place.store(verdict.place, relaxed);
    write_list(words.circle, words.circle_count, verdict.circle);
    write_text(words.sentence, verdict.sentence);
  });
}

}  // namespace closeranks::transport

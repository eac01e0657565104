#include "transport/wait_board.h"

#include <algorithm>
#include <cstring>
#include <span>
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

void write_keys(std::span<WaitKeyWords> field, std::atomic<std::uint32_t>& count, const std::vector<WaitKey>& keys) {
  const std::size_t written = std::min(keys.size(), field.size());
  count.store(static_cast<std::uint32_t>(written), relaxed);
  for (std::size_t i = 0; i < written; ++i) {
    field[i].worker.store(keys[i].worker.value(), relaxed);
    field[i].wait.store(keys[i].wait, relaxed);
    field[i].record.store(keys[i].record, relaxed);
  }
}

// False: a count or a record that no board has.
bool read_keys(std::span<const WaitKeyWords> field, const std::atomic<std::uint32_t>& count,
               std::vector<WaitKey>& keys) {
  const std::uint32_t written = count.load(relaxed);
  if (written > field.size()) return false;
  for (const WaitKeyWords& words : field.first(written)) {
    const std::uint64_t record = words.record.load(relaxed);
    if (record >= wait_records) return false;
    keys.push_back(
        {WorkerId(words.worker.load(relaxed)), words.wait.load(relaxed), static_cast<std::uint32_t>(record)});
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
    if (!read_keys(words.awaited, words.awaited_count, found.awaited)) return std::nullopt;
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
      verdict.group = GroupKey(words.group.load(relaxed));
      verdict.epoch = words.epoch.load(relaxed);
      verdict.place = words.place.load(relaxed);
      if (!read_keys(words.circle, words.circle_count, verdict.circle)) return std::nullopt;
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

void OwnWaitBoard::tell(const Taken& taken, bool any, const std::vector<WaitKey>& awaited, const std::string& call) {
  CR_ASSERT(taken_.at(taken.record) == taken.wait);
  WaitRecordWords& words = words_->records[taken.record];
  write_whole(words.sequence, record_sequences_[taken.record], [&] {
    words.any.store(any ? 1 : 0, relaxed);
    write_keys(words.awaited, words.awaited_count, awaited);
    write_text(words.call, call);
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
    words.group.store(verdict.group.value(), relaxed);
    words.epoch.store(verdict.epoch, relaxed);
    words.place.store(verdict.place, relaxed);
    write_keys(words.circle, words.circle_count, verdict.circle);
    write_text(words.sentence, verdict.sentence);
  });
}

}  // namespace closeranks::transport

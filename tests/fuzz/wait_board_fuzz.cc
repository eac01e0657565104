// A wait board with anything on it: what is read of it stays within its bounds, and its owner goes on. The first two
// bytes say at which word of an honest board the rest of the input lies.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "require.h"
#include "transport/wait_board.h"

using namespace closeranks;
using namespace closeranks::transport;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto words = std::make_unique<WaitBoardWords>();
  OwnWaitBoard own(words.get());
  const WaitKey other{WorkerId(1), 2, 3};
  const auto taken = own.take(4711);
  FUZZ_REQUIRE(taken.has_value());
  WaitRecord told;
  told.group = {GroupKey(5), 1};
  told.awaited = {other};
  told.call = "barrier #0 of group 'tp'";
  own.tell(*taken, told);
  own.declare({told.group, 0, {{other, told.group}}, "rank 0 waits"});

  const std::size_t start = (data[0] | data[1] << 8) % (sizeof(WaitBoardWords) / 8) * 8;
  const std::size_t bytes = std::min(size - 2, sizeof(WaitBoardWords) - start);
  std::memcpy(reinterpret_cast<std::byte*>(words.get()) + start, data + 2, bytes);

  const WaitBoard board(words.get());
  for (std::uint32_t i = 0; i <= wait_records; ++i) {
    const auto record = board.record(i);
    if (!record) continue;
    FUZZ_REQUIRE(i < wait_records && record->wait != 0 && record->thread != 0);
    FUZZ_REQUIRE(board.lasts(i, record->wait));
    FUZZ_REQUIRE(record->awaited.size() <= awaited_threads && record->call.size() <= call_text_bytes);
    for (const WaitKey& key : record->awaited) FUZZ_REQUIRE(key.record < wait_records);
  }
  const auto blocked = board.blocked();
  FUZZ_REQUIRE(blocked.size() <= wait_records);
  for (const auto& thread : blocked) {
    FUZZ_REQUIRE(thread.record < wait_records && thread.thread != 0 && thread.wait != 0);
    const auto same = [&thread](const auto& one) { return one.thread == thread.thread; };
    FUZZ_REQUIRE(std::count_if(blocked.begin(), blocked.end(), same) == 1);
  }
  for (const WaitVerdict& verdict : board.verdicts()) {
    FUZZ_REQUIRE(verdict.circle.size() <= circle_threads && verdict.sentence.size() <= sentence_bytes);
    for (const CircleThread& thread : verdict.circle) FUZZ_REQUIRE(thread.key.record < wait_records);
  }

  own.tell(*taken, told);
  own.release(*taken);
  const auto again = own.take(1);
  FUZZ_REQUIRE(again.has_value() && again->record == taken->record);
  FUZZ_REQUIRE(board.record(again->record).has_value());
  return 0;
}

// A recorder's file with anything in it. First byte 'R': the rest of the input is the file. Otherwise the rest are
// patches of an honest file, a small one: 3 bytes where (from the start of its header, of a table or of the records, by
// the top two bits), 1 byte how many, those bytes. With first byte 'C' the checks are set right afterwards, so that
// what they guard is read, too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "recorder/ring_layout.h"
#include "recorder/ring_reader.h"
#include "recorder/ring_writer.h"
#include "require.h"

using namespace closeranks;
using namespace closeranks::recorder;

namespace {

using Bytes = std::vector<std::byte>;

Bytes honest_file() {
  std::string folder = std::filesystem::temp_directory_path() / "closeranks-fuzz-XXXXXX";
  FUZZ_REQUIRE(::mkdtemp(folder.data()) != nullptr);
  RingOptions options;
  options.directory = folder;
  options.bytes = least_ring_bytes;
  options.job = "job";
  options.slot = Slot(1);
  options.worker = WorkerId(1);
  auto opened = RingWriter::open(options);
  FUZZ_REQUIRE(opened.ok());
  RingWriter& ring = *opened.value();
  const std::vector<Slot> members{Slot(0), Slot(1)};
  const std::uint16_t group = ring.add_group("world", 7, members, Rank(1), Policy::repair);
  const CallFacts call{.shape = ring.text("[2]"), .op = 1};
  Record record;
  record.group = group;
  record.extra = 1;
  for (const RecordKind kind : {RecordKind::issued, RecordKind::entered}) {
    record.kind = kind;
    ring.write(record, CallBody{0, 8, call, 0});
  }
  record.kind = RecordKind::moved;
  ring.write(record, MovedBody{0, now_ns(), now_ns(), 0});
  record.kind = RecordKind::failed;
  ring.write(record, EndBody{0, now_ns(), 5, ring.text("it failed"), 0, 1, 2});
  record.kind = RecordKind::small;
  record.extra = ring.slots(members);
  ring.write(record, SmallBody{1, 8, 300, 200, call.shape, no_rank, 0, 1, 11, 0, 0});
  ring.event({.kind = EventKind::view, .number = 2, .slots = members, .detail = "slot 3 is out", .stack = "a stack"});
  CurrentOp current;
  current.sequence = 2;
  current.issued_ns = now_ns();
  current.call = call;
  current.number = 3;
  current.present = 1;
  ring.current(group, current);
  std::ifstream file(ring.path(), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove_all(folder);
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

void set_checks(Bytes& file, const FileHeader& layout) {
  for (std::uint64_t i = 0; i < 64; ++i) {
    const std::uint64_t record_index = i < 32 ? i : layout.records + i - 32;  // of the ops, of the events
    auto* record = file.data() + layout.records_offset + record_index * sizeof(Record);
    const std::uint32_t check = block_check(record);
    std::memcpy(record + offsetof(Record, check), &check, sizeof(check));
  }
  for (std::uint32_t i = 0; i < layout.groups; ++i) {
    auto* current = file.data() + layout.groups_offset + i * sizeof(GroupEntry) + offsetof(GroupEntry, current);
    const std::uint32_t check = block_check(current);
    std::memcpy(current + offsetof(CurrentOp, check), &check, sizeof(check));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const Bytes honest = honest_file();
  const auto& layout = *reinterpret_cast<const FileHeader*>(honest.data());
  Bytes file;
  if (data[0] == 'R') {
    file.resize(size - 1);
    if (size > 1) std::memcpy(file.data(), data + 1, size - 1);
  } else {
    file = honest;
    const std::uint64_t starts[] = {0, layout.groups_offset, layout.names_offset, layout.records_offset};
    for (std::size_t at = 1; at + 4 < size;) {
      const std::uint32_t where = data[at] | data[at + 1] << 8 | data[at + 2] << 16;
      const std::size_t start = (starts[where >> 22] + (where & 0x3fffff)) % file.size();
      const std::size_t bytes = std::min<std::size_t>({data[at + 3], size - at - 4, file.size() - start});
      std::memcpy(file.data() + start, data + at + 4, bytes);
      at += 4 + data[at + 3];
    }
    if (data[0] == 'C') set_checks(file, layout);
  }
  const auto read = read_ring(file, "file");
  if (!read.ok()) {
    FUZZ_REQUIRE(!read.status().message().empty());
    return 0;
  }
  const WorkerTrace& trace = read.value();
  FUZZ_REQUIRE(trace.ops.size() + trace.events.size() <= file.size() / sizeof(Record));
  FUZZ_REQUIRE(trace.groups.size() <= file.size() / sizeof(GroupEntry) + 1 || trace.groups.size() < no_group);
  for (const OpTrace& op : trace.ops) FUZZ_REQUIRE(op.group < trace.groups.size());
  for (const Event& event : trace.events) FUZZ_REQUIRE(!event.group || *event.group < trace.groups.size());
  for (const GroupTrace& group : trace.groups)
    FUZZ_REQUIRE(!group.current || group.current->group < trace.groups.size());
  return 0;
}

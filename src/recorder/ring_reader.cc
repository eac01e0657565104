#include "recorder/ring_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <map>
#include <utility>

#include "base/file_descriptor.h"
#include "base/system_error.h"
#include "recorder/ring_layout.h"
#include "recorder/ring_text.h"

namespace closeranks::recorder {
namespace {

constexpr std::uint64_t most_file_bytes = std::uint64_t{128} * 1024 * 1024;
constexpr std::uint64_t most_records = std::uint64_t{1} << 20;
// A name may be named by every record of a forged file.
constexpr std::uint64_t most_text_bytes = std::uint64_t{64} * 1024 * 1024;
constexpr std::size_t most_short_text_bytes = 256;

const char* algorithm_name(std::uint8_t algorithm) {
  switch (static_cast<Algorithm>(algorithm)) {
    case Algorithm::in_line:
      return "inline";
    case Algorithm::share:
      return "share";
    case Algorithm::take:
      return "take";
    case Algorithm::messages:
      return "messages";
    case Algorithm::alone:
      return "alone";
    case Algorithm::unknown:
      break;
  }
  return "";
}

template <class T>
T load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(value));
  return value;
}

template <std::size_t Size>
std::string text_of(const std::array<char, Size>& field) {
  return printable(std::string_view(field.data(), ::strnlen(field.data(), Size)));
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file, std::uint64_t newest)
      : bytes_(bytes), newest_(newest) {
    trace_.file = file;
  }
  Result<WorkerTrace> read();

 private:
  Status read_header();
  void read_groups();
  void read_records(std::uint64_t offset, std::uint64_t records);
  void read_record(const Record& record);
  void read_current(std::uint16_t index, const CurrentOp& current);
  void finish();

  [[nodiscard]] std::span<const std::byte> part(std::uint64_t offset, std::uint64_t bytes) const;
  [[nodiscard]] std::optional<std::string_view> name(NameId id, NameKind kind);
  std::string text(NameId id, std::size_t most = name_max_bytes);
  std::vector<Slot> slots(NameId id);
  [[nodiscard]] std::int64_t job_time(std::int64_t host_ns);
  std::optional<std::uint32_t> group_of(std::uint16_t index);
  [[nodiscard]] std::optional<Slot> slot_of(std::uint32_t group, std::uint16_t rank) const;
  OpCall call_of(const CallFacts& facts, std::uint64_t bytes);
  OpTrace* op_of(const Record& record, std::uint64_t sequence);
  void end_op(const Record& record);
  void add_small(const Record& record);
  void add_event(const Record& record);

  std::span<const std::byte> bytes_;
  const std::uint64_t newest_;
  WorkerTrace trace_;
  // Of the header, once found sound.
  std::uint64_t names_offset_ = 0, names_bytes_ = 0, groups_offset_ = 0, records_offset_ = 0;
  std::uint32_t groups_ = 0;
  std::uint64_t records_ = 0, event_records_ = 0;
  std::uint64_t texts_left_ = most_text_bytes;
  std::map<std::uint16_t, std::uint32_t> group_indices_;  // of the file -> of the trace
  struct Known {
    std::size_t op = 0;  // index into the trace's ops
    bool over = false;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Known> known_;  // by group and number
};

// [offset, offset + bytes) as far as the file has it.
std::span<const std::byte> Reader::part(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset >= bytes_.size()) return {};
  return bytes_.subspan(offset, std::min<std::uint64_t>(bytes, bytes_.size() - offset));
}

Status Reader::read_header() {
  const auto refused = [this](const std::string& why) {
    return Status(Fault::refused, Move::fix_call, trace_.file + " " + why);
  };
  if (!is_ring(bytes_)) return refused("is not a recorder's file");
  if (bytes_.size() < sizeof(FileHeader)) return refused("is cut short within its header");
  // Not a FileHeader of its own: atomics cannot be copied.
  const auto& header = *reinterpret_cast<const FileHeader*>(bytes_.data());
  if (header.version != ring_version) {
    return refused("has layout version " + std::to_string(header.version) + ", this reader has " +
                   std::to_string(ring_version));
  }
  const auto within = [&](std::uint64_t offset, std::uint64_t bytes) {
    return offset >= sizeof(FileHeader) && offset % 8 == 0 && offset <= header.total_bytes &&
           bytes <= header.total_bytes - offset;
  };
  const bool sound =
      header.header_bytes == sizeof(FileHeader) && header.group_bytes == sizeof(GroupEntry) &&
      header.record_bytes == sizeof(Record) && header.total_bytes <= most_file_bytes && header.groups < no_group &&
      header.records > 0 && header.records <= most_records && std::has_single_bit(header.records) &&
      header.event_records <= most_records && std::has_single_bit(header.event_records) &&
      within(header.names_offset, header.names_bytes) &&
      within(header.groups_offset, std::uint64_t{header.groups} * sizeof(GroupEntry)) &&
      within(header.records_offset, (std::uint64_t{header.records} + header.event_records) * sizeof(Record));
  if (!sound) return refused("has a damaged header");
  if (bytes_.size() < header.total_bytes) {
    trace_.remarks.push_back("cut short: " + std::to_string(bytes_.size()) + " of " +
                             std::to_string(header.total_bytes) + " bytes are there");
  }
  names_offset_ = header.names_offset;
  names_bytes_ = header.names_bytes;
  groups_offset_ = header.groups_offset;
  groups_ = header.groups;
  records_offset_ = header.records_offset;
  records_ = header.records;
  event_records_ = header.event_records;
  trace_.writer = text_of(header.writer);
  trace_.role = header.role == static_cast<std::uint32_t>(Role::agent) ? Role::agent : Role::worker;
  trace_.job = text_of(header.job);
  if (header.slot != no_slot) trace_.slot = Slot{header.slot};
  if (header.has_worker == 1) trace_.worker = WorkerId{header.worker};
  trace_.host = text_of(header.host);
  trace_.pid = header.pid;
  trace_.boot_id = text_of(header.boot_id);
  trace_.slots_in_job = header.slots_in_job;
  trace_.clock_offset_ns = header.clock_offset_ns.load(std::memory_order_relaxed);
  trace_.unix_offset_ns =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(header.unix_offset_ns.load(std::memory_order_relaxed)) -
                                static_cast<std::uint64_t>(trace_.clock_offset_ns));
  trace_.ended_in_order = header.ended.load(std::memory_order_relaxed) == 1;
  const auto lost = [this](std::uint64_t count, const char* what) {
    if (count > 0) trace_.remarks.push_back(std::to_string(count) + what);
  };
  lost(header.names_lost.load(std::memory_order_relaxed), " texts did not fit into the table of names");
  lost(header.groups_lost.load(std::memory_order_relaxed), " groups did not fit into the table of groups");
  return {};
}

std::optional<std::string_view> Reader::name(NameId id, NameKind kind) {
  if (id == no_name || id == lost_name) return std::nullopt;
  const std::uint64_t offset = (std::uint64_t{id} - 1) * 8;
  if (offset + sizeof(NameHead) > names_bytes_) return std::nullopt;
  const auto head_bytes = part(names_offset_ + offset, sizeof(NameHead));
  if (head_bytes.size() < sizeof(NameHead)) return std::nullopt;
  const auto head = load<NameHead>(head_bytes);
  if (head.kind != static_cast<std::uint16_t>(kind) || offset + sizeof(head) + head.bytes > names_bytes_) {
    return std::nullopt;
  }
  const auto bytes = part(names_offset_ + offset + sizeof(head), head.bytes);
  const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (view.size() < head.bytes || view.size() > texts_left_ || name_check(kind, view) != head.check) {
    return std::nullopt;
  }
  texts_left_ -= view.size();
  return view;
}

std::string Reader::text(NameId id, std::size_t most) {
  if (id == no_name) return {};
  const std::optional<std::string_view> found = name(id, NameKind::text);
  return found ? printable(found->substr(0, most)) : "(lost)";
}

std::vector<Slot> Reader::slots(NameId id) {
  std::vector<Slot> slots;
  const std::string_view bytes = name(id, NameKind::slots).value_or(std::string_view{});
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    std::uint32_t slot = 0;
    std::memcpy(&slot, bytes.data() + i, sizeof(slot));
    slots.emplace_back(slot);
  }
  return slots;
}

std::int64_t Reader::job_time(std::int64_t host_ns) {
  const auto time = static_cast<std::int64_t>(static_cast<std::uint64_t>(host_ns) +
                                              static_cast<std::uint64_t>(trace_.clock_offset_ns));
  trace_.last_written_ns = std::max(trace_.last_written_ns, time);
  return time;
}

// Index into the trace's groups. A group whose entry makes no sense is there all the same when something names it.
std::optional<std::uint32_t> Reader::group_of(std::uint16_t index) {
  if (index >= groups_) return std::nullopt;
  const auto [found, fresh] = group_indices_.emplace(index, static_cast<std::uint32_t>(trace_.groups.size()));
  if (fresh) trace_.groups.emplace_back().name = "(group " + std::to_string(index) + ")";
  return found->second;
}

std::optional<Slot> Reader::slot_of(std::uint32_t group, std::uint16_t rank) const {
  const std::vector<Slot>& members = trace_.groups[group].members;
  return rank < members.size() ? std::optional(members[rank]) : std::nullopt;
}

void Reader::read_groups() {
  for (std::uint32_t i = 0; i < groups_; ++i) {
    const auto bytes = part(groups_offset_ + std::uint64_t{i} * sizeof(GroupEntry), sizeof(GroupEntry));
    if (bytes.size() < sizeof(GroupEntry)) return;
    const auto& entry = *reinterpret_cast<const GroupEntry*>(bytes.data());
    const auto relaxed = std::memory_order_relaxed;
    if (entry.state.load(relaxed) != 1) continue;
    const auto index = static_cast<std::uint16_t>(i);
    GroupTrace& group = trace_.groups[*group_of(index)];
    group.name = text(entry.name, most_short_text_bytes);
    group.key = entry.key;
    group.members = slots(entry.members);
    const auto policy = entry.policy.load(relaxed);
    if (policy <= static_cast<std::uint8_t>(Policy::exact)) group.policy = name_of(static_cast<Policy>(policy));
    group.made_ns = job_time(entry.made_ns);
    const std::int64_t ended_ns = entry.ended_ns.load(relaxed);
    if (ended_ns != 0) group.ended_ns = job_time(ended_ns);
    group.entered = entry.entered.load(relaxed);
    group.completed = entry.completed.load(relaxed);
  }
}

// ---- records -------------------------------------------------------------------------------------------------------

void Reader::read_records(std::uint64_t offset, std::uint64_t records) {
  const auto bytes = part(offset, records * sizeof(Record));
  const std::uint64_t there = bytes.size() / sizeof(Record);
  const auto at = [&bytes](std::uint64_t place) {
    return load<Record>(bytes.subspan(place * sizeof(Record), sizeof(Record)));
  };
  const auto sound = [records](const Record& record, std::uint64_t place) {
    return record.stamp != 0 && ((record.stamp - 1) & (records - 1)) == place && record.check == block_check(&record);
  };
  std::uint64_t newest = 0;  // stamp
  for (std::uint64_t place = 0; place < there; ++place) {
    const Record record = at(place);
    if (sound(record, place)) newest = std::max(newest, record.stamp);
  }
  const std::uint64_t overwritten = newest - std::min({newest, records, newest_});
  trace_.overwritten += overwritten;
  for (std::uint64_t stamp = overwritten + 1; stamp <= newest && stamp != 0; ++stamp) {
    const std::uint64_t place = (stamp - 1) & (records - 1);
    if (place >= there) continue;
    const Record record = at(place);
    if (sound(record, place) && record.stamp == stamp) {
      read_record(record);
    } else {
      ++trace_.damaged;
    }
  }
  // Behind the newest, in a ring that was never full: what was being written when its writer was killed.
  constexpr std::array<std::byte, sizeof(Record)> zeros{};
  for (std::uint64_t place = newest; place < there; ++place) {
    if (std::memcmp(bytes.data() + place * sizeof(Record), zeros.data(), zeros.size()) != 0) ++trace_.damaged;
  }
}

OpCall Reader::call_of(const CallFacts& facts, std::uint64_t bytes) {
  OpCall call;
  const bool known_op = facts.op <= static_cast<std::uint8_t>(OpKind::recv);
  call.kind = known_op ? std::string(name_of(static_cast<OpKind>(facts.op))) : "op " + std::to_string(facts.op);
  if (facts.dtype <= static_cast<std::uint8_t>(DType::bytes)) call.dtype = name_of(static_cast<DType>(facts.dtype));
  if (facts.reduce <= static_cast<std::uint8_t>(ReduceOp::premul_sum)) {
    call.reduce = name_of(static_cast<ReduceOp>(facts.reduce));
  }
  call.shape = text(facts.shape, most_short_text_bytes);
  if (facts.root != no_rank) call.root = Rank{facts.root};
  call.bytes = bytes;
  return call;
}

// The op a record is about, which may be the first that is left of it. nullptr: its group makes no sense.
OpTrace* Reader::op_of(const Record& record, std::uint64_t sequence) {
  const std::optional<std::uint32_t> group = group_of(record.group);
  if (!group) {
    ++trace_.damaged;
    return nullptr;
  }
  const auto [found, fresh] = known_.try_emplace({*group, record.extra}, Known{trace_.ops.size(), false});
  // The count of a group has begun anew at 2^32.
  const bool again = !fresh && found->second.over;
  if (again) found->second = {trace_.ops.size(), false};
  if (fresh || again) trace_.ops.emplace_back().group = *group;
  OpTrace& op = trace_.ops[found->second.op];
  op.sequence = sequence;
  return &op;
}

void Reader::read_record(const Record& record) {
  const std::int64_t at_ns = job_time(record.at_ns);
  const auto body = std::as_bytes(std::span(record.body));
  switch (record.kind) {
    case RecordKind::issued:
    case RecordKind::entered: {
      const auto call = load<CallBody>(body);
      OpTrace* op = op_of(record, call.sequence);
      if (op == nullptr) return;
      op->call = call_of(call.call, call.bytes);
      op->algorithm = algorithm_name(call.call.algorithm);
      op->stack = text(call.stack, op_stack_max_bytes);
      (record.kind == RecordKind::issued ? op->issued_ns : op->entered_ns) = at_ns;
      return;
    }
    case RecordKind::moved: {
      const auto moved = load<MovedBody>(body);
      OpTrace* op = op_of(record, moved.sequence);
      if (op == nullptr) return;
      op->first_byte_ns = job_time(moved.first_byte_ns);
      op->last_byte_ns = job_time(moved.last_byte_ns);
      return;
    }
    case RecordKind::finished:
    case RecordKind::failed:
      end_op(record);
      return;
    case RecordKind::small:
    case RecordKind::waiting:
      add_small(record);
      return;
    case RecordKind::event:
      add_event(record);
      return;
  }
  ++trace_.damaged;
}

void Reader::end_op(const Record& record) {
  const auto end = load<EndBody>(std::as_bytes(std::span(record.body)));
  OpTrace* op = op_of(record, end.sequence);
  if (op == nullptr) return;
  op->finished_ns = job_time(record.at_ns);
  op->issued_ns = job_time(end.issued_ns);
  if (op->call.kind.empty()) op->call.kind = call_of({.op = end.op, .dtype = 0xff}, 0).kind;
  op->algorithm = algorithm_name(end.algorithm);
  op->waited_ns = end.waited_ns;
  op->last_arrival = slot_of(op->group, end.last_arrival);
  op->repaired = (record.flags & flag_repaired) != 0;
  if (record.kind == RecordKind::failed) {
    op->failure = end.detail == no_name ? "failed" : text(end.detail);
  } else {
    op->contributors = slots(end.detail);
  }
  known_.at({op->group, record.extra}).over = true;
}

void Reader::add_small(const Record& record) {
  const std::optional<std::uint32_t> group = group_of(record.group);
  if (!group) {
    ++trace_.damaged;
    return;
  }
  const auto small = load<SmallBody>(std::as_bytes(std::span(record.body)));
  OpTrace op;
  op.group = *group;
  op.sequence = small.sequence;
  op.call =
      call_of({.shape = small.shape, .root = small.root, .op = small.op, .dtype = small.dtype, .reduce = small.reduce},
              small.bytes);
  op.algorithm = algorithm_name(static_cast<std::uint8_t>(Algorithm::in_line));
  GroupTrace& of = trace_.groups[*group];
  of.entered = std::max(of.entered, small.sequence + 1);
  if (record.kind == RecordKind::waiting) {
    op.issued_ns = op.entered_ns = job_time(record.at_ns);
    of.current = std::move(op);
    return;
  }
  of.completed = std::max(of.completed, small.sequence + 1);
  op.finished_ns = job_time(record.at_ns);
  op.issued_ns = op.entered_ns =
      job_time(static_cast<std::int64_t>(static_cast<std::uint64_t>(record.at_ns) - small.duration_ns));
  op.waited_ns = small.waited_ns;
  op.last_arrival = slot_of(*group, small.last_arrival);
  op.contributors = slots(record.extra);
  trace_.ops.push_back(std::move(op));
}

void Reader::add_event(const Record& record) {
  if (record.flags > static_cast<std::uint8_t>(EventKind::timeout)) {
    ++trace_.damaged;
    return;
  }
  const auto body = load<EventBody>(std::as_bytes(std::span(record.body)));
  Event event;
  event.kind = static_cast<EventKind>(record.flags);
  event.at_ns = job_time(record.at_ns);
  event.thread = record.thread;
  event.group = group_of(record.group);
  event.number = body.number;
  event.since_ns = body.since_ns == 0 ? 0 : job_time(body.since_ns);
  if ((record.extra & event_names_slots) != 0) {
    event.slots = slots(body.slots);
  } else if (body.slots != no_slot) {
    event.slots = {Slot{body.slots}};
  }
  if (body.worker != no_worker) event.worker = WorkerId{body.worker};
  event.detail = text(body.detail);
  event.stack = text(body.stack);
  trace_.events.push_back(std::move(event));
}

// ---- the end -------------------------------------------------------------------------------------------------------

void Reader::read_current(std::uint16_t index, const CurrentOp& current) {
  if (current.present != 1 || current.check != block_check(&current)) return;
  const std::uint32_t group = *group_of(index);
  const auto known = known_.find({group, current.number});
  if (known != known_.end() && known->second.over) return;
  OpTrace op;
  if (known != known_.end()) op = trace_.ops[known->second.op];
  op.group = group;
  op.sequence = current.sequence;
  op.call = call_of(current.call, current.bytes);
  op.algorithm = algorithm_name(current.call.algorithm);
  op.stack = text(current.stack, op_stack_max_bytes);
  if (current.issued_ns != 0) op.issued_ns = job_time(current.issued_ns);
  if (current.entered_ns != 0) op.entered_ns = job_time(current.entered_ns);
  trace_.groups[group].current = std::move(op);
}

void Reader::finish() {
  for (std::uint32_t i = 0; i < groups_; ++i) {
    const auto bytes = part(groups_offset_ + std::uint64_t{i} * sizeof(GroupEntry), sizeof(GroupEntry));
    if (bytes.size() < sizeof(GroupEntry)) break;
    const auto& entry = *reinterpret_cast<const GroupEntry*>(bytes.data());
    if (entry.state.load(std::memory_order_relaxed) != 1) continue;
    const auto index = static_cast<std::uint16_t>(i);
    read_current(index, load<CurrentOp>(bytes.subspan(offsetof(GroupEntry, current))));
  }
  // Where the word was being written: the oldest op that the ring knows not to be over.
  for (const auto& [key, known] : known_) {
    if (known.over) continue;
    const OpTrace& op = trace_.ops[known.op];
    std::optional<OpTrace>& current = trace_.groups[op.group].current;
    if (!current) current = op;
  }
  const auto when = [](const OpTrace& op) {
    return op.finished_ns.value_or(op.issued_ns.value_or(op.entered_ns.value_or(0)));
  };
  std::stable_sort(trace_.ops.begin(), trace_.ops.end(),
                   [&when](const OpTrace& left, const OpTrace& right) { return when(left) < when(right); });
  std::stable_sort(trace_.events.begin(), trace_.events.end(),
                   [](const Event& left, const Event& right) { return left.at_ns < right.at_ns; });
}

Result<WorkerTrace> Reader::read() {
  const Status sound = read_header();
  if (!sound.ok()) return sound;
  read_groups();
  read_records(records_offset_, records_);
  read_records(records_offset_ + records_ * sizeof(Record), event_records_);
  finish();
  return std::move(trace_);
}

}  // namespace

bool is_ring(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof(ring_magic) && load<std::uint64_t>(bytes) == ring_magic;
}

Result<WorkerTrace> read_ring(std::span<const std::byte> bytes, const std::string& file, std::uint64_t newest) {
  // The structs are looked at where they lie: they must lie as they were written.
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(FileHeader) != 0) {
    const std::vector<std::byte> aligned(bytes.begin(), bytes.end());
    return Reader(aligned, file, newest).read();
  }
  return Reader(bytes, file, newest).read();
}

Result<WorkerTrace> read_ring_file(const std::string& path, std::uint64_t newest) {
  const auto system = [&path](int error) { return system_error("cannot read " + path, error, Move::none); };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return system(errno);
  struct stat facts{};
  if (::fstat(file.get(), &facts) != 0) return system(errno);
  if (!S_ISREG(facts.st_mode)) return Status(Fault::refused, Move::fix_call, path + " is not a file");
  std::vector<std::byte> bytes(std::min<std::uint64_t>(static_cast<std::uint64_t>(facts.st_size), most_file_bytes));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::pread(file.get(), bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system(errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return read_ring(bytes, path, newest);
}

}  // namespace closeranks::recorder

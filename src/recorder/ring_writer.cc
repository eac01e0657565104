#include "recorder/ring_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fstream>
#include <utility>

#include "base/file_descriptor.h"
#include "base/system_error.h"
#include "base/version.h"

namespace closeranks::recorder {
namespace {

constexpr std::uint64_t ops_per_event = 8;  // records of the two rings
constexpr std::uint32_t group_entries = 256;
constexpr std::uint32_t group_entries_of_small_files = 32;
// Files of one slot and worker in one directory (restarts of a job there): more is a directory that nobody empties.
constexpr int most_namesakes = 10'000;

std::string one_line_of(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line, '\n');
  return line;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

template <std::size_t Size>
void put_text(std::array<char, Size>& field, std::string_view text) {
  field.fill('\0');
  text.copy(field.data(), Size - 1);
}

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// "slot-2-worker-5.ring", "agent-HOST.ring"; a namesake that is there already stays: ".2", ".3" come before ".ring".
std::string file_name(const RingOptions& options, const std::string& host, int namesake) {
  std::string name = options.role == Role::agent ? "agent-" + host : "process";
  if (options.slot) name = "slot-" + std::to_string(options.slot->value());
  if (options.slot && options.worker) name += "-worker-" + std::to_string(options.worker->value());
  if (namesake > 1) name += "." + std::to_string(namesake);
  return name + ".ring";
}

Status make_directory(const std::string& directory) {
  for (std::size_t end = 1; end != std::string::npos;) {
    end = directory.find('/', end + 1);
    if (::mkdir(directory.substr(0, end).c_str(), 0777) != 0 && errno != EEXIST) {
      return system_error("cannot make the directory " + directory.substr(0, end), errno, Move::none);
    }
  }
  return {};
}

struct File {
  std::string path;
  FileDescriptor descriptor;
};

Result<File> make_file(const RingOptions& options) {
  const Status made = make_directory(options.directory);
  if (!made.ok()) return made;
  const std::string host = one_line_of("/proc/sys/kernel/hostname");
  for (int namesake = 1; namesake < most_namesakes; ++namesake) {
    File file;
    file.path = options.directory + "/" + file_name(options, host, namesake);
    file.descriptor = FileDescriptor(::open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (file.descriptor.valid()) return file;
    if (errno != EEXIST) return system_error("cannot make " + file.path, errno, Move::none);
  }
  return Status(Fault::system, Move::none, options.directory + " is full of files of the same slot");
}

}  // namespace

std::uint32_t RingWriter::thread_id() { return static_cast<std::uint32_t>(::syscall(SYS_gettid)); }

Result<std::shared_ptr<RingWriter>> RingWriter::open(const RingOptions& options) {
  Result<File> made = make_file(options);
  if (!made.ok()) return made.status();
  const File& file = made.value();
  // All its pages exist before the first is written: a store into a mapping that the disk has no room for is a SIGBUS.
  const std::uint64_t wanted = std::clamp(options.bytes, least_ring_bytes, most_ring_bytes) / page_bytes * page_bytes;
  std::uint64_t bytes = wanted;
  int error = ::posix_fallocate(file.descriptor.get(), 0, static_cast<off_t>(bytes));
  while (error != 0 && bytes / 4 >= least_ring_bytes) {
    bytes = bytes / 4 / page_bytes * page_bytes;
    if (::ftruncate(file.descriptor.get(), 0) != 0) break;
    error = ::posix_fallocate(file.descriptor.get(), 0, static_cast<off_t>(bytes));
  }
  void* data =
      error != 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor.get(), 0);
  if (data == MAP_FAILED) {
    if (error == 0) error = errno;
    ::unlink(file.path.c_str());
    return system_error("no room for " + file.path, error, Move::none);
  }
  // Page faults now, not in the first ops. An older kernel does not know it: then they come later.
  static_cast<void>(::madvise(data, bytes, MADV_POPULATE_WRITE));
  std::shared_ptr<RingWriter> writer(new RingWriter(file.path, static_cast<std::byte*>(data), bytes));
  writer->wanted_bytes_ = wanted;
  writer->lay_out(options);
  writer->event({.kind = EventKind::started, .detail = writer->header_->command_line.data()});
  return writer;
}

RingWriter::RingWriter(std::string path, std::byte* data, std::uint64_t bytes)
    : path_(std::move(path)), data_(data), bytes_(bytes) {}

RingWriter::~RingWriter() { ::munmap(data_, bytes_); }

void RingWriter::lay_out(const RingOptions& options) {
  const bool small_file = bytes_ < std::uint64_t{512} * 1024;
  group_count_ = small_file ? group_entries_of_small_files : group_entries;
  const std::uint64_t tables = bytes_ - page_bytes;
  const std::uint64_t group_table = group_count_ * sizeof(GroupEntry);
  // At least an eighth for the names, then as many records as fit, then the rest for the names.
  const std::uint64_t room = (tables - group_table - tables / 8) / sizeof(Record);
  const std::uint64_t records = std::bit_floor(room * ops_per_event / (ops_per_event + 1));
  const std::uint64_t events = records / ops_per_event;
  header_ = reinterpret_cast<FileHeader*>(data_);
  FileHeader& header = *header_;
  header.version = ring_version;
  header.header_bytes = sizeof(FileHeader);
  header.total_bytes = bytes_;
  header.groups_offset = sizeof(FileHeader);
  header.groups = group_count_;
  header.group_bytes = sizeof(GroupEntry);
  header.names_offset = header.groups_offset + group_table;
  header.names_bytes = bytes_ - header.names_offset - (records + events) * sizeof(Record);
  header.records_offset = header.names_offset + header.names_bytes;
  header.records = static_cast<std::uint32_t>(records);
  header.record_bytes = sizeof(Record);
  header.event_records = static_cast<std::uint32_t>(events);
  header.role = static_cast<std::uint32_t>(options.role);
  header.slot = options.slot ? options.slot->value() : no_slot;
  header.has_worker = options.worker ? 1 : 0;
  header.worker = options.worker ? options.worker->value() : 0;
  header.slots_in_job = options.slots_in_job;
  header.pid = static_cast<std::uint32_t>(::getpid());
  header.opened_ns = now_ns();
  unix_offset_ns_ = clock_ns(CLOCK_REALTIME) - header.opened_ns;
  header.unix_offset_ns.store(unix_offset_ns_);
  put_text(header.job, options.job);
  put_text(header.host, one_line_of("/proc/sys/kernel/hostname"));
  put_text(header.writer, std::string("closeranks ") + version);
  put_text(header.boot_id, one_line_of("/proc/sys/kernel/random/boot_id"));
  put_text(header.command_line, command_line());
  names_ = data_ + header.names_offset;
  names_bytes_ = header.names_bytes;
  groups_ = reinterpret_cast<GroupEntry*>(data_ + header.groups_offset);
  records_ = reinterpret_cast<Record*>(data_ + header.records_offset);
  record_mask_ = records - 1;
  events_ = records_ + records;
  event_mask_ = events - 1;
  std::atomic_ref(header.magic).store(ring_magic, std::memory_order_release);
}

// ---- names ---------------------------------------------------------------------------------------------------------

NameId RingWriter::text(std::string_view text, NameUse use) {
  return text.empty() ? no_name : name(NameKind::text, text.substr(0, name_max_bytes), use);
}

NameId RingWriter::slots(std::span<const Slot> slots) {
  static_assert(sizeof(Slot) == 4);
  const std::string_view bytes(reinterpret_cast<const char*>(slots.data()), slots.size_bytes());
  return slots.empty() ? no_name : name(NameKind::slots, bytes.substr(0, name_max_bytes), NameUse::ordinary);
}

bool RingWriter::is(NameId id, std::uint32_t check, NameKind kind, std::string_view bytes) const {
  const std::byte* at = names_ + (std::uint64_t{id} - 1) * 8;
  NameHead head{};
  std::memcpy(&head, at, sizeof(head));
  return head.check == check && head.kind == static_cast<std::uint16_t>(kind) && head.bytes == bytes.size() &&
         std::memcmp(at + sizeof(head), bytes.data(), bytes.size()) == 0;
}

// Two threads that bring the same new name at once may both write it: a few bytes lost, no more.
NameId RingWriter::name(NameKind kind, std::string_view bytes, NameUse use) {
  constexpr std::size_t looks = 16;
  const std::uint32_t check = name_check(kind, bytes);
  std::size_t place = check % known_names;
  std::size_t free = known_names;
  for (std::size_t i = 0; i < looks; ++i, place = (place + 1) % known_names) {
    const NameId id = known_[place].load(std::memory_order_acquire);
    if (id == no_name) {
      free = place;
      break;
    }
    if (is(id, check, kind, bytes)) return id;
  }
  const std::uint64_t limit = use == NameUse::last_words ? names_bytes_
                              : use == NameUse::ordinary ? names_bytes_ / 4 * 3
                                                         : names_bytes_ / 2;
  const std::uint64_t needed = sizeof(NameHead) + (bytes.size() + 7) / 8 * 8;
  std::uint64_t offset = header_->names_used.load(std::memory_order_relaxed);
  do {
    if (offset + needed > limit) {
      header_->names_lost.fetch_add(1, std::memory_order_relaxed);
      return lost_name;
    }
  } while (!header_->names_used.compare_exchange_weak(offset, offset + needed, std::memory_order_relaxed));
  const NameHead head{check, static_cast<std::uint16_t>(kind), static_cast<std::uint16_t>(bytes.size())};
  std::memcpy(names_ + offset + sizeof(head), bytes.data(), bytes.size());
  std::memcpy(names_ + offset, &head, sizeof(head));
  const auto id = static_cast<NameId>(offset / 8 + 1);
  NameId none = no_name;
  if (free < known_names) known_[free].compare_exchange_strong(none, id, std::memory_order_release);
  return id;
}

// ---- groups and events ---------------------------------------------------------------------------------------------

std::uint16_t RingWriter::add_group(std::string_view name, std::uint64_t key, std::span<const Slot> members, Rank self,
                                    Policy policy) {
  const std::uint32_t index = header_->groups_used.fetch_add(1, std::memory_order_relaxed);
  if (index >= group_count_) {
    header_->groups_used.fetch_sub(1, std::memory_order_relaxed);
    header_->groups_lost.fetch_add(1, std::memory_order_relaxed);
    return no_group;
  }
  GroupEntry& group = groups_[index];
  group.key = key;
  group.made_ns = now_ns();
  group.name = text(name);
  group.members = slots(members);
  group.rank = static_cast<std::uint16_t>(self.value());
  group.policy.store(static_cast<std::uint8_t>(policy), std::memory_order_relaxed);
  group.state.store(1, std::memory_order_release);
  event({.kind = EventKind::group_made, .group = static_cast<std::uint16_t>(index), .detail = name});
  return static_cast<std::uint16_t>(index);
}

void RingWriter::end_group(std::uint16_t group) {
  entry(group).ended_ns.store(now_ns(), std::memory_order_relaxed);
  event({.kind = EventKind::group_ended, .group = group});
}

void RingWriter::event(const EventRecord& event) {
  EventBody body{};
  body.number = event.number;
  body.since_ns = event.since_ns;
  body.detail = text(event.detail, event.use);
  body.stack = text(event.stack, event.use);
  body.slots = event.slots.empty() ? no_slot : event.slots.front().value();
  body.worker = event.worker ? static_cast<std::uint32_t>(event.worker->value()) : no_worker;
  Record record;
  if (event.slots.size() > 1) {
    record.extra = event_names_slots;
    body.slots = slots(event.slots);
  }
  record.group = event.group;
  record.kind = RecordKind::event;
  record.flags = static_cast<std::uint8_t>(event.kind);
  const std::uint64_t number = header_->next_event.fetch_add(1, std::memory_order_relaxed);
  put(events_[number & event_mask_], number, record, body);
}

void RingWriter::end(std::string_view how) {
  if (header_->ended.exchange(1, std::memory_order_relaxed) != 0) return;
  event({.kind = EventKind::ended, .detail = how, .use = NameUse::last_words});
}

}  // namespace closeranks::recorder

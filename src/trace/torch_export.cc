#include "trace/torch_export.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "recorder/op_stack.h"
#include "trace/job_index.h"
#include "trace/pickle_writer.h"

namespace closeranks::trace {

using recorder::GroupTrace;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

std::string torch_dtype(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 10> table{{{"float32", "Float"},
                                                                                        {"float64", "Double"},
                                                                                        {"float16", "Half"},
                                                                                        {"bfloat16", "BFloat16"},
                                                                                        {"int64", "Long"},
                                                                                        {"int32", "Int"},
                                                                                        {"int16", "Short"},
                                                                                        {"int8", "Char"},
                                                                                        {"uint8", "Byte"},
                                                                                        {"bool", "Bool"}}};
  for (const auto& [ours, theirs] : table) {
    if (name == ours) return std::string(theirs);
  }
  return name;
}

// "[4, 3]" or "[2] x 4": the sizes of one tensor.
std::vector<std::int64_t> sizes_of(const std::string& shape) {
  std::vector<std::int64_t> sizes;
  const char* at = shape.data();
  const char* const end = at + std::min(shape.find(']'), shape.size());
  while (at != end) {
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error == std::errc()) sizes.push_back(size);
    at = error == std::errc() ? next : at + 1;
  }
  return sizes;
}

void write_shapes(PickleWriter& to, const std::string& shape) {
  to.list();
  to.list();
  for (const std::int64_t size : sizes_of(shape)) to.integer(size);
  to.end_list();
  to.end_list();
}

void write_texts(PickleWriter& to, const std::string& text) {
  to.list();
  if (!text.empty()) to.text(text);
  to.end_list();
}

void write_time(PickleWriter& to, const char* key, std::optional<std::int64_t> ns, std::int64_t unix_offset_ns) {
  to.text(key);
  if (ns.has_value()) {
    to.integer(*ns + unix_offset_ns);
  } else {
    to.none();
  }
}

std::string profiling_name(const OpTrace& op, const WorkerTrace& worker) {
  std::string name = "closeranks:" + op.call.kind;
  if (!is_point_to_point(op.call)) return name;
  const auto& members = worker.groups[op.group].members;
  const auto own = std::find(members.begin(), members.end(), worker.slot.value_or(Slot(0)));
  const std::string self = std::to_string(own - members.begin());
  const std::string peer = op.call.root.has_value() ? std::to_string(op.call.root->value()) : "?";
  return name + " " + self + (op.call.kind == "send" ? "->" : "<-") + peer;
}

void write_frames(PickleWriter& to, const std::string& stack) {
  to.list();
  for (const recorder::Frame& frame : recorder::frames_of(stack)) {
    to.dict();
    to.text("name"), to.text(frame.function);
    to.text("filename"), to.text(frame.file);
    to.text("line"), to.integer(frame.line);
    to.end_dict();
  }
  to.end_list();
}

void write_entry(PickleWriter& to, const OpTrace& op, const WorkerTrace& worker, std::int64_t id,
                 std::int64_t unix_offset_ns) {
  const GroupTrace& group = worker.groups[op.group];
  const bool point_to_point = is_point_to_point(op.call);
  // torch counts from 1, as do the dumps that come from it.
  const bool is_theirs = worker.writer.starts_with("torch");
  const auto sequence = static_cast<std::int64_t>(op.sequence) + (is_theirs ? 0 : 1);
  const bool ended = op.finished_ns.has_value() && op.failure.empty();
  to.dict();
  to.text("record_id"), to.integer(id);
  to.text("pg_id"), to.integer(op.group);
  to.text("process_group"), to.pair_of_texts(group.name, group.name);
  to.text("collective_seq_id"), to.integer(point_to_point ? 0 : sequence);
  to.text("p2p_seq_id"), to.integer(point_to_point ? sequence : 0);
  to.text("op_id"), to.integer(sequence);
  to.text("profiling_name"), to.text(profiling_name(op, worker));
  write_time(to, "time_created_ns", arrival_ns(op).value_or(op.finished_ns.value_or(0)), unix_offset_ns);
  write_time(to, "time_discovered_started_ns", op.entered_ns, unix_offset_ns);
  write_time(to, "time_discovered_completed_ns", ended ? op.finished_ns : std::nullopt, unix_offset_ns);
  to.text("input_sizes"), write_shapes(to, op.call.shape);
  to.text("output_sizes"), write_shapes(to, op.call.shape);
  to.text("input_dtypes"), write_texts(to, torch_dtype(op.call.dtype));
  to.text("output_dtypes"), write_texts(to, torch_dtype(op.call.dtype));
  to.text("state"), to.text(ended ? "completed" : op.entered_ns.has_value() ? "started" : "scheduled");
  to.text("is_p2p"), to.boolean(point_to_point);
  to.text("retired"), to.boolean(ended);
  to.text("timeout_ms"), to.integer(0);
  to.text("frames"), write_frames(to, op.stack);
  to.end_dict();
}

}  // namespace

std::string to_torch_dump(const WorkerTrace& worker, std::int64_t unix_offset_ns) {
  std::vector<const OpTrace*> ops;
  for (const OpTrace& op : worker.ops) {
    if (op.group < worker.groups.size()) ops.push_back(&op);
  }
  for (const GroupTrace& group : worker.groups) {
    if (group.current.has_value() && group.current->group < worker.groups.size()) ops.push_back(&*group.current);
  }
  std::stable_sort(ops.begin(), ops.end(), [](const OpTrace* a, const OpTrace* b) {
    return arrival_ns(*a).value_or(0) < arrival_ns(*b).value_or(0);
  });
  PickleWriter to;
  to.dict();
  to.text("version"), to.text("2.10");
  to.text("pg_config"), to.dict();
  for (const GroupTrace& group : worker.groups) {
    std::string ranks;
    for (const Slot slot : group.members) ranks += (ranks.empty() ? "" : ", ") + std::to_string(slot.value());
    to.text(group.name), to.dict();
    to.text("name"), to.text(group.name);
    to.text("desc"), to.text(group.name);
    to.text("ranks"), to.text("[" + ranks + "]");
    to.end_dict();
  }
  to.end_dict();
  to.text("entries"), to.list();
  std::int64_t id = 0;
  for (const OpTrace* op : ops) write_entry(to, *op, worker, id++, unix_offset_ns);
  to.end_list();
  to.end_dict();
  return to.finish();
}

Status write_torch_dumps(const recorder::JobTrace& job, const std::string& directory) {
  const auto failed = [](const std::string& path) {
    return Status(Fault::system, Move::fix_call, "cannot write " + path);
  };
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return failed(directory);
  const JobIndex index(job);
  for (const Slot slot : index.slots()) {
    const WorkerTrace* worker = index.last(slot);
    if (worker == nullptr) continue;
    const std::string path = directory + "/closeranks_" + std::to_string(slot.value());
    std::ofstream file(path, std::ios::binary);
    file << to_torch_dump(*worker, worker->unix_offset_ns);
    if (!file.flush()) return failed(path);
  }
  return {};
}

}  // namespace closeranks::trace

#include "trace/torch_dump.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "recorder/op_stack.h"
#include "trace/pickle_reader.h"

namespace closeranks::trace {

using recorder::GroupTrace;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

using Node = Pickle::Node;
using Type = Pickle::Type;

// One list may stand in many entries of a pickle: what is copied out of it for each has a bound.
constexpr std::size_t longest_shape = 500;
constexpr std::size_t longest_kind = 64;

Status refused(const std::string& sentence) { return {Fault::refused, Move::give_up, sentence}; }

std::string translate(const std::string& name, std::span<const std::pair<std::string_view, std::string_view>> table) {
  for (const auto& [theirs, ours] : table) {
    if (name == theirs) return std::string(ours);
  }
  return name;
}

std::string kind_of(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 14> table{{
      {"_all_gather_base", "all_gather"},
      {"all_gather_single", "all_gather"},
      {"all_gather_into_tensor_coalesced", "all_gather"},
      {"allgather_coalesced", "all_gather"},
      {"allreduce_coalesced", "all_reduce"},
      {"_reduce_scatter_base", "reduce_scatter"},
      {"reduce_scatter_single", "reduce_scatter"},
      {"reduce_scatter_tensor_coalesced", "reduce_scatter"},
      {"all_to_all_single", "all_to_all"},
      {"all_to_all_v_single", "all_to_all"},
      {"all_reduce_barrier", "barrier"},
      {"_broadcast_oop", "broadcast"},
      {"_reduce_oop", "reduce"},
      {"gather_single", "gather"},
  }};
  return translate(name, table);
}

std::string dtype_of(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 12> table{{
      {"Float", "float32"},
      {"Double", "float64"},
      {"Half", "float16"},
      {"BFloat16", "bfloat16"},
      {"Long", "int64"},
      {"Int", "int32"},
      {"Short", "int16"},
      {"Char", "int8"},
      {"Byte", "uint8"},
      {"Bool", "bool"},
      {"ComplexFloat", "complex64"},
      {"ComplexDouble", "complex128"},
  }};
  return translate(name, table);
}

class Dump {
 public:
  Dump(const Pickle& pickle, WorkerTrace& trace) : pickle_(pickle), trace_(trace) {}

  void read() {
    const Node* entries = pickle_.find(pickle_.root(), "entries");
    if (entries == nullptr || entries->type != Type::list) return;
    for (const Pickle::Index item : entries->items) read_entry(pickle_.at(item));
    std::stable_sort(trace_.ops.begin(), trace_.ops.end(), [](const OpTrace& a, const OpTrace& b) {
      return a.issued_ns.value_or(0) < b.issued_ns.value_or(0);
    });
    if (trace_.damaged > 0) trace_.remarks.push_back(std::to_string(trace_.damaged) + " entries made no sense");
  }

 private:
  std::string text(const Node& dict, std::string_view key) const {
    const Node* node = pickle_.find(dict, key);
    return node != nullptr && node->type == Type::text ? node->text : "";
  }
  std::optional<std::int64_t> integer(const Node& dict, std::string_view key) const {
    const Node* node = pickle_.find(dict, key);
    if (node == nullptr || (node->type != Type::integer && node->type != Type::boolean)) return std::nullopt;
    return node->integer;
  }

  // "[4, 3]", "[4, 3], [2]"
  std::string shapes(const Node& dict, std::string_view key) const {
    const Node* sizes = pickle_.find(dict, key);
    std::string all;
    if (sizes == nullptr) return all;
    for (const Pickle::Index index : sizes->items) {
      if (all.size() > longest_shape) return all + ", ..";
      all += all.empty() ? "[" : ", [";
      std::string inner;
      for (const Pickle::Index size : pickle_.at(index).items) {
        if (inner.size() > longest_shape) break;
        inner += (inner.empty() ? "" : ", ") + std::to_string(pickle_.at(size).integer);
      }
      all += inner + "]";
    }
    return all;
  }

  // Innermost first, as torch has them and as ours are.
  std::string frames(const Node& entry) const {
    const Node* list = pickle_.find(entry, "frames");
    std::string stack;
    if (list == nullptr || list->type != Type::list) return stack;
    for (const Pickle::Index index : list->items) {
      const Node& frame = pickle_.at(index);
      const std::int64_t line = integer(frame, "line").value_or(0);
      if (!recorder::append_frame(stack, {text(frame, "filename"), line, text(frame, "name")})) break;
    }
    return stack;
  }

  std::uint32_t group_of(const std::string& name, const std::string& description) {
    const auto [place, is_new] = groups_.try_emplace({name, description}, trace_.groups.size());
    if (!is_new) return place->second;
    GroupTrace group;
    group.name = description.empty() || description == "undefined" ? name : description;
    const bool taken = std::any_of(trace_.groups.begin(), trace_.groups.end(),
                                   [&](const GroupTrace& other) { return other.name == group.name; });
    if (taken) group.name += ":" + name;
    read_members(group, name);
    trace_.groups.push_back(std::move(group));
    return place->second;
  }

  // pg_config: name -> {"ranks": "[0, 1]"}. Gloo's has no names: what stands there is of some group, nobody knows
  // which.
  void read_members(GroupTrace& group, const std::string& name) const {
    const Node* config = pickle_.find(pickle_.root(), "pg_config");
    const Node* own = config != nullptr && !name.empty() ? pickle_.find(*config, name) : nullptr;
    if (own == nullptr) return;
    const std::string ranks = text(*own, "ranks");
    const char* at = ranks.data();
    const char* const end = at + ranks.size();
    while (at != end) {
      std::uint32_t rank = 0;
      const auto [next, error] = std::from_chars(at, end, rank);
      if (error == std::errc()) group.members.emplace_back(rank);
      at = error == std::errc() ? next : at + 1;
    }
  }

  void read_entry(const Node& entry) {
    const Node* group = pickle_.find(entry, "process_group");
    const std::string profiled = text(entry, "profiling_name");
    const auto created = integer(entry, "time_created_ns");
    const bool is_named = group != nullptr && group->items.size() == 2;
    if (!is_named || profiled.empty() || !created.has_value()) {
      ++trace_.damaged;
      return;
    }
    OpTrace op;
    op.group = group_of(pickle_.at(group->items[0]).text, pickle_.at(group->items[1]).text);
    std::string name = profiled.substr(profiled.rfind(':') + 1);
    const std::size_t space = name.find(' ');
    const std::string peers = space == std::string::npos ? "" : name.substr(space + 1);
    name.resize(std::min({space, name.size(), longest_kind}));
    op.call.kind = kind_of(name);
    const bool point_to_point = op.call.kind == "send" || op.call.kind == "recv";
    if (point_to_point && peers.size() > 3) {
      std::uint32_t peer = 0;
      const std::size_t at = peers.find_first_of("-<");
      if (at != std::string::npos && at + 2 < peers.size() &&
          std::from_chars(peers.data() + at + 2, peers.data() + peers.size(), peer).ec == std::errc()) {
        op.call.root = Rank(peer);
      }
    }
    op.stack = frames(entry);
    const auto number = integer(entry, point_to_point ? "p2p_seq_id" : "collective_seq_id").value_or(0);
    op.sequence = static_cast<std::uint64_t>(std::max<std::int64_t>(number, 0));
    const Node* dtypes = pickle_.find(entry, "input_dtypes");
    if (dtypes != nullptr && !dtypes->items.empty()) op.call.dtype = dtype_of(pickle_.at(dtypes->items.front()).text);
    if (op.call.kind != "barrier") op.call.shape = shapes(entry, "input_sizes");
    op.issued_ns = created;
    op.entered_ns = integer(entry, "time_discovered_started_ns");
    op.finished_ns = integer(entry, "time_discovered_completed_ns");
    // Backends without hooks leave the state at "scheduled"; that the work was retired says that it has ended.
    const bool retired = integer(entry, "retired").value_or(0) != 0 || text(entry, "state") == "completed";
    if (!op.finished_ns.has_value() && retired) op.finished_ns = created;
    GroupTrace& known = trace_.groups[op.group];
    if (!point_to_point) {
      known.entered = std::max(known.entered, op.sequence + 1);
      if (op.finished_ns.has_value()) known.completed = std::max(known.completed, op.sequence + 1);
    }
    trace_.ops.push_back(std::move(op));
  }

  const Pickle& pickle_;
  WorkerTrace& trace_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> groups_;
};

}  // namespace

Result<WorkerTrace> read_torch_dump(std::span<const std::byte> bytes, const std::string& file,
                                    std::int64_t written_ns) {
  auto pickle = read_pickle(bytes);
  if (!pickle.ok()) return pickle.status();
  const Pickle& dump = pickle.value();
  if (dump.find(dump.root(), "entries") == nullptr && dump.find(dump.root(), "pg_config") == nullptr) {
    return refused("a pickle, and not one of a flight recorder");
  }
  WorkerTrace trace;
  trace.file = file;
  const Node* version = dump.find(dump.root(), "version");
  trace.writer = "torch's flight recorder " + (version != nullptr ? version->text : std::string("of no version"));
  trace.last_written_ns = written_ns;
  const std::string name = std::filesystem::path(file).filename();
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  std::uint32_t rank = 0;
  if (std::from_chars(name.data() + digits, name.data() + name.size(), rank).ec == std::errc()) {
    trace.slot = Slot(rank);
  } else {
    trace.remarks.emplace_back("its name does not end with a rank");
  }
  Dump(dump, trace).read();
  return trace;
}

void complete_members(recorder::JobTrace& job) {
  std::map<std::string, std::set<Slot>> users;
  std::set<Slot> all;
  for (const WorkerTrace& worker : job.workers) {
    if (!worker.slot.has_value()) continue;
    all.insert(*worker.slot);
    for (const GroupTrace& group : worker.groups) users[group.name].insert(*worker.slot);
  }
  if (!all.empty()) {
    // A rank that left no dump is a member all the same.
    for (std::uint32_t slot = 0; slot < all.rbegin()->value(); ++slot) all.insert(Slot(slot));
  }
  for (WorkerTrace& worker : job.workers) {
    for (GroupTrace& group : worker.groups) {
      if (!group.members.empty()) continue;
      const std::set<Slot>& members = group.name == "default_pg" ? all : users[group.name];
      group.members.assign(members.begin(), members.end());
    }
  }
}

}  // namespace closeranks::trace

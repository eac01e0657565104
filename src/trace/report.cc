#include "trace/report.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "trace/job_index.h"
#include "trace/sentences.h"

namespace closeranks::trace {

using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

// So many ops of a group are shown: the one at which it ended, and what came before.
constexpr std::size_t shown_ops = 6;
constexpr std::size_t most_groups = 8;
constexpr std::size_t cell_width = 14;
constexpr std::size_t first_width = 30;

std::string fitted(std::string text, std::size_t width) {
  // By characters, not bytes, there is nothing but ASCII of ours in a cell; a group's name may be cut within one.
  if (text.size() > width) text = text.substr(0, width - 2) + "..";
  text.resize(width, ' ');
  return text;
}

// Words moved to the next line at `width`, later lines indented.
std::string wrapped(const std::string& text, std::size_t width, const std::string& indent) {
  std::string out;
  std::istringstream lines(text);
  bool first_line = true;
  for (std::string line; std::getline(lines, line); first_line = false) {
    if (!first_line) out += "\n" + indent;
    std::size_t column = indent.size();
    std::istringstream words(line);
    bool first = true;
    for (std::string word; words >> word; first = false) {
      if (!first && column + 1 + word.size() > width) {
        out += "\n" + indent;
        column = indent.size();
      } else if (!first) {
        out += " ";
        ++column;
      }
      out += word;
      column += word.size();
    }
  }
  return out;
}

std::string cell(const Standing& standing, std::uint64_t sequence, const WorkerTrace& worker, std::int64_t latest_ns) {
  const OpTrace* op = standing.op(sequence);
  if (op == nullptr) {
    if (!standing.arrived(sequence)) return worker.ended_in_order ? "ended" : "not entered";
    return "overwritten";
  }
  if (!op->failure.empty()) return "failed";
  if (!op->finished_ns.has_value()) return "in it " + duration(latest_ns - arrival_ns(*op).value_or(latest_ns));
  return op->waited_ns > 1'000'000 ? "ok " + duration(op->waited_ns) : "ok";
}

void add_table(std::string& out, const JobIndex& index, const GroupIndex& group, const ReportStyle& style) {
  std::set<std::uint64_t> sequences;
  for (const auto& [slot, standing] : group.standing) {
    const std::size_t from = standing.ops.size() > shown_ops ? standing.ops.size() - shown_ops : 0;
    for (std::size_t at = from; at < standing.ops.size(); ++at) sequences.insert(standing.ops[at]->sequence);
  }
  while (sequences.size() > shown_ops) sequences.erase(sequences.begin());
  out += "\ngroup '" + group.name + "', " + name_slots(group.members) + "\n";
  if (sequences.empty()) {
    out += "  no ops\n";
    return;
  }
  const std::size_t room = style.width > first_width + 2 ? style.width - first_width - 2 : cell_width;
  const std::size_t columns = std::max<std::size_t>(room / (cell_width + 1), 1);
  for (std::size_t from = 0; from < group.members.size(); from += columns) {
    const std::size_t to = std::min(from + columns, group.members.size());
    out += "  " + fitted("", first_width);
    for (std::size_t at = from; at < to; ++at) {
      out += " " + fitted("slot " + std::to_string(group.members[at].value()), cell_width);
    }
    out.resize(out.find_last_not_of(' ') + 1);
    out += "\n";
    for (const std::uint64_t sequence : sequences) {
      std::set<std::string> calls;
      for (const auto& [slot, standing] : group.standing) {
        if (const OpTrace* op = standing.op(sequence)) calls.insert(describe(op->call));
      }
      const std::string call = calls.size() == 1 ? *calls.begin() : "different calls";
      out += "  " + fitted("#" + std::to_string(sequence) + " " + call, first_width);
      for (std::size_t at = from; at < to; ++at) {
        const auto found = group.standing.find(group.members[at]);
        const bool known = found != group.standing.end();
        out += " " + fitted(known ? cell(found->second, sequence, *found->second.worker, index.latest_ns()) : "no file",
                            cell_width);
      }
      out.resize(out.find_last_not_of(' ') + 1);
      out += "\n";
    }
  }
}

}  // namespace

std::string report(const Verdict& verdict, const recorder::JobTrace& job, const ReportStyle& style) {
  const JobIndex index(job);
  const std::size_t width = std::max<std::size_t>(style.width, 40);
  const std::string kind(name_of(verdict.kind));
  const char* const colour = verdict.kind == Kind::ok ? "\x1b[1;32m" : "\x1b[1;31m";
  std::string out = style.colours ? colour + kind + "\x1b[0m: " : kind + ": ";
  out += wrapped(std::string(kind.size() + 2, '.') + verdict.sentence, width, "  ").substr(kind.size() + 2) + "\n";
  if (!verdict.evidence.empty()) {
    out += "\nevidence\n";
    for (const std::string& line : verdict.evidence) out += "  - " + wrapped(line, width, "    ") + "\n";
  }
  std::size_t groups = 0;
  for (const GroupIndex& group : index.groups()) {
    if (group.members.empty()) continue;
    if (groups++ == most_groups) {
      out += "\nand " + std::to_string(index.groups().size() - most_groups) + " more groups (--json, --perfetto)\n";
      break;
    }
    add_table(out, index, group, style);
  }
  std::uint64_t overwritten = 0;
  out += "\nfiles\n";
  for (const WorkerTrace& worker : job.workers) {
    overwritten += worker.overwritten;
    std::string line = worker.file + ": " + worker.writer;
    if (worker.slot.has_value()) line += ", " + name_worker(*worker.slot, &worker);
    for (const std::string& remark : worker.remarks) line += "; " + remark;
    if (worker.damaged > 0) line += "; " + count_of(worker.damaged, "record") + " made no sense";
    out += "  " + wrapped(line, width, "    ") + "\n";
  }
  for (const std::string& remark : job.remarks) out += "  " + wrapped(remark, width, "    ") + "\n";
  if (overwritten > 0) out += "  the rings have overwritten " + count_of(overwritten, "older record") + "\n";
  return out;
}

}  // namespace closeranks::trace

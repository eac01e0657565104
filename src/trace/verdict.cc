#include "trace/verdict.h"

#include <algorithm>
#include <array>
#include <csignal>

#include "trace/deaths.h"
#include "trace/job_index.h"
#include "trace/mismatch.h"
#include "trace/sentences.h"
#include "trace/waits.h"

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

// More evidence than this is not read by anybody.
constexpr std::size_t most_evidence = 12;

void name(Verdict& verdict, const JobIndex& index, Slot slot) {
  verdict.slot = slot;
  const WorkerTrace* worker = index.last(slot);
  if (worker == nullptr) return;
  verdict.worker = worker->worker;
  verdict.host = worker->host;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// "all_reduce #12 of group 'world'": what the worker was in at its end; empty: in none.
std::string place_of(const JobIndex& index, const WorkerTrace* worker, Verdict& verdict) {
  if (worker == nullptr || !worker->slot.has_value() || !index.is_last(*worker)) return "";
  for (const GroupIndex& group : index.groups()) {
    const auto found = group.standing.find(*worker->slot);
    if (found == group.standing.end()) continue;
    for (const OpTrace* op : {found->second.pending, found->second.point_to_point}) {
      if (op == nullptr) continue;
      verdict.group = group.name;
      verdict.sequence = op->sequence;
      return name_op(op->call.kind, op->sequence, group.name);
    }
  }
  return "";
}

// Who failed because of it, and in which op.
std::string consequences(const JobIndex& index, Slot culprit, Verdict& verdict) {
  for (const GroupIndex& group : index.groups()) {
    std::vector<Slot> failed;
    const OpTrace* first = nullptr;
    for (const auto& [slot, standing] : group.standing) {
      if (slot == culprit || standing.pending == nullptr) continue;
      failed.push_back(slot);
      if (first == nullptr || standing.pending->sequence < first->sequence) first = standing.pending;
      if (!standing.pending->failure.empty()) {
        verdict.evidence.push_back(name_slots({slot}) + " was told: " + last_line(standing.pending->failure));
      }
    }
    if (first == nullptr) continue;
    if (!verdict.sequence.has_value()) {
      verdict.group = group.name;
      verdict.sequence = first->sequence;
    }
    return name_slots(failed) + (failed.size() == 1 ? " was" : " were") + " left in " +
           name_op(first->call.kind, first->sequence, group.name);
  }
  return "";
}

std::string advice_of(int signal) {
  switch (signal) {
    case SIGKILL:
      return "nothing in the program does that: look for an operator, a scheduler or a limit on memory";
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
      return "native code crashed: look at its log and core";
    case SIGABRT:
      return "native code gave up: the last lines of its log say why";
    default:
      return "find out who sent it";
  }
}

Verdict judge_death(const JobIndex& index, const Death& death) {
  Verdict verdict;
  name(verdict, index, death.slot);
  if (death.worker != nullptr) {
    verdict.worker = death.worker->worker;
    verdict.host = death.worker->host;
  } else if (death.id.has_value()) {
    verdict.worker = death.id;
  }
  const std::string who = name_worker(death.slot, death.worker);
  const std::string place = place_of(index, death.worker, verdict);
  const std::string where = place.empty() ? (death.worker == nullptr ? "" : " outside any op") : " in " + place;
  append(verdict.evidence, death.evidence);
  const std::string others = consequences(index, death.slot, verdict);
  const std::string then = others.empty() ? "" : "; " + others;
  switch (death.how) {
    case Death::How::signal:
    case Death::How::gone:
      verdict.kind = Kind::killed;
      if (death.out_of_memory) {
        verdict.sentence = who + " was killed by the kernel for memory" + where + then +
                           "; give the job more memory or smaller batches";
      } else if (death.signal != 0) {
        verdict.sentence = who + " was killed by signal " + std::to_string(death.signal) + " (" +
                           name_signal(death.signal) + ")" + where + then + "; " + advice_of(death.signal);
      } else {
        verdict.sentence = who + " is gone" + where + (death.detail.empty() ? "" : ": " + death.detail) + then +
                           "; nobody saw its signal: look at its host's log";
      }
      break;
    case Death::How::exception:
      verdict.kind = Kind::exception;
      verdict.sentence = who + " raised " + death.detail + where + then;
      break;
    case Death::How::status:
      verdict.kind = Kind::exception;
      verdict.sentence =
          who + " exited with status " + std::to_string(death.status) + where + then + "; its log has the reason";
      break;
    case Death::How::fenced_stopped:
      verdict.kind = Kind::stopped;
      verdict.sentence =
          who + " was stopped (" + death.detail + ")" + where + " and then fenced" + then + "; find out who stopped it";
      break;
    case Death::How::fenced_kernel:
      verdict.kind = Kind::uninterruptible;
      verdict.sentence =
          who + " was " + death.detail + where + " and then fenced" + then + "; look at that file system or device";
      break;
    case Death::How::fenced_hung:
      verdict.kind = Kind::stuck;
      verdict.sentence = who + " " + death.detail + ", and was fenced for it" + then;
      break;
  }
  if (!death.stack.empty()) verdict.evidence.push_back("its stack:\n" + death.stack);
  return verdict;
}

Verdict judge_mismatch(const JobIndex& index, const CallMismatch& found) {
  Verdict verdict;
  verdict.kind = found.kind;
  verdict.group = found.group->name;
  verdict.sequence = found.sequence;
  const std::string op = name_op(found.right.kind, found.sequence, found.group->name);
  std::vector<Slot> all = found.others;
  all.insert(all.end(), found.culprits.begin(), found.culprits.end());
  for (const Slot slot : all) {
    const OpTrace* call = found.group->standing.at(slot).op(found.sequence);
    verdict.evidence.push_back(name_worker(index, slot) + " called " + describe(call->call) + at_its_line(*call));
  }
  if (found.culprits.empty()) {
    verdict.sentence = "the members of group '" + found.group->name + "' made different calls as #" +
                       std::to_string(found.sequence) + ": " + describe(found.right) + " and " + describe(found.wrong) +
                       "; the files cannot tell which side is wrong";
    return verdict;
  }
  const Slot culprit = found.culprits.front();
  name(verdict, index, culprit);
  const std::string who = found.culprits.size() == 1 ? name_worker(index, culprit) : name_slots(found.culprits);
  if (found.kind == Kind::missing_call) {
    verdict.sentence = who + " left out " + op + " and called what comes after it, " + describe(found.wrong) +
                       ", where " + name_slots(found.others) + " called " + describe(found.right) + " (" + found.why +
                       ")";
  } else {
    verdict.sentence = who + " called " + describe(found.wrong) + " as #" + std::to_string(found.sequence) +
                       " of group '" + found.group->name + "', where " + name_slots(found.others) + " called " +
                       describe(found.right) + " (" + found.why + ")";
  }
  return verdict;
}

Verdict judge_hang(const JobIndex& index, const Hang& hang) {
  Verdict verdict;
  verdict.kind = hang.kind;
  verdict.evidence = hang.evidence;
  const Wait& wait = *hang.wait;
  verdict.group = wait.group_name;
  verdict.sequence = wait.op->sequence;
  const std::string op = name_op(wait.op->call.kind, wait.op->sequence, wait.group_name);
  std::vector<Slot> waiting;
  if (wait.group == nullptr) {
    waiting.push_back(wait.slot);
  } else {
    for (const auto& [slot, standing] : wait.group->standing) {
      if (standing.op(wait.op->sequence) == nullptr) continue;
      if (std::find(hang.culprits.begin(), hang.culprits.end(), slot) == hang.culprits.end()) waiting.push_back(slot);
    }
  }
  const std::string waited = duration(wait.until_ns - wait.since_ns);
  const std::string others =
      waiting.empty() ? "" : name_slots(waiting) + (waiting.size() == 1 ? " has" : " have") + " waited for " + waited;
  const bool one = hang.culprits.size() == 1;
  if (one) name(verdict, index, hang.culprits.front());
  const std::string who = one ? name_worker(index, hang.culprits.front()) : "";
  switch (hang.kind) {
    case Kind::stopped:
      verdict.sentence = who + " is " + hang.state + "; in " + op + " " + others +
                         "; find out who stopped it, or continue it with kill -CONT";
      break;
    case Kind::uninterruptible:
      verdict.sentence = who + " hangs " + hang.state + " and cannot be interrupted; in " + op + " " + others +
                         "; look at that file system or device";
      break;
    case Kind::left_early:
      verdict.sentence = who + " ended in order without " + op + ", in which " + others;
      break;
    case Kind::missing_call:
      verdict.sentence = who + " went on without " + op + ", in which " + others +
                         (hang.evidence.empty() ? "" : ": " + hang.evidence.front());
      break;
    case Kind::data_starved:
      verdict.sentence = who + " waits for its data loader and has not entered " + op + ", in which " + others;
      break;
    case Kind::stuck: {
      const std::string frame = innermost(hang.stack);
      verdict.sentence = who + " has not entered " + op + ", in which " + others + ": it is in user code" +
                         (frame.empty() ? "" : ", at " + frame);
      break;
    }
    case Kind::wrong_order:
      if (hang.culprits.empty()) {
        verdict.sentence = name_slots(hang.circle) +
                           " wait for each other in a circle, in ops that they use in different "
                           "order (" +
                           op + " is one); the files cannot tell whose order is wrong";
      } else {
        name(verdict, index, hang.culprits.front());
        verdict.sentence = (one ? who : name_slots(hang.culprits)) + " went to " + op +
                           " first, while the others wait for it in another group: " + hang.evidence.front();
      }
      break;
    default:
      verdict.slot.reset();
      verdict.worker.reset();
      verdict.host.clear();
      if (!hang.silent.empty()) {
        verdict.sentence = others + " in " + op + "; " + name_slots(hang.silent) +
                           " left no file that would tell why: look there first";
      } else if (hang.culprits.size() > 1) {
        verdict.sentence = others + " in " + op + "; neither of " + name_slots(hang.culprits) +
                           " has come, and the files cannot tell which of them holds up the other";
      } else {
        verdict.sentence =
            others + " in " + op + ", which all its members have entered; the files do not say why it does not end";
      }
      break;
  }
  if (!hang.stack.empty()) verdict.evidence.push_back("its Python stack:\n" + hang.stack);
  return verdict;
}

// An earlier value may have stood in what is missing.
bool may_have_lost_records(const JobIndex& index, std::int64_t before_ns) {
  return std::any_of(index.slots().begin(), index.slots().end(), [&](Slot slot) {
    const WorkerTrace* worker = index.last(slot);
    if (worker == nullptr || !JobIndex::is_whole(*worker)) return true;
    if (worker->overwritten == 0) return false;
    std::int64_t oldest = worker->last_written_ns;
    for (const OpTrace& op : worker->ops) oldest = std::min(oldest, arrival_ns(op).value_or(oldest));
    for (const Event& event : worker->events) oldest = std::min(oldest, event.at_ns);
    return oldest > before_ns;
  });
}

Slot whose_value(const SeenEvent& seen) {
  return seen.event->slots.empty() ? seen.by->slot.value_or(Slot(0)) : seen.event->slots.front();
}

std::string group_of(const SeenEvent& seen) {
  const auto group = seen.event->group;
  return group.has_value() && *group < seen.by->groups.size() ? seen.by->groups[*group].name : "";
}

// Between hosts, the order of two events within this time is not known.
constexpr std::int64_t clock_slack_ns = 20'000'000;

std::optional<Verdict> judge_not_finite(const JobIndex& index) {
  // Later ones are what the first has spread to. Within a group the numbers tell which was first, whatever the clocks.
  const SeenEvent* first = nullptr;
  std::vector<const SeenEvent*> all;
  for (const SeenEvent& seen : index.events()) {
    if (seen.event->kind == EventKind::not_finite) all.push_back(&seen);
  }
  for (const SeenEvent* seen : all) {
    const bool before =
        first != nullptr && group_of(*seen) == group_of(*first) && seen->event->number < first->event->number;
    if (first == nullptr || before) first = seen;
  }
  if (first == nullptr) return std::nullopt;
  const bool is_clear = std::none_of(all.begin(), all.end(), [&](const SeenEvent* seen) {
    return whose_value(*seen) != whose_value(*first) && seen->by->host != first->by->host &&
           group_of(*seen) != group_of(*first) && seen->event->at_ns - first->event->at_ns < clock_slack_ns;
  });
  const Event& event = *first->event;
  Verdict verdict;
  verdict.kind = Kind::nan;
  name(verdict, index, whose_value(*first));
  verdict.group = group_of(*first);
  verdict.sequence = event.number;
  std::string kind;
  for (const OpTrace& op : first->by->ops) {
    if (op.group == event.group.value_or(0) && op.sequence == event.number) kind = op.call.kind;
  }
  const std::string op = name_op(kind, event.number, verdict.group);
  if (!is_clear || may_have_lost_records(index, event.at_ns)) {
    verdict.sentence =
        "a value that is not finite went into " + op + ", " + name_worker(index, *verdict.slot) +
        " gave one; it may not have been the first: records are lost, or hosts' clocks too far apart to tell";
    verdict.slot.reset();
    verdict.worker.reset();
    verdict.host.clear();
    return verdict;
  }
  verdict.sentence = name_worker(index, *verdict.slot) + " gave the first value that is not finite, " +
                     (event.detail.empty() ? "a NaN or an infinity" : event.detail) + ", to " + op;
  for (const SeenEvent* seen : all) {
    if (verdict.evidence.size() >= most_evidence) break;
    verdict.evidence.push_back(name_slots({whose_value(*seen)}) + ", #" + std::to_string(seen->event->number) + ": " +
                               seen->event->detail);
  }
  return verdict;
}

bool is_about_numbers(const std::string& text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower.find("nan") != std::string::npos || lower.find("inf") != std::string::npos ||
         lower.find("finite") != std::string::npos;
}

// Nothing is wrong, or nothing that the files show.
Verdict judge_rest(const JobIndex& index, const std::vector<Death>& deaths) {
  Verdict verdict;
  std::vector<Slot> ended;
  std::vector<Slot> running;
  std::vector<Slot> silent;
  std::vector<Slot> cut;
  const std::vector<Slot> vacant = vacant_slots(index);
  for (const Slot slot : index.slots()) {
    if (std::find(vacant.begin(), vacant.end(), slot) != vacant.end()) continue;
    const WorkerTrace* worker = index.last(slot);
    if (worker == nullptr) {
      silent.push_back(slot);
    } else if (worker->ended_in_order) {
      ended.push_back(slot);
    } else if (worker->running != false) {
      running.push_back(slot);
    } else {
      cut.push_back(slot);
    }
  }
  if (!deaths.empty()) {
    verdict.kind = Kind::no_culprit;
    const Death& first = deaths.front();
    verdict.sentence = name_worker(first.slot, first.worker) + " was the first to fail (" +
                       (!first.detail.empty() ? first.detail
                        : first.signal != 0   ? "killed by signal " + std::to_string(first.signal)
                                              : "it is gone") +
                       "), because of something that none of the files shows";
    append(verdict.evidence, first.evidence);
    if (!silent.empty()) verdict.evidence.push_back(name_slots(silent) + " left no file: look there first");
    return verdict;
  }
  for (const GroupIndex& group : index.groups()) {
    for (const auto& [slot, standing] : group.standing) {
      if (standing.pending == nullptr || standing.pending->failure.empty()) continue;
      verdict.kind = Kind::no_culprit;
      verdict.group = group.name;
      verdict.sequence = standing.pending->sequence;
      verdict.sentence = name_op(standing.pending->call.kind, standing.pending->sequence, group.name) + " failed (" +
                         last_line(standing.pending->failure) + "), and the files do not say who caused it";
      return verdict;
    }
  }
  verdict.kind = cut.empty() ? Kind::ok : Kind::no_culprit;
  if (!cut.empty()) {
    verdict.sentence = "the files of " + name_slots(cut) + " end without a reason; no worker's file shows one";
  } else if (running.empty() && ended.empty()) {
    verdict.kind = Kind::no_culprit;
    verdict.sentence = "no worker left a file that could be read";
  } else if (running.empty()) {
    verdict.sentence = "nothing is wrong: " + name_slots(ended) + " ended in order";
  } else {
    verdict.sentence = "nothing is wrong: " + name_slots(running) + (running.size() == 1 ? " runs" : " run") +
                       ", and nobody waits for long";
  }
  if (!silent.empty()) verdict.evidence.push_back(name_slots(silent) + " left no file");
  return verdict;
}

// A wait that had gone on for long when somebody ended the job, or that others had already given up: the end came of
// it.
bool comes_before(const Hang& hang, const Death& death, const VerdictOptions& options) {
  if (hang.kind == Kind::no_culprit) return false;
  const bool given_up = !hang.wait->op->failure.empty() && hang.wait->until_ns < death.at_ns &&
                        hang.wait->until_ns - hang.wait->since_ns >= options.patience_ns;
  if (given_up) return true;
  return death.was_asked() && death.at_ns - hang.at_ns >= options.patience_ns;
}

// Every other slot has a file that says all that it should.
bool others_told(const JobIndex& index, Slot but) {
  return std::all_of(index.slots().begin(), index.slots().end(), [&](Slot slot) {
    const WorkerTrace* worker = index.last(slot);
    return slot == but || (worker != nullptr && JobIndex::is_whole(*worker));
  });
}

// Somebody was left in an op of a group of the slot's: its end mattered.
bool was_missed(const JobIndex& index, Slot slot) {
  return std::any_of(index.groups().begin(), index.groups().end(), [slot](const GroupIndex& group) {
    if (std::find(group.members.begin(), group.members.end(), slot) == group.members.end()) return false;
    return std::any_of(group.standing.begin(), group.standing.end(), [slot](const auto& standing) {
      return standing.first != slot && standing.second.pending != nullptr;
    });
  });
}

// The first end that may be the cause of the others.
std::vector<Death>::const_iterator find_root(const JobIndex& index, const std::vector<Death>& deaths) {
  // Those that ended because an op had failed were asked by nobody.
  const auto asked = std::count_if(deaths.begin(), deaths.end(),
                                   [](const Death& death) { return death.was_asked() && !death.consequence; });
  return std::find_if(deaths.begin(), deaths.end(), [&](const Death& death) {
    if (death.consequence) return false;
    // Several that were asked to end, or whose signal nobody saw: somebody ended the job.
    if (death.was_asked() && (asked > 1 || !others_told(index, death.slot))) return false;
    // What any other end came of, or that the job went on after it, may stand in a file that is not there.
    const bool is_whole = death.worker != nullptr && JobIndex::is_whole(*death.worker);
    if (!others_told(index, death.slot) && !(is_whole && was_missed(index, death.slot))) return false;
    return speaks_for_itself(death);
  });
}

}  // namespace

std::string_view name_of(Kind kind) {
  static constexpr std::array<std::string_view, 16> names{
      "ok",           "killed",   "exception",    "stopped",     "stuck",       "uninterruptible",
      "missing_call", "wrong_op", "wrong_order",  "wrong_shape", "wrong_dtype", "wrong_root",
      "left_early",   "nan",      "data_starved", "no_culprit"};
  return names.at(static_cast<std::size_t>(kind));
}

Verdict judge(const recorder::JobTrace& job, const VerdictOptions& options) {
  const JobIndex index(job);
  const std::vector<Death> deaths = find_deaths(index);
  const Waits waits(index, options);
  const auto mismatch = find_mismatch(index);
  const auto hang = waits.find_hang();
  const auto not_finite = judge_not_finite(index);
  const auto root = find_root(index, deaths);
  Verdict verdict;
  const bool mismatched_first = mismatch.has_value() && (root == deaths.end() || mismatch->at_ns < root->at_ns);
  if (mismatched_first) {
    verdict = judge_mismatch(index, *mismatch);
  } else if (root != deaths.end() && !(hang.has_value() && comes_before(*hang, *root, options))) {
    const bool by_numbers = root->how == Death::How::exception && is_about_numbers(root->detail);
    verdict = by_numbers && not_finite.has_value() ? *not_finite : judge_death(index, *root);
  } else if (hang.has_value() && (hang->kind != Kind::no_culprit || !not_finite.has_value())) {
    verdict = judge_hang(index, *hang);
  } else if (not_finite.has_value()) {
    verdict = *not_finite;
  } else {
    verdict = judge_rest(index, deaths);
  }
  append(verdict.evidence, repaired_deaths(index));
  if (verdict.evidence.size() > most_evidence) verdict.evidence.resize(most_evidence);
  return verdict;
}

}  // namespace closeranks::trace

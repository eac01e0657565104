// One small job by hand for each kind of verdict, and for what is nearly one.
#include "trace/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace closeranks::trace {
namespace {

using recorder::Event;
using recorder::EventKind;
using recorder::GroupTrace;
using recorder::JobTrace;
using recorder::OpCall;
using recorder::OpTrace;
using recorder::Role;
using recorder::WorkerTrace;
using testing::HasSubstr;

constexpr std::int64_t second = 1'000'000'000;

OpCall all_reduce() { return {"all_reduce", "float32", "sum", "[64, 3]", std::nullopt, 768}; }

// Four slots in one group, each with ten all_reduces behind it; read 20 s after the start.
class Job {
 public:
  explicit Job(std::uint32_t slots = 4) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      WorkerTrace worker;
      worker.file = "worker-" + std::to_string(slot);
      worker.slot = Slot(slot);
      worker.worker = WorkerId(slot);
      worker.host = "alpha";
      worker.running = true;
      GroupTrace group;
      group.name = "default_pg";
      group.key = 7;
      for (std::uint32_t member = 0; member < slots; ++member) group.members.emplace_back(member);
      worker.groups.push_back(group);
      trace.workers.push_back(worker);
    }
    for (std::uint64_t i = 0; i < 10; ++i) {
      for (std::uint32_t slot = 0; slot < slots; ++slot)
        finish(slot, all_reduce(), static_cast<std::int64_t>(i) * second / 10);
    }
    trace.read_ns = 20 * second;
  }

  WorkerTrace& worker(std::uint32_t slot) { return trace.workers.at(slot); }

  void finish(std::uint32_t slot, const OpCall& call, std::int64_t at_ns, std::uint32_t group = 0) {
    GroupTrace& known = worker(slot).groups.at(group);
    OpTrace op;
    op.group = group;
    op.sequence = known.entered;
    op.call = call;
    op.issued_ns = op.entered_ns = at_ns;
    op.finished_ns = at_ns + 1000;
    worker(slot).ops.push_back(op);
    known.completed = ++known.entered;
    worker(slot).last_written_ns = at_ns + 1000;
  }

  void enter(std::uint32_t slot, const OpCall& call, std::int64_t at_ns, std::uint32_t group = 0) {
    GroupTrace& known = worker(slot).groups.at(group);
    OpTrace op;
    op.group = group;
    op.sequence = known.entered++;
    op.call = call;
    op.issued_ns = op.entered_ns = at_ns;
    known.current = op;
    worker(slot).last_written_ns = at_ns;
  }
  void enter_all_but(std::uint32_t but, std::int64_t at_ns = 2 * second) {
    for (std::uint32_t slot = 0; slot < trace.workers.size(); ++slot) {
      if (slot != but && trace.workers[slot].role == Role::worker) enter(slot, all_reduce(), at_ns);
    }
  }
  void fail(std::uint32_t slot, const std::string& why, std::int64_t at_ns) {
    OpTrace failed = *worker(slot).groups[0].current;
    failed.finished_ns = at_ns;
    failed.failure = why;
    worker(slot).ops.push_back(failed);
    worker(slot).groups[0].current.reset();
    worker(slot).last_written_ns = at_ns;
  }
  Event& note(std::uint32_t slot, EventKind kind, std::int64_t at_ns) {
    Event event;
    event.kind = kind;
    event.at_ns = at_ns;
    worker(slot).events.push_back(event);
    return worker(slot).events.back();
  }
  WorkerTrace& agent() {
    if (trace.workers.back().role != Role::agent) {
      trace.workers.emplace_back();
      trace.workers.back().role = Role::agent;
      trace.workers.back().file = "agent";
    }
    return trace.workers.back();
  }
  void exited(std::uint32_t slot, int wait_status, std::int64_t at_ns) {
    Event event;
    event.kind = EventKind::worker_exited;
    event.at_ns = at_ns;
    event.slots = {Slot(slot)};
    event.worker = WorkerId(slot);
    event.number = static_cast<std::uint64_t>(wait_status);
    agent().events.push_back(event);
    worker(slot).running = false;
  }
  void observe(std::uint32_t slot, EventKind kind, const std::string& detail, std::int64_t at_ns) {
    Event event;
    event.kind = kind;
    event.at_ns = at_ns;
    event.slots = {Slot(slot)};
    event.detail = detail;
    agent().events.push_back(event);
  }
  void raise(std::uint32_t slot, const std::string& line, std::int64_t at_ns) {
    note(slot, EventKind::exception, at_ns).detail = line;
    worker(slot).running = false;
  }
  void end(std::uint32_t slot, std::int64_t at_ns) {
    note(slot, EventKind::ended, at_ns).detail = "exit status 0";
    worker(slot).ended_in_order = true;
    worker(slot).running = false;
  }
  void add_group(const std::string& name, const std::vector<std::uint32_t>& members) {
    for (const std::uint32_t slot : members) {
      GroupTrace group;
      group.name = name;
      group.key = 8;
      for (const std::uint32_t member : members) group.members.emplace_back(member);
      worker(slot).groups.push_back(group);
    }
  }

  JobTrace trace;
};

struct Case {
  const char* name;
  std::function<void(Job&)> happens;
  Kind kind;
  std::optional<std::uint32_t> slot;
  const char* says;
};

class Verdicts : public testing::TestWithParam<Case> {};

TEST_P(Verdicts, NameTheCause) {
  Job job;
  GetParam().happens(job);
  const Verdict verdict = judge(job.trace);
  EXPECT_EQ(name_of(verdict.kind), name_of(GetParam().kind)) << verdict.sentence;
  const auto slot = GetParam().slot.has_value() ? std::optional(Slot(*GetParam().slot)) : std::nullopt;
  EXPECT_EQ(verdict.slot, slot) << verdict.sentence;
  EXPECT_THAT(verdict.sentence, HasSubstr(GetParam().says));
  if (slot.has_value()) {
    EXPECT_EQ(verdict.host, "alpha");
    EXPECT_EQ(verdict.worker, WorkerId(slot->value()));
  }
}

OpCall with(const std::function<void(OpCall&)>& change, OpCall call = all_reduce()) {
  change(call);
  return call;
}

OpCall broadcast(std::uint32_t root) { return {"broadcast", "float32", "", "[4]", Rank(root), 16}; }

const std::vector<Case> cases{
    {"Runs", [](Job&) {}, Kind::ok, std::nullopt, "slots 0, 1, 2 and 3 run"},
    {"Ended",
     [](Job& job) {
       for (std::uint32_t slot = 0; slot < 4; ++slot) job.end(slot, 2 * second);
     },
     Kind::ok, std::nullopt, "ended in order"},
    {"Late", [](Job& job) { job.enter_all_but(2, 20 * second - second / 2); }, Kind::ok, std::nullopt, "nobody waits"},
    {"Killed",
     [](Job& job) {
       job.enter_all_but(2);
       job.exited(2, 9, 2 * second + second / 100);
       for (const std::uint32_t slot : {0U, 1U, 3U}) {
         job.fail(slot, "PeerLost: slot 2 is gone", 2 * second + second / 50);
         job.raise(slot, "closeranks.PeerLost: slot 2 is gone", 2 * second + second / 10);
         job.exited(slot, 256, 3 * second);
       }
     },
     Kind::killed, 2, "killed by signal 9 (SIGKILL)"},
    {"GoneUnseenAndTheOthersEndedOfIt",  // without a word of their own: os._exit
     [](Job& job) {
       job.enter_all_but(2);
       job.worker(2).running = false;
       for (const std::uint32_t slot : {0U, 1U, 3U}) {
         Event& lost = job.note(slot, EventKind::peer_lost, 2 * second + second / 100);
         lost.slots = {Slot(2)};
         lost.detail = "its process has ended";
         job.fail(slot, "PeerLost: slot 2 is gone", 2 * second + second / 100);
         job.worker(slot).running = false;
       }
     },
     Kind::killed, 2, "is gone"},
    {"OutOfMemory",
     [](Job& job) {
       job.enter_all_but(1);
       job.exited(1, 9, 3 * second);
       job.observe(1, EventKind::out_of_memory, "oom_kill 1", 3 * second);
     },
     Kind::killed, 1, "by the kernel for memory"},
    {"KilledLongAgoAndRepaired",
     [](Job& job) {
       job.exited(3, 9, second);
       for (const std::uint32_t slot : {0U, 1U, 2U}) job.finish(slot, all_reduce(), 2 * second);
     },
     Kind::ok, std::nullopt, "nothing is wrong"},
    {"Exception",
     [](Job& job) {
       job.enter_all_but(0);
       job.raise(0, "KeyError: 'labels'", 2 * second);
       job.exited(0, 256, 3 * second);
       job.fail(1, "PeerLost: slot 0 is gone", 3 * second);
       job.raise(1, "RuntimeError: step failed", 3 * second + second / 100);
     },
     Kind::exception, 0, "KeyError: 'labels'"},
    {"ExceptionOfTheOthersFirstInTheAgentsEyes",
     [](Job& job) {
       job.enter_all_but(0);
       job.fail(1, "PeerLost: slot 0 is gone", 2 * second + second / 10);
       job.exited(1, 256, 2 * second + second / 5);
       job.raise(0, "KeyError: 'labels'", 2 * second);
       job.exited(0, 256, 4 * second);
     },
     Kind::exception, 0, "KeyError"},
    {"Status",
     [](Job& job) {
       job.enter_all_but(0);
       job.exited(0, 3 << 8, 3 * second);
     },
     Kind::exception, 0, "exited with status 3"},
    {"Stopped",
     [](Job& job) {
       job.enter_all_but(2);
       job.observe(2, EventKind::peer_state, "stopped (T)", 3 * second);
     },
     Kind::stopped, 2, "is stopped"},
    {"StoppedAndContinued",
     [](Job& job) {
       job.enter_all_but(2);
       job.observe(2, EventKind::peer_state, "stopped (T)", 3 * second);
       job.observe(2, EventKind::peer_state, "running", 4 * second);
     },
     Kind::stuck, 2, "user code"},
    {"StoppedAndFenced",
     [](Job& job) {
       job.enter_all_but(2);
       job.observe(2, EventKind::excluded, "stopped for 5.0 s", 8 * second);
       job.exited(2, 9, 8 * second + second / 10);
     },
     Kind::stopped, 2, "stopped for 5.0 s"},
    {"Uninterruptible",
     [](Job& job) {
       job.enter_all_but(1);
       job.observe(1, EventKind::peer_state, "in the kernel: fuse_simple_request", 3 * second);
     },
     Kind::uninterruptible, 1, "fuse_simple_request"},
    {"Stuck",
     [](Job& job) {
       job.enter_all_but(3);
       job.observe(3, EventKind::stack, "", 5 * second);
       job.agent().events.back().stack =
           "File \"train.py\", line 41 in augment\nFile \"train.py\", line 90 in <module>\n";
     },
     Kind::stuck, 3, "line 41 in augment"},
    {"StuckAndFencedAsItsJobEnded",
     [](Job& job) {
       job.enter_all_but(3);
       job.exited(3, 9, 8 * second);
       job.agent().events.back().detail =
           "killed by signal 9 (SIGKILL): has not entered all_reduce #10, it is in step 0";
       job.observe(3, EventKind::stack, "", 7 * second);
       job.agent().events.back().stack = "File \"train.py\", line 41 in augment\n";
     },
     Kind::stuck, 3, "has not entered all_reduce #10"},
    {"StuckThenTheOthersTimedOutAndItWasKilled",
     [](Job& job) {
       job.enter_all_but(3);
       for (const std::uint32_t slot : {0U, 1U, 2U}) {
         job.fail(slot, "Timeout: slot 3 did not come", 12 * second);
         job.raise(slot, "closeranks.Timeout: slot 3 did not come", 12 * second);
       }
       job.exited(3, 15, 13 * second);
     },
     Kind::stuck, 3, "has not entered all_reduce #10"},
    {"ChainOfWaits",
     [](Job& job) {
       // 0 and 1 wait for 2, who waits in another group for 3.
       job.add_group("pair", {2, 3});
       for (const std::uint32_t slot : {0U, 1U}) job.enter(slot, all_reduce(), 2 * second);
       job.enter(2, all_reduce(), 2 * second, 1);
     },
     Kind::stuck, 3, "has not entered"},
    {"MissingCall",
     [](Job& job) {
       for (std::uint32_t slot = 0; slot < 4; ++slot) job.note(slot, EventKind::step, second + slot).number = 5;
       job.enter_all_but(1);
       job.note(1, EventKind::step, 3 * second).number = 6;
     },
     Kind::missing_call, 1, "went on without"},
    {"WrongOp",
     [](Job& job) {
       job.enter_all_but(1);
       job.enter(1, {"all_gather", "float32", "", "[64, 3]", std::nullopt, 8}, 2 * second);
     },
     Kind::wrong_op, 1, "called all_gather"},
    {"WrongReduction",
     [](Job& job) {
       job.enter_all_but(1);
       job.enter(1, with([](OpCall& call) { call.reduce = "max"; }), 2 * second);
     },
     Kind::wrong_op, 1, "max"},
    {"WrongShapeAndEverybodyWasTold",
     [](Job& job) {
       job.enter_all_but(0);
       job.enter(0, with([](OpCall& call) { call.shape = "[65, 3]"; }), 2 * second);
       for (std::uint32_t slot = 0; slot < 4; ++slot) {
         job.fail(slot, "Mismatch", 2 * second + 1000);
         job.raise(slot, "closeranks.Mismatch: ...", 2 * second + second / 10);
       }
     },
     Kind::wrong_shape, 0, "[65, 3]"},
    {"WrongDtype",
     [](Job& job) {
       job.enter_all_but(2);
       job.enter(2, with([](OpCall& call) { call.dtype = "float64"; }), 2 * second);
     },
     Kind::wrong_dtype, 2, "float64"},
    {"WrongRoot",
     [](Job& job) {
       for (std::uint32_t slot = 0; slot < 4; ++slot) job.enter(slot, broadcast(slot == 3 ? 3 : 0), 2 * second);
     },
     Kind::wrong_root, 3, "root 3"},
    {"ShapesOfAGatherMayDiffer",
     [](Job& job) {
       for (std::uint32_t slot = 0; slot < 4; ++slot) {
         job.finish(slot, {"gather", "float32", "", slot == 0 ? "[4] x 4" : "[4]", Rank(0), 64}, 2 * second);
       }
     },
     Kind::ok, std::nullopt, "nothing is wrong"},
    {"LeftEarly",
     [](Job& job) {
       job.enter_all_but(2);
       job.end(2, 2 * second);
       job.fail(0, "PeerLost: slot 2 is gone", 2 * second + second / 10);
       job.raise(0, "closeranks.PeerLost", 2 * second + second / 10);
     },
     Kind::left_early, 2, "ended in order without all_reduce #10"},
    {"NotANumber",
     [](Job& job) {
       Event& first = job.note(1, EventKind::not_finite, second);
       first.slots = {Slot(1)};
       first.group = 0;
       first.number = 9;
       first.detail = "NaN at element 17";
       job.note(0, EventKind::not_finite, second * 2).slots = {Slot(0)};
       job.raise(0, "FloatingPointError: loss is nan", 3 * second);
     },
     Kind::nan, 1, "NaN at element 17"},
    {"DataStarved",
     [](Job& job) {
       job.note(2, EventKind::loading, second).number = 1;
       job.enter_all_but(2);
     },
     Kind::data_starved, 2, "data loader"},
    {"DataCame",
     [](Job& job) {
       job.note(2, EventKind::loading, second).number = 1;
       job.note(2, EventKind::loading, second).number = 0;
       job.enter_all_but(2);
     },
     Kind::stuck, 2, "has not entered"},
    {"TwoHaveNotCome",
     [](Job& job) {
       for (const std::uint32_t slot : {0U, 1U}) job.enter(slot, all_reduce(), 2 * second);
     },
     Kind::no_culprit, std::nullopt, "neither of slots 2 and 3 has come"},
    {"NoFile",
     [](Job& job) {
       job.enter_all_but(2);
       job.trace.workers.erase(job.trace.workers.begin() + 2);
     },
     Kind::no_culprit, std::nullopt, "slot 2 left no file"},
    {"ItsFileIsCut",
     [](Job& job) {
       job.enter_all_but(2);
       job.worker(2).remarks.emplace_back("cut short");
     },
     Kind::no_culprit, std::nullopt, "look there first"},
    {"AllAreInIt",
     [](Job& job) {
       for (std::uint32_t slot = 0; slot < 4; ++slot) job.enter(slot, all_reduce(), 2 * second);
     },
     Kind::no_culprit, std::nullopt, "which all its members have entered"},
    {"EverythingWasKilledAtOnce",
     [](Job& job) {
       for (std::uint32_t slot = 0; slot < 4; ++slot) job.exited(slot, 15, 5 * second);
     },
     Kind::no_culprit, std::nullopt, ""},
};

INSTANTIATE_TEST_SUITE_P(Table, Verdicts, testing::ValuesIn(cases),
                         [](const testing::TestParamInfo<Case>& one) { return one.param.name; });

// Two groups in another order: the one that has always gone the other way round is it.
TEST(Verdict, WrongOrder) {
  Job job(2);
  job.add_group("other", {0, 1});
  for (std::int64_t round = 0; round < 3; ++round) {
    for (const std::uint32_t slot : {0U, 1U}) {
      job.finish(slot, all_reduce(), (2 + round) * second);
      job.finish(slot, all_reduce(), (2 + round) * second + second / 2, 1);
    }
  }
  job.enter(0, all_reduce(), 6 * second);
  job.enter(1, all_reduce(), 6 * second, 1);
  const Verdict verdict = judge(job.trace);
  EXPECT_EQ(name_of(verdict.kind), "wrong_order") << verdict.sentence;
  EXPECT_EQ(verdict.slot, Slot(1)) << verdict.sentence;
}

TEST(Verdict, WrongOrderWithoutAPastAccusesNobody) {
  Job job(2);
  job.add_group("other", {0, 1});
  job.enter(0, all_reduce(), 6 * second);
  job.enter(1, all_reduce(), 6 * second, 1);
  const Verdict verdict = judge(job.trace);
  EXPECT_EQ(name_of(verdict.kind), "wrong_order") << verdict.sentence;
  EXPECT_EQ(verdict.slot, std::nullopt);
}

TEST(Verdict, TwoSidesWithoutAPastAccuseNobody) {
  Job job(2);
  for (WorkerTrace& worker : job.trace.workers) worker.ops.clear();
  job.enter(0, all_reduce(), 6 * second);
  job.enter(1, broadcast(0), 6 * second);
  const Verdict verdict = judge(job.trace);
  EXPECT_EQ(name_of(verdict.kind), "wrong_op");
  EXPECT_EQ(verdict.slot, std::nullopt);
  EXPECT_THAT(verdict.sentence, HasSubstr("cannot tell which side"));
}

TEST(Verdict, AWorkerThatStartsUpIsNotStuck) {
  const auto judged_after = [](std::int64_t seconds) {
    Job job(3);
    for (WorkerTrace& worker : job.trace.workers) {
      worker.ops.clear();
      worker.groups[0].entered = worker.groups[0].completed = 0;
    }
    job.enter_all_but(0);
    job.trace.read_ns = (2 + seconds) * second;
    return judge(job.trace);
  };
  EXPECT_EQ(name_of(judged_after(20).kind), "ok");
  EXPECT_EQ(name_of(judged_after(40).kind), "stuck");
  EXPECT_EQ(judged_after(40).slot, Slot(0));
}

TEST(Verdict, WhereACallWasMadeIsEvidence) {
  Job job;
  job.enter_all_but(1);
  job.enter(1, {"all_gather", "float32", "", "[64, 3]", std::nullopt, 8}, 2 * second);
  job.worker(1).groups[0].current->stack = "File \"train.py\", line 34 in step\nFile \"train.py\", line 40 in <module>";
  EXPECT_THAT(judge(job.trace).evidence,
              testing::Contains(testing::EndsWith("[64, 3]) at File \"train.py\", line 34 in step")));
}

TEST(Verdict, NothingAtAll) { EXPECT_EQ(judge({}).kind, Kind::no_culprit); }

}  // namespace
}  // namespace closeranks::trace

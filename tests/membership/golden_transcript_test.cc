// Drives the coordinator's machine through the scenarios of tests/golden/membership/*.txt and compares everything it
// does with what the files say. A file is a list of
//     command            (one per line; several lines before ---- are carried out in turn)
//     ----
//     everything the machine did, one line per effect, until an empty line
// CLOSERANKS_UPDATE_GOLDEN=1 writes the files anew; read the difference before you commit it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "membership/coordinator.h"
#include "simulator/membership_transcript.h"

namespace closeranks::membership {
namespace {

using simulator::describe;
using std::chrono::milliseconds;

// "name=value" words of a command, and the words without '='.
struct Words {
  std::vector<std::string> plain;
  std::map<std::string, std::string> named;

  [[nodiscard]] std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = named.find(name);
    return found == named.end() ? otherwise : found->second;
  }
  [[nodiscard]] std::uint64_t number(std::size_t index) const { return std::stoull(plain.at(index)); }
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

// A word may hold spaces between double quotes.
Words words_of(const std::string& line) {
  std::vector<std::string> all;
  std::string word;
  bool quoted = false;
  for (const char letter : line + " ") {
    if (letter == '"') {
      quoted = !quoted;
    } else if (letter == ' ' && !quoted) {
      if (!word.empty()) all.push_back(word);
      word.clear();
    } else {
      word += letter;
    }
  }
  Words words;
  for (const std::string& each : all) {
    const std::size_t equals = each.find('=');
    if (equals == std::string::npos) {
      words.plain.push_back(each);
    } else {
      words.named[each.substr(0, equals)] = each.substr(equals + 1);
    }
  }
  return words;
}

// "1.2": term 1, n 2.
ViewNumber view_of(const std::string& text) {
  const std::vector<std::string> parts = split(text, '.');
  return {static_cast<std::uint32_t>(std::stoul(parts.at(0))), std::stoull(parts.at(1))};
}

class Driver {
 public:
  std::string run(const std::string& line) {
    const Words words = words_of(line);
    const std::string& command = words.plain.at(0);
    if (command == "job") return start(words);
    if (command == "restart") return restart();
    if (command == "after") {
      now_ += milliseconds(words.number(1));
      return tell(coordinator_->tick(now_));
    }
    if (command == "stall") {
      now_ += milliseconds(words.number(1));
      return "";
    }
    if (command == "lost") return tell(coordinator_->connection_lost(WorkerId(words.number(1)), now_));
    if (command == "agent") return tell(coordinator_->handle_agent("here", agent_message(words), now_));
    return tell(coordinator_->handle_worker(worker_message(words), now_));
  }

 private:
  // job 4 min_present=1 shrink=yes hang=1000
  std::string start(const Words& words) {
    workers_ = words.number(1);
    config_.job = "golden";
    config_.min_present = static_cast<std::uint32_t>(std::stoul(words.get("min_present", "1")));
    config_.shrink = words.get("shrink", "yes") == "yes";
    if (words.named.contains("hang")) config_.hang = {milliseconds(std::stoll(words.get("hang", ""))), false};
    return restart();
  }

  std::string restart() {
    std::vector<RosterEntry> roster;
    for (std::uint32_t slot = 0; slot < workers_; ++slot) roster.push_back({WorkerId(slot + 1), Slot(slot), "here"});
    coordinator_ = std::make_unique<Coordinator>(config_, roster, journal_);
    return tell(coordinator_->start(now_));
  }

  // For a newcomer slot=2 names its slot, and group=7:0,1,2 alone=yes its status.
  // asks 5 | holding 1 1.3 17 | served 1 1.3 | received 5 1.3 | failed 1 1.3 "reason" | progress 1 17 | first_step 5 18
  // hello 2 installed=1.1 prepared=1.2 | prepared 2 1.2 | suspects 1 2 | waits 1 2 | hint 1 2 | goodbye 1
  // prepared takes group=7:0,1,2 entered=3 completed=2 observed=3:4 (worker:entered) departed=3:2 (worker:last_op)
  static FromWorker worker_message(const Words& words) {
    const std::string& command = words.plain.at(0);
    const WorkerId worker(words.number(1));
    if (command == "hello") {
      const auto slot = static_cast<std::uint32_t>(std::stoul(words.get("slot", std::to_string(worker.value() - 1))));
      return Hello{{worker, Slot(slot), 100 + slot, "here", "endpoint" + std::to_string(slot)},
                   view_of(words.get("installed", "0.0")),
                   view_of(words.get("prepared", "0.0"))};
    }
    if (command == "goodbye") return Goodbye{worker, words.get("for_good", "no") == "yes"};
    if (command == "asks") return JoinRequest{worker, {}};
    if (command == "holding") return Holding{view_of(words.plain.at(2)), worker, words.number(3)};
    if (command == "served") return StateServed{view_of(words.plain.at(2)), worker};
    if (command == "received") return StateReceived{view_of(words.plain.at(2)), worker};
    if (command == "failed") return JoinFailed{view_of(words.plain.at(2)), worker, words.plain.at(3)};
    if (command == "progress") return progress_of(words, worker);
    if (command == "first_step") return FirstStep{worker, words.number(2)};
    if (command == "prepared") return Prepared{view_of(words.plain.at(2)), worker, statuses_of(words)};
    Suspicion suspicion{worker, WorkerId(words.number(2)), "its life word says that its owner died", true, true};
    if (command == "hint") suspicion.in_op = false;
    if (command == "waits") {
      suspicion.seems_gone = false;
      suspicion.reason = "no address of it is known";
    }
    return suspicion;
  }

  // progress 1 17 completed=3 waits=2: in entry 3 of group 7, for slot 2
  static Progress progress_of(const Words& words, WorkerId worker) {
    Progress progress{worker, words.number(2), true, {}};
    if (!words.named.contains("completed")) return progress;
    GroupProgress group;
    group.group = GroupKey(7);
    group.name = "world";
    group.entered = group.completed = std::stoull(words.get("completed", "0"));
    for (const std::string& slot : split(words.get("waits", ""), ',')) {
      group.waits_for.emplace_back(static_cast<std::uint32_t>(std::stoul(slot)));
    }
    if (!group.waits_for.empty()) {
      group.op = "all_reduce #" + std::to_string(group.entered++);
      group.waiting = true;
      group.waited_ms = 900;
    }
    progress.groups.push_back(std::move(group));
    return progress;
  }

  static std::vector<GroupStatus> statuses_of(const Words& words) {
    const std::vector<std::string> group = split(words.get("group", ""), ':');
    if (group.empty()) return {};
    GroupStatus status;
    status.group = GroupKey(std::stoull(group.at(0)));
    for (const std::string& slot : split(group.at(1), ',')) {
      status.members.emplace_back(static_cast<std::uint32_t>(std::stoul(slot)));
    }
    status.policy = Policy::repair;
    status.entered = std::stoull(words.get("entered", "0"));
    status.completed = std::stoull(words.get("completed", "0"));
    if (words.get("policy", "repair") == "fail") status.policy = Policy::fail;
    status.alone = words.get("alone", "no") == "yes";
    if (words.named.contains("epoch")) status.epoch = view_of(words.get("epoch", ""));
    status.base = std::stoull(words.get("base", "0"));
    for (const std::string& pair : split(words.get("observed", ""), ',')) {
      const std::vector<std::string> parts = split(pair, ':');
      status.observed.push_back({WorkerId(std::stoull(parts.at(0))), std::stoull(parts.at(1))});
    }
    for (const std::string& pair : split(words.get("departed", ""), ',')) {
      const std::vector<std::string> parts = split(pair, ':');
      const WorkerId worker(std::stoull(parts.at(0)));
      const Slot slot(static_cast<std::uint32_t>(worker.value() - 1));
      status.departures.push_back({worker, slot, {1, 2}, std::stoull(parts.at(1))});
    }
    return {status};
  }

  // agent started 5 2 | agent drain "reason" | agent resize 3
  // agent hello | agent suspects 2 "reason" | agent fenced 2 by_itself | agent fenced 2 killed | agent exited 2 9
  static FromAgent agent_message(const Words& words) {
    const std::string& what = words.plain.at(1);
    if (what == "hello") return AgentHello{"here", 1};
    if (what == "drain") return Drain{words.plain.at(2)};
    if (what == "resize") return Resize{static_cast<std::uint32_t>(words.number(2))};
    const WorkerId worker(words.number(2));
    if (what == "started") return Started{worker, Slot(static_cast<std::uint32_t>(words.number(3)))};
    if (what == "suspects") return AgentSuspicion{worker, words.plain.at(3)};
    if (what == "fenced")
      return Fenced{worker, words.plain.at(3) == "by_itself", false, 0, "no thread has memory left"};
    const auto status = static_cast<std::int32_t>(words.number(3));
    const std::string reason = status > 0 && status < 128 ? "killed by signal " + std::to_string(status)
                                                          : "exited with status " + std::to_string(status >> 8);
    return Exited{worker, status, reason};
  }

  std::string tell(const Effects& effects) {
    std::ostringstream out;
    for (const JournalRecord& record : effects.journal) {
      journal_.push_back(record);
      out << "journal: " << describe(record) << '\n';
    }
    for (const Event& event : effects.events) {
      out << "event: " << describe(event);
      if (!event.present.empty()) {
        out << "; present:";
        for (const Slot slot : event.present) out << ' ' << slot.value();
      }
      out << '\n';
    }
    for (const auto& [host, message] : effects.to_agents) out << "to agent: " << describe(message) << '\n';
    std::string receivers;
    for (std::size_t index = 0; index < effects.to_workers.size(); ++index) {
      const std::string text = describe(effects.to_workers[index].second);
      receivers += (receivers.empty() ? "" : ", ") + std::to_string(effects.to_workers[index].first.value());
      const bool last = index + 1 == effects.to_workers.size();
      if (!last && describe(effects.to_workers[index + 1].second) == text) continue;
      out << "to worker " << receivers << ": " << text << '\n';
      receivers.clear();
    }
    return out.str();
  }

  std::uint64_t workers_ = 0;
  CoordinatorConfig config_;
  Journal journal_;
  Time now_ = std::chrono::seconds(1);
  std::unique_ptr<Coordinator> coordinator_;
};

std::filesystem::path folder() { return std::filesystem::path(CLOSERANKS_SOURCE_DIR) / "tests/golden/membership"; }

std::vector<std::string> scenarios() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The file as it should be: comments and commands kept, every output written by the machine.
std::string replayed(const std::string& file) {
  std::istringstream in(file);
  std::ostringstream out;
  Driver driver;
  std::string done;
  bool skipping = false;
  for (std::string line; std::getline(in, line);) {
    if (skipping) {
      skipping = !line.empty();
      if (!skipping) out << '\n';
      continue;
    }
    out << line << '\n';
    if (line == "----") {
      out << done;
      done.clear();
      skipping = true;
    } else if (!line.empty() && line.front() != '#') {
      done += driver.run(line);
    }
  }
  return out.str();
}

class GoldenTranscript : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTranscript, IsWhatTheMachineDoes) {
  const std::filesystem::path path = folder() / (GetParam() + ".txt");
  std::ifstream in(path);
  std::stringstream expected;
  expected << in.rdbuf();
  const std::string actual = replayed(expected.str());
  if (std::getenv("CLOSERANKS_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << actual;
    return;
  }
  EXPECT_EQ(expected.str(), actual);
}

INSTANTIATE_TEST_SUITE_P(Membership, GoldenTranscript, testing::ValuesIn(scenarios()),
                         [](const auto& tested) { return tested.param; });

TEST(GoldenTranscripts, AreThere) { EXPECT_GE(scenarios().size(), 8U); }

}  // namespace
}  // namespace closeranks::membership

#include "control/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <tuple>

namespace closeranks::control {
namespace {

using namespace membership;
using testing::HasSubstr;

// A field more in a message breaks these lines: think of message_fields.h then.
auto tie(const Hello& m) {
  const auto& [self, installed, prepared] = m;
  return std::tie(self, installed, prepared);
}
auto tie(const Prepared& m) {
  const auto& [view, from, statuses] = m;
  return std::tie(view, from, statuses);
}
auto tie(const Suspicion& m) {
  const auto& [from, suspect, reason, in_op, seems_gone] = m;
  return std::tie(from, suspect, reason, in_op, seems_gone);
}
auto tie(const OpRepaired& m) {
  const auto& [from, group, sequence, op, contributors, blocks] = m;
  return std::tie(from, group, sequence, op, contributors, blocks);
}
auto tie(const Goodbye& m) {
  const auto& [from, for_good] = m;
  return std::tie(from, for_good);
}
auto tie(const JoinRequest& m) {
  const auto& [from, groups] = m;
  return std::tie(from, groups);
}
auto tie(const Holding& m) {
  const auto& [round, from, step] = m;
  return std::tie(round, from, step);
}
auto tie(const StateServed& m) {
  const auto& [round, from] = m;
  return std::tie(round, from);
}
auto tie(const StateReceived& m) {
  const auto& [round, from] = m;
  return std::tie(round, from);
}
auto tie(const JoinFailed& m) {
  const auto& [round, from, reason] = m;
  return std::tie(round, from, reason);
}
auto tie(const Progress& m) {
  const auto& [from, step, in_session, groups] = m;
  return std::tie(from, step, in_session, groups);
}
auto tie(const FirstStep& m) {
  const auto& [from, step] = m;
  return std::tie(from, step);
}
auto tie(const Pause& m) {
  const auto& [from, what, up_to_ms] = m;
  return std::tie(from, what, up_to_ms);
}
auto tie(const AgentHello& m) {
  const auto& [host, pid] = m;
  return std::tie(host, pid);
}
auto tie(const AgentSuspicion& m) {
  const auto& [worker, reason] = m;
  return std::tie(worker, reason);
}
auto tie(const membership::Fenced& m) {
  const auto& [worker, by_itself, reaped, wait_status, reason] = m;
  return std::tie(worker, by_itself, reaped, wait_status, reason);
}
auto tie(const Exited& m) {
  const auto& [worker, wait_status, reason] = m;
  return std::tie(worker, wait_status, reason);
}
auto tie(const Started& m) {
  const auto& [worker, slot] = m;
  return std::tie(worker, slot);
}
auto tie(const Drain& m) {
  const auto& [reason] = m;
  return std::tie(reason);
}
auto tie(const Resize& m) {
  const auto& [present] = m;
  return std::tie(present);
}
auto tie(const Welcome& m) {
  const auto& [term, view, workers, excluded, newcomer, members] = m;
  return std::tie(term, view, workers, excluded, newcomer, members);
}
auto tie(const Propose& m) {
  const auto& [view, excluding] = m;
  return std::tie(view, excluding);
}
auto tie(const Install& m) {
  const auto& [view, excluded, groups, members, joined] = m;
  return std::tie(view, excluded, groups, members, joined);
}
auto tie(const Hold& m) {
  const auto& [round, newcomers] = m;
  return std::tie(round, newcomers);
}
auto tie(const Admit& m) {
  const auto& [round, step] = m;
  return std::tie(round, step);
}
auto tie(const Transfer& m) {
  const auto& [round, step, newcomers, sources] = m;
  return std::tie(round, step, newcomers, sources);
}
auto tie(const Cancel& m) {
  const auto& [round, reason] = m;
  return std::tie(round, reason);
}
auto tie(const JobFinished&) { return std::tuple<>(); }
auto tie(const Leave& m) {
  const auto& [reason] = m;
  return std::tie(reason);
}
auto tie(const Evicted& m) {
  const auto& [term, view, worker, reason] = m;
  return std::tie(term, view, worker, reason);
}
auto tie(const Fence& m) {
  const auto& [worker, reason, keep_stack] = m;
  return std::tie(worker, reason, keep_stack);
}

// Messages with every field drawn, within its range.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number(std::uint64_t maximum) {
    // Small, large and extreme values alike.
    switch (random_() % 4) {
      case 0:
        return 0;
      case 1:
        return maximum;
      case 2:
        return random_() % 100 % (maximum + (maximum < UINT64_MAX ? 1 : 0));
      default:
        return maximum == UINT64_MAX ? random_() : random_() % (maximum + 1);
    }
  }
  bool coin() { return random_() % 2 == 0; }
  std::string text() {
    std::string out(random_() % 40, ' ');
    for (char& c : out) c = static_cast<char>(random_());
    return out;
  }
  WorkerId worker() { return WorkerId(number(UINT64_MAX)); }
  Slot slot() { return Slot(static_cast<std::uint32_t>(number(slot_limit - 1))); }
  ViewNumber view() { return {static_cast<std::uint32_t>(number(UINT32_MAX)), number(UINT64_MAX)}; }
  std::uint64_t sequence() { return number(sequence_limit); }
  std::int32_t wait_status() { return static_cast<std::int32_t>(random_()); }
  template <class Make>
  auto list(Make make) {
    std::vector<decltype(make())> out(random_() % 5);
    for (auto& element : out) element = make();
    return out;
  }

  WorkerAddress address() { return {worker(), slot(), static_cast<std::uint32_t>(number(INT32_MAX)), text(), text()}; }
  Departure departure() { return {worker(), slot(), view(), sequence()}; }
  ExcludedMember excluded() { return {worker(), slot(), view(), text()}; }
  GroupStatus status() {
    GroupStatus out;
    out.group = GroupKey(number(UINT64_MAX));
    out.name = text();
    out.members = list([&] { return slot(); });
    out.policy = policy();
    out.view = view();
    out.completed = sequence();
    out.entered = std::max(out.completed, sequence());
    out.departures = list([&] { return departure(); });
    out.observed = list([&] { return ObservedEntry{worker(), sequence()}; });
    out.chunks = list([&] {
      return ChunkState{sequence(), static_cast<std::uint32_t>(number(chunk_limit)),
                        static_cast<std::uint8_t>(number(2)), number(UINT64_MAX)};
    });
    out.epoch = view();
    out.base = sequence();
    out.alone = coin();
    return out;
  }
  Policy policy() { return static_cast<Policy>(number(2)); }
  GroupResolution resolution() {
    return {GroupKey(number(UINT64_MAX)), view(), list([&] { return departure(); }), view(), sequence()};
  }
  Filled filled() { return {slot(), worker()}; }
  GroupIntroduction introduction() {
    return {GroupKey(number(UINT64_MAX)), text(), list([&] { return slot(); }), policy()};
  }
  GroupProgress progress() {
    GroupProgress out;
    out.group = GroupKey(number(UINT64_MAX));
    out.name = text();
    out.completed = sequence();
    out.entered = std::max(out.completed, sequence());
    out.waiting = coin();
    out.waited_ms = static_cast<std::uint32_t>(number(UINT32_MAX));
    out.op = text();
    out.waits_for = list([&] { return slot(); });
    return out;
  }

  FromWorker from_worker() {
    switch (random_() % 13) {
      case 0:
        return Hello{address(), view(), view()};
      case 1:
        return Prepared{view(), worker(), list([&] { return status(); })};
      case 2:
        return Suspicion{worker(), worker(), text(), coin(), coin()};
      case 3:
        return OpRepaired{worker(),
                          text(),
                          sequence(),
                          text(),
                          list([&] { return slot(); }),
                          static_cast<std::uint32_t>(number(UINT32_MAX))};
      case 4:
        return JoinRequest{worker(), list([&] { return introduction(); })};
      case 5:
        return Holding{view(), worker(), sequence()};
      case 6:
        return StateServed{view(), worker()};
      case 7:
        return StateReceived{view(), worker()};
      case 8:
        return JoinFailed{view(), worker(), text()};
      case 9:
        return Progress{worker(), sequence(), coin(), list([&] { return progress(); })};
      case 10:
        return FirstStep{worker(), sequence()};
      case 11:
        return Pause{worker(), text(), static_cast<std::uint32_t>(number(UINT32_MAX))};
      default:
        return Goodbye{worker(), coin()};
    }
  }
  FromAgent from_agent() {
    switch (random_() % 7) {
      case 0:
        return AgentHello{text(), static_cast<std::uint32_t>(number(INT32_MAX))};
      case 1:
        return AgentSuspicion{worker(), text()};
      case 2:
        return membership::Fenced{worker(), coin(), coin(), wait_status(), text()};
      case 3:
        return Started{worker(), slot()};
      case 4:
        return Drain{text()};
      case 5:
        return Resize{static_cast<std::uint32_t>(number(slot_limit))};
      default:
        return Exited{worker(), wait_status(), text()};
    }
  }
  ToWorker to_worker() {
    switch (random_() % 10) {
      case 0:
        return Welcome{static_cast<std::uint32_t>(number(UINT32_MAX)),
                       view(),
                       list([&] { return address(); }),
                       list([&] { return excluded(); }),
                       coin(),
                       list([&] { return filled(); })};
      case 1:
        return Propose{view(), list([&] { return excluded(); })};
      case 2:
        return Install{view(), list([&] { return excluded(); }), list([&] { return resolution(); }),
                       list([&] { return filled(); }), list([&] { return address(); })};
      case 3:
        return Hold{view(), list([&] { return address(); })};
      case 4:
        return Admit{view(), sequence()};
      case 5:
        return Transfer{view(), sequence(), list([&] { return address(); }), list([&] { return address(); })};
      case 6:
        return Cancel{view(), text()};
      case 7:
        return JobFinished{};
      case 8:
        return Leave{text()};
      default:
        return Evicted{static_cast<std::uint32_t>(number(UINT32_MAX)), view(), worker(), text()};
    }
  }
  ToAgent to_agent() { return Fence{worker(), text(), coin()}; }

 private:
  std::mt19937_64 random_;
};

struct Frame {
  FrameKind kind;
  std::string body;
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(body)); }
};

Frame take_apart(const std::string& frame) {
  const auto bytes = std::as_bytes(std::span(frame));
  const Result<FrameHeader> header = decode_header(bytes.first<frame_header_bytes>(), frame_body_limit, "it");
  EXPECT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header.value().length, frame.size() - frame_header_bytes);
  return {header.value().kind, frame.substr(frame_header_bytes)};
}

template <class Message, class Decode>
void round_trip(const Message& message, Decode decode) {
  const Result<std::string> frame = encode(message);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  const Frame parts = take_apart(frame.value());
  const Result<Message> back = decode(parts.kind, parts.bytes());
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_EQ(back.value().index(), message.index());
  std::visit([&](const auto& one) { EXPECT_EQ(tie(one), tie(std::get<std::decay_t<decltype(one)>>(back.value()))); },
             message);
}

TEST(Codec, EveryMessageComesBackAsItWent) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    round_trip(draw.from_worker(), decode_from_worker);
    round_trip(draw.from_agent(), decode_from_agent);
    round_trip(draw.to_worker(), decode_to_worker);
    round_trip(draw.to_agent(), decode_to_agent);
  }
}

TEST(Codec, ADamagedBodyIsRefusedOrReadButNeverMore) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Draw draw(seed);
    const Result<std::string> frame = encode(draw.from_worker());
    ASSERT_TRUE(frame.ok());
    Frame parts = take_apart(frame.value());
    if (parts.body.empty()) continue;
    for (int i = 0; i < 20; ++i) {
      Frame damaged = parts;
      damaged.body[draw.number(damaged.body.size() - 1)] = static_cast<char>(draw.number(255));
      if (draw.coin()) damaged.body.resize(draw.number(damaged.body.size()));
      const Result<FromWorker> read = decode_from_worker(damaged.kind, damaged.bytes());
      EXPECT_TRUE(read.ok() || read.status().fault() == Fault::refused) << read.status().message();
    }
  }
}

Result<FromWorker> decode_json(FrameKind kind, const nlohmann::json& object) {
  const std::vector<std::uint8_t> body = nlohmann::json::to_cbor(object);
  return decode_from_worker(kind, std::as_bytes(std::span(body)));
}

nlohmann::json suspicion() {
  return {{"from", 1}, {"suspect", 2}, {"reason", "silent"}, {"in_op", true}, {"seems_gone", true}};
}

TEST(Codec, UnknownKeysAreIgnored) {
  nlohmann::json object = suspicion();
  object["later"] = {{"more", {1, 2, nullptr}}};
  const Result<FromWorker> read = decode_json(FrameKind::suspicion, object);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(std::get<Suspicion>(read.value()).suspect, WorkerId(2));
}

TEST(Codec, EveryKeyIsNeeded) {
  const nlohmann::json whole = suspicion();
  for (const auto& [key, value] : whole.items()) {
    nlohmann::json object = suspicion();
    object.erase(key);
    const Result<FromWorker> read = decode_json(FrameKind::suspicion, object);
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_THAT(read.status().message(), HasSubstr("a bad frame (suspicion): no \"" + key + "\""));
  }
}

TEST(Codec, WrongTypesAndRangesNameTheField) {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    nlohmann::json object = suspicion();
    object[key] = value;
    const Result<FromWorker> read = decode_json(FrameKind::suspicion, object);
    return read.ok() ? "taken" : read.status().message();
  };
  EXPECT_THAT(refusal("from", -1), HasSubstr("\"from\" is no unsigned integer"));
  EXPECT_THAT(refusal("from", "1"), HasSubstr("\"from\" is no unsigned integer"));
  EXPECT_THAT(refusal("in_op", 1), HasSubstr("\"in_op\" is no boolean"));
  EXPECT_THAT(refusal("reason", 7), HasSubstr("\"reason\" is no text"));
  EXPECT_THAT(refusal("reason", std::string(text_limit + 1, 'x')), HasSubstr("\"reason\" is too long"));

  const nlohmann::json address = {{"worker", 1}, {"slot", slot_limit}, {"pid", 1}, {"host", ""}, {"endpoint", ""}};
  EXPECT_THAT(decode_json(FrameKind::hello, {{"self", address}, {"installed", {0, 0}}, {"prepared", {0, 0}}})
                  .status()
                  .message(),
              HasSubstr("in \"self\": \"slot\" is above 65535"));
  EXPECT_THAT(decode_json(FrameKind::hello, nlohmann::json::array()).status().message(), HasSubstr("not a map"));
}

TEST(Codec, GroupsThatContradictThemselvesAreRefused) {
  GroupStatus status;
  status.entered = 3;
  status.completed = 4;
  EXPECT_EQ(encode(Prepared{{1, 1}, WorkerId(1), {status}}).status().fault(), Fault::invalid_argument);
  status.completed = 3;
  EXPECT_TRUE(encode(Prepared{{1, 1}, WorkerId(1), {status}}).ok());
}

TEST(Codec, AFrameOfTheOtherDirectionIsRefused) {
  const Frame parts = take_apart(encode(Fence{WorkerId(3), "stopped", false}).value());
  EXPECT_THAT(decode_from_worker(parts.kind, parts.bytes()).status().message(),
              HasSubstr("a frame (fence) that this side of the connection does not send"));
}

TEST(Codec, LongTextsAreCutAndHugeMessagesAreNoFrames) {
  const Frame parts = take_apart(encode(Fence{WorkerId(3), std::string(2 * text_limit, 'x')}).value());
  EXPECT_EQ(std::get<Fence>(decode_to_agent(parts.kind, parts.bytes()).value()).reason.size(), text_limit);

  Welcome welcome;
  welcome.workers.resize(1'000,
                         WorkerAddress{WorkerId(9), Slot(9), 99, "a-host-of-usual-length", std::string(60, 'e')});
  const Result<std::string> thousand = encode(welcome);
  ASSERT_TRUE(thousand.ok()) << thousand.status().message();
  welcome.workers.resize(20'000, welcome.workers.front());
  EXPECT_EQ(encode(welcome).status().fault(), Fault::invalid_argument);
}

TEST(Codec, DeepBodiesAreRefusedBeforeTheParserSeesThem) {
  const std::string body(30'000, '\x81');
  const Result<FromWorker> read = decode_from_worker(FrameKind::hello, std::as_bytes(std::span(body)));
  EXPECT_THAT(read.status().message(), HasSubstr("nested deeper"));
}

// ---- the page ----------------------------------------------------------------------------------------------------

// The row of docs/wire.md that begins with `name`, for the table of messages.
std::string row_of(const std::string& name) {
  std::ifstream page(std::string(CLOSERANKS_SOURCE_DIR) + "/docs/wire.md");
  EXPECT_TRUE(page);
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("| " + name + " |")) return line;
  }
  return "no row for " + name;
}

template <class Message>
void expect_documented(const Message& message) {
  const Frame parts = take_apart(encode(message).value());
  const std::string name(name_of(parts.kind));
  const std::string row = row_of(name);
  const auto* first = reinterpret_cast<const std::uint8_t*>(parts.body.data());
  const auto object = nlohmann::json::from_cbor(first, first + parts.body.size());
  for (const auto& [key, value] : object.items()) {
    EXPECT_THAT(row, testing::ContainsRegex("[ ,]" + key + "[:, ]")) << name;
  }
  EXPECT_THAT(row_of(std::to_string(static_cast<unsigned>(parts.kind))), HasSubstr("| " + name + " |"));
}

TEST(Codec, EveryMessageAndFieldIsOnTheWirePage) {
  expect_documented(FromWorker(Hello{}));
  expect_documented(FromWorker(Prepared{}));
  expect_documented(FromWorker(Suspicion{}));
  expect_documented(FromWorker(OpRepaired{}));
  expect_documented(FromWorker(Goodbye{}));
  expect_documented(FromWorker(JoinRequest{}));
  expect_documented(FromWorker(Holding{}));
  expect_documented(FromWorker(StateServed{}));
  expect_documented(FromWorker(StateReceived{}));
  expect_documented(FromWorker(JoinFailed{}));
  expect_documented(FromWorker(Progress{}));
  expect_documented(FromWorker(FirstStep{}));
  expect_documented(FromWorker(Pause{}));
  expect_documented(FromAgent(AgentHello{}));
  expect_documented(FromAgent(AgentSuspicion{}));
  expect_documented(FromAgent(membership::Fenced{}));
  expect_documented(FromAgent(Exited{}));
  expect_documented(FromAgent(Started{}));
  expect_documented(FromAgent(Drain{}));
  expect_documented(FromAgent(Resize{}));
  expect_documented(ToWorker(Welcome{}));
  expect_documented(ToWorker(Propose{}));
  expect_documented(ToWorker(Install{}));
  expect_documented(ToWorker(Evicted{}));
  expect_documented(ToWorker(Hold{}));
  expect_documented(ToWorker(Admit{}));
  expect_documented(ToWorker(Transfer{}));
  expect_documented(ToWorker(Cancel{}));
  expect_documented(ToWorker(JobFinished{}));
  expect_documented(ToWorker(Leave{}));
  expect_documented(ToAgent(Fence{}));
  const Frame status = take_apart(encode(FromWorker(Prepared{{}, WorkerId(0), {GroupStatus{}}})).value());
  const auto* first = reinterpret_cast<const std::uint8_t*>(status.body.data());
  const auto object = nlohmann::json::from_cbor(first, first + status.body.size());
  const std::string row = row_of("status");
  for (const auto& [key, value] : object["statuses"][0].items()) EXPECT_THAT(row, HasSubstr(key));
}

// ---- golden bytes: what is on the wire may not change unnoticed ---------------------------------------------------

std::string hex(const std::string& bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[i]));
    out += digits;
    out += (i + 1) % 32 == 0 || i + 1 == bytes.size() ? "\n" : " ";
  }
  return out;
}

// CLOSERANKS_WRITE_GOLDEN=1 writes the files anew; a change of the wire format raises protocol_version.
template <class Message>
void expect_golden(const std::string& name, const Message& message) {
  const Result<std::string> frame = encode(message);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  const std::string path = std::string(CLOSERANKS_SOURCE_DIR) + "/tests/golden/wire/" + name + ".hex";
  if (std::getenv("CLOSERANKS_WRITE_GOLDEN") != nullptr) std::ofstream(path) << hex(frame.value());
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(hex(frame.value()), golden.str()) << name;
}

TEST(Codec, GoldenBytes) {
  const ExcludedMember lost{WorkerId(2), Slot(2), {1, 3}, "killed by signal 9"};
  GroupStatus status;
  status.group = GroupKey(0x0123456789abcdef);
  status.name = "default_pg";
  status.members = {Slot(0), Slot(1), Slot(2), Slot(300)};
  status.policy = Policy::repair;
  status.view = {1, 2};
  status.entered = 1'001;
  status.completed = 1'000;
  status.departures = {{WorkerId(3), Slot(3), {1, 2}, 70'000}};
  status.observed = {{WorkerId(2), 1'001}};
  status.chunks = {{1'000, 7, 2, 0b1011}};
  status.epoch = {1, 1};
  status.base = 12;
  const GroupResolution resolution{status.group, {1, 3}, {{WorkerId(2), Slot(2), {1, 3}, 1'001}}, {1, 1}, 12};
  GroupProgress progress;
  progress.group = status.group;
  progress.name = status.name;
  progress.entered = 1'001;
  progress.completed = 1'000;
  progress.waiting = true;
  progress.waited_ms = 5'000;
  progress.op = "all_reduce #1000";
  progress.waits_for = {Slot(2)};
  const WorkerAddress newcomer{WorkerId(4), Slot(2), 4'714, "alpha", "closeranks-job-4"};
  const WorkerAddress address{WorkerId(1), Slot(1), 4'711, "alpha", "closeranks-job-1"};

  expect_golden("hello", FromWorker(Hello{address, {1, 2}, {0, 0}}));
  expect_golden("prepared", FromWorker(Prepared{{1, 3}, WorkerId(1), {status}}));
  expect_golden("suspicion", FromWorker(Suspicion{WorkerId(1), WorkerId(2), "its thread died", true, true}));
  expect_golden("op_repaired",
                FromWorker(OpRepaired{WorkerId(1), "default_pg", 1'000, "all_reduce", {Slot(0), Slot(1)}, 12}));
  expect_golden("goodbye", FromWorker(Goodbye{WorkerId(1), true}));
  expect_golden("join_request",
                FromWorker(JoinRequest{WorkerId(4), {{status.group, "default_pg", status.members, Policy::exact}}}));
  expect_golden("holding", FromWorker(Holding{{1, 4}, WorkerId(1), 17}));
  expect_golden("state_served", FromWorker(StateServed{{1, 4}, WorkerId(1)}));
  expect_golden("state_received", FromWorker(StateReceived{{1, 4}, WorkerId(4)}));
  expect_golden("join_failed", FromWorker(JoinFailed{{1, 4}, WorkerId(1), "group 'default_pg' is not idle"}));
  expect_golden("progress", FromWorker(Progress{WorkerId(1), 17, true, {progress}}));
  expect_golden("first_step", FromWorker(FirstStep{WorkerId(4), 18}));
  expect_golden("pause", FromWorker(Pause{WorkerId(1), "checkpoint", 30'000}));
  expect_golden("started", FromAgent(Started{WorkerId(4), Slot(2)}));
  expect_golden("drain", FromAgent(Drain{"SIGTERM"}));
  expect_golden("resize", FromAgent(Resize{3}));
  expect_golden("hold", ToWorker(Hold{{1, 4}, {newcomer}}));
  expect_golden("admit", ToWorker(Admit{{1, 4}, 18}));
  expect_golden("transfer", ToWorker(Transfer{{1, 4}, 18, {newcomer}, {address}}));
  expect_golden("cancel", ToWorker(Cancel{{1, 4}, "slot 1 (worker 1) died"}));
  expect_golden("job_finished", ToWorker(JobFinished{}));
  expect_golden("leave", ToWorker(Leave{"SIGTERM"}));
  expect_golden("agent_hello", FromAgent(AgentHello{"alpha", 4'700}));
  expect_golden("agent_suspicion", FromAgent(AgentSuspicion{WorkerId(2), "its thread died"}));
  expect_golden("fenced", FromAgent(membership::Fenced{WorkerId(2), true, true, 9, "killed by signal 9"}));
  expect_golden("exited", FromAgent(Exited{WorkerId(2), 256, "exited with status 1"}));
  expect_golden("welcome", ToWorker(Welcome{1, {1, 1}, {address}, {lost}, true, {{Slot(1), WorkerId(1)}}}));
  expect_golden("propose", ToWorker(Propose{{1, 3}, {lost}}));
  expect_golden(
      "install",
      ToWorker(Install{{1, 3}, {lost}, {resolution}, {{Slot(1), WorkerId(1)}, {Slot(2), WorkerId(4)}}, {newcomer}}));
  expect_golden("evicted", ToWorker(Evicted{1, {1, 3}, WorkerId(2), "stopped for 5.0 s"}));
  expect_golden("fence", ToAgent(Fence{WorkerId(2), "stopped for 5.0 s", true}));
}

}  // namespace
}  // namespace closeranks::control

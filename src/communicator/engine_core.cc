// Start, groups, stop.
#include "communicator/engine_core.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include "base/blocked_signals.h"
#include "base/deadlines.h"
#include "base/log.h"
#include "base/priority.h"
#include "base/token.h"
#include "communicator/group_key.h"
#include "recorder/environment.h"
#include "recorder/recording.h"

namespace closeranks::communicator {
namespace {

// A goodbye is one small frame to the same host.
constexpr std::chrono::milliseconds goodbye_grace{500};

bool arenas_wanted() {
  const char* text = std::getenv("CLOSERANKS_SHARED_ARENAS");
  return text == nullptr || std::string_view(text) != "0";
}

bool check_wanted() {
  const char* text = std::getenv("CLOSERANKS_CHECK_NAN");
  return text != nullptr && std::string_view(text) == "1";
}

// Looks before the first yield: where processes share cores, at once.
std::uint32_t spins_for(std::uint32_t processes) {
  constexpr std::uint32_t on_own_core = 50;
  constexpr std::uint32_t on_shared_core = 2;
  cpu_set_t cores;
  const bool known = ::sched_getaffinity(0, sizeof(cores), &cores) == 0;
  return known && static_cast<std::uint32_t>(CPU_COUNT(&cores)) >= processes ? on_own_core : on_shared_core;
}

std::shared_ptr<recorder::RingWriter> recorder_of(const EngineOptions& options) {
  if (!recorder::recording || !options.records) return nullptr;
  return options.recorder != nullptr ? options.recorder : recorder::open_from_environment(options);
}

Status wrong_group(const GroupOptions& options, const std::string& why) {
  return {Fault::invalid_argument, Move::fix_call, "group '" + options.name + "': " + why};
}

}  // namespace

EngineCore::EngineCore(EngineOptions options) : options_(std::move(options)) {}

Result<std::shared_ptr<EngineCore>> EngineCore::start(EngineOptions options) {
  if (options.slot.value() >= options.slots) {
    return Status(
        Fault::invalid_argument, Move::fix_call,
        "slot " + std::to_string(options.slot.value()) + " is not one of the job's " + std::to_string(options.slots));
  }
  if (options.coordinator.empty()) options.worker = WorkerId{options.slot.value()};
  auto core = std::make_shared<EngineCore>(std::move(options));
  const Status started = core->start_parts();
  if (!started.ok()) {
    core->stop(std::chrono::milliseconds{0});
    return started;
  }
  return core;
}

Status EngineCore::start_parts() {
  token_ = options_.token.empty() ? make_token() : options_.token;
  checks_finite_ = check_wanted();
  ring_ = recorder_of(options_);
  control_ = std::make_unique<control::ControlThread>("closeranks-ctl");
  // Every survivor waits for the slowest to freeze and to install, with all cores busy training.
  control_->post([] { raise_own_priority(); });
  auto life = transport::OwnLife::create({options_.job, options_.worker, options_.slot},
                                         transport::watchers_of(options_.slots));
  if (!life.ok()) return life.status();
  life_ = std::move(life.value());
  lock_.rings([this] { life_->doorbell().ring(); });
  spins_ = spins_for(options_.slots);
  auto server = transport::SegmentServer::start(control_->context(), token_);
  if (!server.ok()) return server.status();
  server_ = std::move(server.value());
  server_->publish(transport::SegmentKey::life(), life_->descriptor().duplicate());
  // Without room where it is not wanted: peers need not know the difference.
  auto arena = transport::OwnArena::create({options_.job, options_.worker, options_.slot},
                                           arenas_wanted() ? transport::arena_capacity(options_.slots) : 0);
  if (!arena.ok()) return arena.status();
  arena_ = std::move(arena.value());
  server_->publish(transport::SegmentKey::arena(), arena_->descriptor().duplicate());
  {
    const BlockedSignals blocked;
    engine_thread_ = std::thread([core = shared_from_this()] { core->run_engine_thread(); });
  }
  if (!coordinated()) return {};
  const Status joined = join();
  if (joined.ok()) control_->post([this] { watch_coordinator_process(); });
  return joined;
}

Status EngineCore::check(const GroupOptions& options) const {
  if (options.members.empty()) return wrong_group(options, "it has no members");
  const std::set<Slot> distinct(options.members.begin(), options.members.end());
  if (distinct.size() != options.members.size()) return wrong_group(options, "a slot is in it twice");
  if (distinct.rbegin()->value() >= options_.slots) {
    return wrong_group(options, options_.member_word + " " + std::to_string(distinct.rbegin()->value()) +
                                    " is not one of the job's " + std::to_string(options_.slots));
  }
  if (!distinct.contains(options_.slot)) {
    return wrong_group(options, "this process (" + options_.member_word + " " + std::to_string(options_.slot.value()) +
                                    ") is not in it");
  }
  if (options.policy != Policy::fail && !coordinated()) {
    return {Fault::unsupported, Move::fix_call,
            "group '" + options.name + "' cannot have policy " + std::string(name_of(options.policy)) +
                ": that needs a coordinator that fences lost workers. Start the job with "
                "closeranks run"};
  }
  return {};
}

Result<std::shared_ptr<Group>> EngineCore::create_group(GroupOptions options, const AddressBook* book) {
  if (fork_guard_.in_child()) return ForkGuard::status();
  const Status sound = check(options);
  if (!sound.ok()) return sound;
  if (!coordinated() && book == nullptr && options.members.size() > 1) {
    return wrong_group(options, "a plain job needs an address book to find its members");
  }
  const auto self = std::find(options.members.begin(), options.members.end(), options_.slot);
  const Rank rank{static_cast<std::uint32_t>(self - options.members.begin())};
  const GroupKey family = group_key(options.name, options.members, 0);
  const std::chrono::milliseconds timeout = options.timeout;
  const GroupKey key = group_key(options.name, options.members, groups_made(family));
  const Group::Role role = newcomer() ? Group::Role::alone : Group::Role::member;
  Result<std::shared_ptr<Group>> made = make_group(std::move(options), key, rank, role);
  if (!made.ok()) return made;
  const std::shared_ptr<Group>& group = made.value();
  if (!coordinated()) {
    const Status met = group->members().size() == 1 ? Status{} : meet_members(*group, *book, timeout);
    if (!met.ok()) {
      server_->withdraw(transport::SegmentKey::of(key));
      return met;
    }
  }
  const Status added = change([&]() -> Status {
    if (ended_) return *ended_;
    add_group(group);
    return {};
  });
  if (!added.ok()) return added;
  count_group(family);
  if (coordinated()) control_->post([this, group] { fetch_for(group); });
  return made;
}

Result<std::shared_ptr<Group>> EngineCore::make_group(GroupOptions options, GroupKey key, Rank self, Group::Role role) {
  auto segment = transport::Segment::create({options_.job, key, options.name, options_.worker, options_.slot, self},
                                            segment_shape(static_cast<std::uint32_t>(options.members.size())));
  if (!segment.ok()) return segment.status();
  {
    const std::lock_guard lock(lock_);
    if (ended_) return *ended_;
    const auto same = [&options](const auto& group) {
      return group->options().name == options.name && group->options().members == options.members;
    };
    if (std::any_of(groups_.begin(), groups_.end(), same)) {
      return wrong_group(options, "it exists already in this process, with the same members");
    }
  }
  server_->publish(transport::SegmentKey::of(key), segment.value().descriptor().duplicate());
  return std::make_shared<Group>(*this, std::move(options), key, self, std::move(segment.value()), role);
}

// Under the lock. From here on views concern the group.
void EngineCore::add_group(const std::shared_ptr<Group>& group) {
  Members& members = group->members();
  for (std::uint32_t r = 0; r < members.size() && coordinated(); ++r) {
    const auto peer = peers_.find(worker_of(members.slot(Rank{r})));
    if (peer != peers_.end() && Rank{r} != members.self()) members.set_peer(Rank{r}, peer->second);
  }
  if (coordinated() && !group->alone()) group->start_without(excluded_, members_);
  group->look_at_connections();
  groups_.push_back(group);
}

// Under the lock. Who fills the slot, or filled it last.
WorkerId EngineCore::worker_of(Slot slot) const {
  for (const membership::Filled& member : members_) {
    if (member.slot == slot) return member.worker;
  }
  for (auto gone = excluded_.rbegin(); gone != excluded_.rend(); ++gone) {
    if (gone->slot == slot) return gone->worker;
  }
  return WorkerId{slot.value()};  // the first worker of a slot has its number
}

void EngineCore::close_group(const std::shared_ptr<Group>& group, std::chrono::milliseconds grace) {
  if (fork_guard_.in_child()) return;
  const Clock::time_point until = Clock::now() + grace;
  // Whoever drives finishes the ops in flight; this thread only waits for that.
  while (Clock::now() < until) {
    {
      const std::lock_guard lock(lock_);
      if (!group->open()) break;
    }
    drive(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  const bool known = change([&] {
    Status closed(Fault::closed, Move::give_up, "group '" + group->options().name + "' was shut down");
    closed.group = group->options().name;
    group->fail(std::move(closed));
    group->step();
    group->flush();
    const bool erased = std::erase(groups_, group) > 0;
    if (erased && group->recorder().on()) group->recorder().group_ended();
    return erased;
  });
  if (known && server_) server_->withdraw(transport::SegmentKey::of(group->key()));
}

void EngineCore::stop(std::chrono::milliseconds grace) {
  if (fork_guard_.in_child()) return;
  const std::lock_guard stopping(stop_mutex_);
  if (stopped_) return;
  stopped_ = true;
  std::vector<std::shared_ptr<Group>> groups;
  {
    const std::lock_guard lock(lock_);
    if (!ended_) ended_ = Status(Fault::closed, Move::give_up, "the engine was stopped");
    groups = groups_;
  }
  boundary_changed();
  const Clock::time_point until = Clock::now() + grace;
  for (const auto& group : groups) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    close_group(group, std::max(left, std::chrono::milliseconds{0}));
  }
  if (link_) {
    static_cast<void>(control_->run([this] { carry_out(machine_->goodbye(leaves_for_good_.load())); }));
    link_->stop(goodbye_grace);
  }
  stopping_.store(true, std::memory_order_seq_cst);
  wake_engine_thread();
  if (engine_thread_.joinable()) {
    life_->doorbell().ring();
    // A callback on the engine's thread may drop the last handle: the thread ends by itself then.
    if (engine_thread_.get_id() == std::this_thread::get_id()) {
      engine_thread_.detach();
    } else {
      engine_thread_.join();
    }
  }
  if (life_) life_->depart();
  if (arena_) arena_->close();
  server_.reset();
  control_->stop();
}

ViewNumber EngineCore::view() {
  if (fork_guard_.in_child()) return {};
  const std::lock_guard lock(lock_);
  return view_;
}

std::vector<Slot> EngineCore::present() {
  std::vector<Slot> slots;
  if (fork_guard_.in_child()) return slots;
  const std::lock_guard lock(lock_);
  for (std::uint32_t s = 0; s < options_.slots && !coordinated(); ++s) slots.push_back(Slot{s});
  for (const membership::Filled& member : members_) slots.push_back(member.slot);
  return slots;
}

}  // namespace closeranks::communicator

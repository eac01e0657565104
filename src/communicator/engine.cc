// The public handles. In a fork child they are empty shells: the parent's objects behind them are leaked, not touched.
#include "closeranks/engine.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <new>
#include <utility>

#include "communicator/engine_core.h"

namespace closeranks {
namespace communicator {
namespace {

// Keeps `object` alive for ever: its destructor would join threads and unmap memory that this process does not have.
template <class T>
void leak(std::shared_ptr<T> object) {
  static_cast<void>(new std::shared_ptr<T>(std::move(object)));  // NOLINT: on purpose
}

// Held by the communicator's handle and by its ops in flight.
class GroupDriver final : public OperationDriver {
 public:
  GroupDriver(std::shared_ptr<EngineCore> core, std::shared_ptr<Group> group)
      : core_(std::move(core)), group_(std::move(group)) {}
  ~GroupDriver() override {
    if (!core_->in_fork_child()) return;
    leak(std::move(core_));
    leak(std::move(group_));
  }
  GroupDriver(const GroupDriver&) = delete;
  GroupDriver& operator=(const GroupDriver&) = delete;
  Status wait_for(Operation& operation, std::chrono::milliseconds timeout) override {
    return core_->wait_for(*group_, operation, timeout);
  }
  [[nodiscard]] const std::shared_ptr<EngineCore>& core() const { return core_; }
  [[nodiscard]] const std::shared_ptr<Group>& group() const { return group_; }

 private:
  std::shared_ptr<EngineCore> core_;
  std::shared_ptr<Group> group_;
};

// An op that never was: for calls in a fork child.
class DeadOp final : public Op {
 public:
  [[nodiscard]] bool done() const override { return true; }
  Status wait(std::chrono::milliseconds) override { return ForkGuard::status(); }
  [[nodiscard]] Status status() const override { return ForkGuard::status(); }
  [[nodiscard]] Contributors contributors() const override { return {}; }
  [[nodiscard]] Rank source() const override { return {}; }
  [[nodiscard]] std::uint64_t sequence() const override { return 0; }
  void when_done(std::function<void()> action) override { action(); }
};

class CommunicatorHandle final : public Communicator {
 public:
  CommunicatorHandle(std::shared_ptr<EngineCore> core, std::shared_ptr<Group> group, GroupOptions options)
      : driver_(std::make_shared<GroupDriver>(std::move(core), std::move(group))), options_(std::move(options)) {}
  ~CommunicatorHandle() override { shutdown(std::chrono::milliseconds{0}); }
  CommunicatorHandle(const CommunicatorHandle&) = delete;
  CommunicatorHandle& operator=(const CommunicatorHandle&) = delete;

  std::shared_ptr<Op> issue(Call call) override {
    if (core().in_fork_child()) return std::make_shared<DeadOp>();
    return core().issue(group(), std::move(call), driver_);
  }
  Status run(const Call& call) override {
    if (core().in_fork_child()) return ForkGuard::status();
    return core().run(group(), call);
  }
  [[nodiscard]] const GroupOptions& options() const override { return options_; }
  [[nodiscard]] Rank rank() const override { return group().rank(); }
  [[nodiscard]] std::vector<Slot> present() const override {
    return ask<std::vector<Slot>>({}, [](Group& group) { return group.present(); });
  }
  [[nodiscard]] Contributors last_contributors() const override {
    return ask<Contributors>({}, [](Group& group) { return group.last_contributors(); });
  }
  [[nodiscard]] std::vector<FinishedOp> recent_ops(std::int64_t after) const override {
    return ask<std::vector<FinishedOp>>({}, [after](Group& group) { return group.recent_ops(after); });
  }
  [[nodiscard]] std::uint64_t next_sequence() const override {
    return ask<std::uint64_t>(0, [](Group& group) { return group.next_sequence(); });
  }
  [[nodiscard]] Status health() const override {
    return ask<Status>(ForkGuard::status(), [](Group& group) { return group.health(); });
  }
  Status set_policy(Policy policy) override {
    const Status set = ask<Status>(ForkGuard::status(), [policy](Group& group) { return group.set_policy(policy); });
    if (set.ok()) options_.policy = policy;
    return set;
  }
  Status set_weight(double weight) override {
    return ask<Status>(ForkGuard::status(), [weight](Group& group) { return group.set_weight(weight); });
  }
  Status answer_broadcasts(std::vector<std::vector<std::byte>> answers) override {
    return ask<Status>(ForkGuard::status(), [&](Group& group) { return group.answer_broadcasts(std::move(answers)); });
  }
  [[nodiscard]] bool alone() const override {
    return ask<bool>(false, [](Group& group) { return group.alone(); });
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    ask<bool>(false, [timeout](Group& group) {
      group.set_timeout(timeout);
      return true;
    });
    options_.timeout = timeout;
  }
  void shutdown(std::chrono::milliseconds grace) override { core().close_group(driver_->group(), grace); }

 private:
  [[nodiscard]] EngineCore& core() const { return *driver_->core(); }
  [[nodiscard]] Group& group() const { return *driver_->group(); }
  // Under the drive lock; `otherwise` in a fork child, where the lock may be held for ever.
  template <class Answer, class Question>
  Answer ask(Answer otherwise, Question question) const {
    if (core().in_fork_child()) return otherwise;
    return core().change([&] { return question(group()); });
  }
  std::shared_ptr<GroupDriver> driver_;
  GroupOptions options_;
};

class EngineHandle final : public Engine {
 public:
  explicit EngineHandle(std::shared_ptr<EngineCore> core) : core_(std::move(core)) {}
  ~EngineHandle() override {
    if (core_->in_fork_child()) {
      leak(std::move(core_));
    } else {
      core_->stop(std::chrono::milliseconds{0});
    }
  }
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  Result<std::shared_ptr<Communicator>> create_group(GroupOptions options, const AddressBook* book) override {
    Result<std::shared_ptr<Group>> group = core_->create_group(options, book);
    if (!group.ok()) return group.status();
    return core_->handle_of(group.value());
  }
  [[nodiscard]] const EngineOptions& options() const override { return core_->engine_options(); }
  [[nodiscard]] std::shared_ptr<SharedMemory> shared_memory() const override { return core_->shared_memory(); }
  [[nodiscard]] ViewNumber view() const override { return core_->view(); }
  [[nodiscard]] std::vector<Slot> present() const override { return core_->present(); }
  Result<BoundaryResult> at_boundary(std::uint64_t step, std::chrono::milliseconds patience) override {
    return core_->at_boundary(step, patience);
  }
  [[nodiscard]] bool newcomer() const override { return core_->newcomer(); }
  Result<StateTransfer> request_join() override { return core_->request_join(); }
  Result<bool> finish_transfer(ViewNumber round, const Status& outcome) override {
    return core_->finish_transfer(round, outcome);
  }
  void step_finished(std::uint64_t step) override { core_->step_finished(step); }
  void pause(std::string what, std::chrono::milliseconds up_to) override { core_->pause(std::move(what), up_to); }
  void leave(const std::string& reason) override { core_->leave(reason); }
  void stop(std::chrono::milliseconds grace) override { core_->stop(grace); }

 private:
  std::shared_ptr<EngineCore> core_;
};

// nullopt: no number, or more than one.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A non-negative number from the environment; nullopt: unset or no number.
template <class Number>
std::optional<Number> number_from(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::nullopt : number_in<Number>(text);
}

std::string text_from(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string{} : std::string(text);
}

// "PID:START_TICKS"
std::optional<ProcessIdentity> process_from(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto pid = number_in<std::int64_t>(text.substr(0, colon));
  const auto start_ticks = number_in<std::uint64_t>(text.substr(colon + 1));
  if (!pid || !start_ticks) return std::nullopt;
  return ProcessIdentity{*pid, *start_ticks};
}

}  // namespace

std::shared_ptr<Communicator> EngineCore::handle_of(const std::shared_ptr<Group>& group) {
  return std::make_shared<CommunicatorHandle>(shared_from_this(), group, group->options());
}

}  // namespace communicator

Result<std::shared_ptr<Engine>> Engine::start(EngineOptions options) {
  Result<std::shared_ptr<communicator::EngineCore>> core = communicator::EngineCore::start(std::move(options));
  if (!core.ok()) return core.status();
  return std::shared_ptr<Engine>(std::make_shared<communicator::EngineHandle>(std::move(core.value())));
}

std::optional<EngineOptions> Engine::options_from_environment() {
  using communicator::number_from;
  using communicator::process_from;
  using communicator::text_from;
  EngineOptions options;
  options.coordinator = text_from("CLOSERANKS_COORDINATOR");
  if (options.coordinator.empty()) return std::nullopt;
  const std::optional<std::uint32_t> slot = number_from<std::uint32_t>("RANK");
  const std::optional<std::uint32_t> slots = number_from<std::uint32_t>("WORLD_SIZE");
  if (!slot || !slots) return std::nullopt;
  options.slot = Slot{*slot};
  options.slots = *slots;
  options.token = text_from("CLOSERANKS_TOKEN");
  options.job = text_from("CLOSERANKS_JOB");
  options.worker = WorkerId{number_from<std::uint64_t>("CLOSERANKS_WORKER").value_or(*slot)};
  options.coordinator_process = process_from(text_from("CLOSERANKS_COORDINATOR_PROCESS"));
  options.output_files = text_from("CLOSERANKS_OUTPUT_FILES");
  if (const auto orphan = number_from<std::int64_t>("CLOSERANKS_ORPHAN_TIMEOUT")) {
    options.orphan_timeout = std::chrono::milliseconds{*orphan};
  }
  return options;
}

}  // namespace closeranks

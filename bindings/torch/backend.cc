#include "backend.h"

#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "base/log.h"
#include "caller_stack.h"
#include "failure.h"
#include "process_engine.h"
#include "shape_names.h"
#include "store_address_book.h"

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;

// destroy_process_group: ops that nobody waited for may finish this long.
constexpr milliseconds shutdown_grace{5'000};

Policy world_policy() {
  const char* text = std::getenv("CLOSERANKS_POLICY");
  if (text == nullptr || std::string_view(text).empty() || std::string_view(text) == name_of(Policy::fail)) {
    return Policy::fail;
  }
  for (const Policy policy : {Policy::repair, Policy::exact}) {
    if (std::string_view(text) == name_of(policy)) {
      return policy;
    }
  }
  throw_invalid_call("CLOSERANKS_POLICY is '" + std::string(text) + "'; it may be fail, repair or exact");
}

c10::intrusive_ptr<CloseranksBackend> make_group(std::shared_ptr<Engine> engine, GroupOptions group,
                                                 c10::intrusive_ptr<GroupSettings> settings,
                                                 const c10::intrusive_ptr<c10d::Store>& store) {
  const AddressBook book = address_book(store);
  auto communicator = engine->create_group(std::move(group), &book);
  throw_unless_ok(communicator.status());
  return c10::make_intrusive<CloseranksBackend>(std::move(engine), std::move(communicator.value()),
                                                std::move(settings));
}

}  // namespace

c10::intrusive_ptr<CloseranksBackend> CloseranksBackend::create(const c10d::DistributedBackendOptions& options,
                                                                const c10::intrusive_ptr<GroupSettings>& settings,
                                                                Slot world_slot, std::uint32_t world_slots) {
  if (options.enable_reconfigure) {
    throw_unsupported("closeranks does not serve enable_reconfigure=True yet; leave it out");
  }
  if (c10d::debug_level() == c10d::DebugLevel::Detail && job_is_coordinated()) {
    log::warning(
        "TORCH_DISTRIBUTED_DEBUG=DETAIL wraps this backend in checks that meet over Gloo: they fail when a worker is "
        "lost, although closeranks goes on; unset it");
  }
  const bool world = options.global_ranks_in_group.empty();
  auto own = c10::make_intrusive<GroupSettings>(
      std::chrono::duration_cast<milliseconds>(std::chrono::duration<double>(options.timeout)));
  own->group_name = options.group_id;
  GroupOptions group;
  group.name = world ? "world" : options.group_id;
  group.timeout = own->timeout;
  group.policy = world ? world_policy() : Policy::fail;
  if (settings) {
    group.policy = settings->policy.value_or(group.policy);
    group.lowest_member_is_root = settings->lowest_member_is_root;
  }
  for (int rank = 0; rank < options.group_size; ++rank) {
    const auto slot = world ? rank : options.global_ranks_in_group.at(static_cast<std::size_t>(rank));
    group.members.emplace_back(static_cast<std::uint32_t>(slot));
    own->global_ranks_in_group.push_back(static_cast<std::uint64_t>(slot));
  }
  auto engine = acquire_engine(world_slot, world_slots);
  throw_unless_ok(engine.status());
  return make_group(std::move(engine.value()), std::move(group), std::move(own), options.store);
}

CloseranksBackend::CloseranksBackend(std::shared_ptr<Engine> engine, std::shared_ptr<Communicator> communicator,
                                     c10::intrusive_ptr<GroupSettings> settings)
    : Backend(static_cast<int>(communicator->rank().value()), static_cast<int>(communicator->options().members.size())),
      engine_(std::move(engine)),
      communicator_(std::move(communicator)),
      settings_(std::move(settings)),
      hooks_(std::make_shared<CompletionHooks>()),
      timeouts_(std::make_shared<Timeouts>(settings_->timeout)),
      said_vacant_(std::make_shared<std::atomic<bool>>(false)) {}

CloseranksBackend::~CloseranksBackend() {
  const auto drop = [this] {
    communicator_->shutdown(milliseconds{0});
    communicator_.reset();
    engine_.reset();
  };
  // The last handle joins the engine's thread, which may be waiting for the GIL in a callback.
  if (!engine_is_stopped() && PyGILState_Check() != 0) {
    const pybind11::gil_scoped_release release;
    drop();
  } else {
    drop();
  }
}

c10::intrusive_ptr<c10d::Backend> CloseranksBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                           const std::vector<int>& ranks,
                                                           const c10::intrusive_ptr<Options>& options) {
  const GroupOptions& parent = communicator_->options();
  GroupOptions group;
  auto own = c10::make_intrusive<GroupSettings>(options->timeout);
  own->group_name = options->group_name;
  group.name = options->group_name;
  group.timeout = options->timeout;
  if (const auto* settings = dynamic_cast<const GroupSettings*>(options.get())) {
    group.policy = settings->policy.value_or(Policy::fail);
    group.lowest_member_is_root = settings->lowest_member_is_root;
  }
  bool member = false;
  for (const int rank : ranks) {
    group.members.push_back(parent.members.at(checked_rank(rank, "split_group").value()));
    own->global_ranks_in_group.push_back(group.members.back().value());
    member = member || rank == getRank();
  }
  if (!member) {
    return nullptr;
  }
  return make_group(engine_, std::move(group), std::move(own), store);
}

void CloseranksBackend::setTimeout(milliseconds timeout) {
  settings_->timeout = timeout;
  timeouts_->set_base(timeout);
  communicator_->set_timeout(timeout);
}

c10d::ErrorType CloseranksBackend::getError() {
  switch (communicator_->health().fault()) {
    case Fault::none:
      return c10d::ErrorType::SUCCESS;
    case Fault::timeout:
      return c10d::ErrorType::TIMEOUT;
    case Fault::peer_lost:
    case Fault::mismatch:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void CloseranksBackend::abort() { communicator_->shutdown(milliseconds{0}); }

void CloseranksBackend::shutdown() { communicator_->shutdown(shutdown_grace); }

Rank CloseranksBackend::checked_rank(std::int64_t rank, const char* op) const {
  if (rank < 0 || rank >= getSize()) {
    throw_invalid_call(std::string(op) + " names rank " + std::to_string(rank) + ", but group " +
                       communicator_->options().name + " has the ranks 0 to " + std::to_string(getSize() - 1));
  }
  return Rank(static_cast<std::uint32_t>(rank));
}

const at::Tensor& CloseranksBackend::only_one(const Tensors& tensors, const char* op) {
  if (tensors.size() != 1) {
    throw_invalid_call(std::string(op) + " takes one tensor per process, not " + std::to_string(tensors.size()));
  }
  return tensors.front();
}

WorkOptions CloseranksBackend::work_options(Issue how, Tensors results) {
  WorkOptions options;
  options.type = how.type;
  options.title = how.title;
  options.timeout = how.timeout;
  options.wait_follows = !how.async;
  options.results = std::move(results);
  return options;
}

c10::intrusive_ptr<CloseranksWork> CloseranksBackend::start(TensorCall call, WorkOptions options) {
  call.call().shape = shape_name(call.shown());
  call.call().stack = caller_stack_name();
  return CloseranksWork::start(*communicator_, std::move(call), std::move(options), hooks_, timeouts_);
}

c10::intrusive_ptr<CloseranksWork> CloseranksBackend::issue(TensorCall call, Issue how, Tensors results) {
  return start(std::move(call), work_options(how, std::move(results)));
}

}  // namespace closeranks::torch_binding

// closeranks-bench-worker: one process of ours in `closeranks bench`, started by `closeranks run --no-python`, so that
// failure handling is on as it is in training.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench_explain.h"
#include "bench_loop.h"
#include "closeranks/engine.h"
#include "closeranks/shared_memory.h"

namespace closeranks::bench {
namespace {

Call call_of(const Shape& shape, std::byte* input, std::byte* output) {
  Call call;
  call.dtype = DType::float32;
  call.root = Rank{0};
  call.wait_follows = true;
  if (shape.input_bytes > 0) call.inputs = {{input, shape.input_bytes}};
  if (shape.output_bytes > 0) call.outputs = {{output, shape.output_bytes}};
  switch (shape.operation) {
    case Operation::all_reduce:
      call.kind = OpKind::all_reduce;
      break;
    case Operation::reduce:
      call.kind = OpKind::reduce;
      if (!shape.is_root()) call.outputs.clear();
      break;
    case Operation::broadcast:
      call.kind = OpKind::broadcast;
      break;
    case Operation::all_gather:
      call.kind = OpKind::all_gather;
      break;
    case Operation::gather:
      call.kind = OpKind::gather;
      break;
    case Operation::scatter:
      call.kind = OpKind::scatter;
      break;
    case Operation::reduce_scatter:
      call.kind = OpKind::reduce_scatter;
      break;
    case Operation::all_to_all:
      call.kind = OpKind::all_to_all;
      call.input_bytes.assign(shape.ranks, shape.unit);
      call.output_bytes = call.input_bytes;
      break;
    case Operation::barrier:
    case Operation::send_recv:
    case Operation::copy:
    case Operation::update:
      break;
  }
  return call;
}

class Collective : public Work {
 public:
  Collective(Communicator& group, const SharedMemory& memory, Call call)
      : group_(group), memory_(memory), call_(std::move(call)) {}
  void run() override {
    const Status status = group_.run(call_);
    if (!status.ok()) fail(status.message());
  }
  [[nodiscard]] std::uint32_t contributors() const override {
    return static_cast<std::uint32_t>(group_.last_contributors().slots_in_all.size());
  }

  [[nodiscard]] std::string explain() const override {
    return bench::explain(call_, static_cast<std::uint32_t>(group_.options().members.size()), group_.rank(), memory_);
  }

 private:
  Communicator& group_;
  const SharedMemory& memory_;
  Call call_;
};

// A message there and back.
class PingPong final : public Work {
 public:
  PingPong(Communicator& group, const SharedMemory& memory, const Shape& shape, std::byte* input, std::byte* output)
      : first_(group, memory, message(shape, shape.rank % 2 == 0, input, output)),
        second_(group, memory, message(shape, shape.rank % 2 != 0, input, output)) {}
  void run() override {
    first_.run();
    second_.run();
  }
  [[nodiscard]] std::string explain() const override { return first_.explain(); }

 private:
  static Call message(const Shape& shape, bool sends, std::byte* input, std::byte* output) {
    Call call;
    call.kind = sends ? OpKind::send : OpKind::recv;
    call.dtype = DType::float32;
    call.root = Rank{*shape.partner()};
    call.wait_follows = true;
    // What comes back is what was received.
    std::byte* sent = shape.rank % 2 == 0 ? input : output;
    (sends ? call.inputs : call.outputs) = {{sends ? sent : output, shape.unit}};
    return call;
  }
  Collective first_;
  Collective second_;
};

class Nothing final : public Work {
 public:
  void run() override {}
};

class Closeranks final : public Library {
 public:
  Closeranks(const Engine& engine, std::shared_ptr<Communicator> group)
      : group_(std::move(group)), memory_(engine.shared_memory()) {}

  std::byte* allocate(std::size_t bytes, std::string& memory) override {
    if (memory == "shared") {
      if (std::byte* shared = memory_->allocate(bytes)) return shared;
    }
    memory = "private";
    return allocate_private(bytes);
  }

  void release(std::byte* memory, std::size_t bytes) override {
    if (memory_->contains(memory, bytes)) return memory_->release(memory);
    release_private(memory);
  }

  std::unique_ptr<Work> prepare(const Shape& shape, std::byte* input, std::byte* output, const std::string&,
                                std::string&) override {
    if (shape.operation != Operation::send_recv) {
      return std::make_unique<Collective>(*group_, *memory_, call_of(shape, input, output));
    }
    if (!shape.partner()) return std::make_unique<Nothing>();
    return std::make_unique<PingPong>(*group_, *memory_, shape, input, output);
  }

  void barrier() override {
    Call call;
    call.wait_follows = true;
    const Status status = group_->run(call);
    if (!status.ok()) fail(status.message());
  }

 private:
  std::shared_ptr<Communicator> group_;
  std::shared_ptr<SharedMemory> memory_;
};

int run() {
  const std::optional<EngineOptions> options = Engine::options_from_environment();
  if (!options) {
    std::fprintf(stderr, "closeranks-bench-worker is started by closeranks bench\n");
    return 2;
  }
  const Result<std::shared_ptr<Engine>> engine = Engine::start(*options);
  if (!engine.ok()) fail(engine.status().message());
  GroupOptions all;
  all.name = "bench";
  for (std::uint32_t slot = 0; slot < options->slots; ++slot) all.members.emplace_back(slot);
  all.policy = Policy::repair;
  const Result<std::shared_ptr<Communicator>> group = engine.value()->create_group(all, nullptr);
  if (!group.ok()) fail(group.status().message());
  int status = 0;
  {
    Closeranks library(*engine.value(), group.value());
    status = serve(library, options->slot.value(), options->slots);
  }
  engine.value()->stop(std::chrono::seconds{5});
  return status;
}

}  // namespace
}  // namespace closeranks::bench

int main() { return closeranks::bench::run(); }

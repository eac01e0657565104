// The Open MPI process of `closeranks bench`. Not part of the build: the bench compiles it with mpicxx where that is
// installed (python/closeranks/bench/openmpi.py).
//
// Open MPI picks an algorithm per communicator, from settings that MPI_T can change between two communicators of one
// job: so one job offers every algorithm of its `tuned` collectives, and those of its shared-memory component `sm`.
#include <mpi.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bench_loop.h"

namespace closeranks::bench {
namespace {

// The setting that selects the algorithm of an op; nullptr: it has none.
const char* algorithm_setting(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "coll_tuned_allreduce_algorithm";
    case Operation::reduce:
      return "coll_tuned_reduce_algorithm";
    case Operation::broadcast:
      return "coll_tuned_bcast_algorithm";
    case Operation::all_gather:
      return "coll_tuned_allgather_algorithm";
    case Operation::gather:
      return "coll_tuned_gather_algorithm";
    case Operation::scatter:
      return "coll_tuned_scatter_algorithm";
    case Operation::reduce_scatter:
      return "coll_tuned_reduce_scatter_block_algorithm";
    case Operation::all_to_all:
      return "coll_tuned_alltoall_algorithm";
    case Operation::barrier:
      return "coll_tuned_barrier_algorithm";
    case Operation::send_recv:
    case Operation::copy:
    case Operation::update:
      return nullptr;
  }
  return nullptr;
}

bool served_by_sm(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce || operation == Operation::broadcast ||
         operation == Operation::barrier;
}

// An integer setting of the library, changed while this object lives.
class Setting {
 public:
  Setting(const char* name, int value) {
    int index = 0;
    int count = 0;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return;
    if (MPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count) != MPI_SUCCESS) return;
    valid_ = MPI_T_cvar_read(handle_, &before_) == MPI_SUCCESS && MPI_T_cvar_write(handle_, &value) == MPI_SUCCESS;
  }
  ~Setting() {
    if (valid_) MPI_T_cvar_write(handle_, &before_);
    if (handle_ != MPI_T_CVAR_HANDLE_NULL) MPI_T_cvar_handle_free(&handle_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  [[nodiscard]] bool valid() const { return valid_; }

 private:
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
  int before_ = 0;
  bool valid_ = false;
};

// Names of the values of a setting, from 1 on (0: the library's own choice), each as NUMBER:NAME.
std::string values_of(const char* name) {
  int index = 0;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return "";
  int verbosity = 0;
  int binding = 0;
  int scope = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum values = MPI_T_ENUM_NULL;
  MPI_T_cvar_get_info(index, nullptr, nullptr, &verbosity, &type, &values, nullptr, nullptr, &binding, &scope);
  int count = 0;
  std::array<char, 256> text{};
  int length = static_cast<int>(text.size());
  if (values == MPI_T_ENUM_NULL || MPI_T_enum_get_info(values, &count, text.data(), &length) != MPI_SUCCESS) return "";
  std::string names;
  for (int i = 0; i < count; ++i) {
    int value = 0;
    length = static_cast<int>(text.size());
    if (MPI_T_enum_get_item(values, i, &value, text.data(), &length) != MPI_SUCCESS || value == 0) continue;
    names += " " + std::to_string(value) + ":" + text.data();
  }
  return names;
}

class MpiWork final : public Work {
 public:
  MpiWork(MPI_Comm group, const Shape& shape, std::byte* input, std::byte* output)
      : group_(group), shape_(shape), input_(input), output_(output), count_(static_cast<int>(shape.unit / 4)) {}

  void run() override { result_ = op(); }
  [[nodiscard]] std::string trouble() const override {
    return result_ == MPI_SUCCESS ? "" : "Open MPI says error " + std::to_string(result_);
  }

 private:
  int op() const {
    const void* root_in_place = shape_.is_root() ? MPI_IN_PLACE : output_;
    switch (shape_.operation) {
      case Operation::all_reduce:
        return MPI_Allreduce(MPI_IN_PLACE, output_, count_, MPI_FLOAT, MPI_SUM, group_);
      case Operation::reduce:
        return MPI_Reduce(root_in_place, shape_.is_root() ? output_ : nullptr, count_, MPI_FLOAT, MPI_SUM, 0, group_);
      case Operation::broadcast:
        return MPI_Bcast(output_, count_, MPI_FLOAT, 0, group_);
      case Operation::all_gather:
        return MPI_Allgather(input_, count_, MPI_FLOAT, output_, count_, MPI_FLOAT, group_);
      case Operation::gather:
        return MPI_Gather(input_, count_, MPI_FLOAT, output_, count_, MPI_FLOAT, 0, group_);
      case Operation::scatter:
        return MPI_Scatter(input_, count_, MPI_FLOAT, output_, count_, MPI_FLOAT, 0, group_);
      case Operation::reduce_scatter:
        return MPI_Reduce_scatter_block(input_, output_, count_, MPI_FLOAT, MPI_SUM, group_);
      case Operation::all_to_all:
        return MPI_Alltoall(input_, count_, MPI_FLOAT, output_, count_, MPI_FLOAT, group_);
      case Operation::barrier:
        return MPI_Barrier(group_);
      case Operation::send_recv:
        return ping_pong();
      case Operation::copy:
      case Operation::update:
        break;
    }
    return MPI_SUCCESS;
  }

  int ping_pong() const {
    if (!shape_.partner()) return MPI_SUCCESS;
    const int partner = static_cast<int>(*shape_.partner());
    if (shape_.rank % 2 == 0) {
      MPI_Send(input_, count_, MPI_FLOAT, partner, 0, group_);
      return MPI_Recv(output_, count_, MPI_FLOAT, partner, 0, group_, MPI_STATUS_IGNORE);
    }
    MPI_Recv(output_, count_, MPI_FLOAT, partner, 0, group_, MPI_STATUS_IGNORE);
    return MPI_Send(output_, count_, MPI_FLOAT, partner, 0, group_);
  }

  MPI_Comm group_;
  Shape shape_;
  std::byte* input_;
  std::byte* output_;
  int count_;
  int result_ = MPI_SUCCESS;
};

class OpenMpi final : public Library {
 public:
  std::byte* allocate(std::size_t bytes, std::string& memory) override {
    memory = "private";
    return allocate_private(bytes);
  }
  void release(std::byte* memory, std::size_t) override { release_private(memory); }

  std::string variants(Operation operation) override {
    const char* setting = algorithm_setting(operation);
    std::string names = "default";
    if (setting != nullptr) names += values_of(setting);
    if (served_by_sm(operation)) names += " sm";
    return names;
  }

  std::unique_ptr<Work> prepare(const Shape& shape, std::byte* input, std::byte* output, const std::string& variant,
                                std::string& reason) override {
    const MPI_Comm group = group_for(shape.operation, variant, reason);
    if (group == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiWork>(group, shape, input, output);
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  // Collective. MPI_COMM_NULL: this variant is not to be had.
  MPI_Comm group_for(Operation operation, const std::string& variant, std::string& reason) {
    const char* setting = algorithm_setting(operation);
    const std::string name = variant == "default" || variant == "sm" ? variant : setting + (":" + variant);
    const auto known = groups_.find(name);
    if (known != groups_.end()) return known->second;
    MPI_Comm group = MPI_COMM_NULL;
    if (variant == "default") {
      MPI_Comm_dup(MPI_COMM_WORLD, &group);
    } else if (variant == "sm") {
      const Setting priority("coll_sm_priority", 95);
      if (!priority.valid()) reason = "the component sm cannot be selected";
      if (priority.valid()) MPI_Comm_dup(MPI_COMM_WORLD, &group);
    } else {
      const Setting algorithm(setting, std::stoi(variant));
      if (!algorithm.valid()) reason = "the algorithm cannot be selected";
      if (algorithm.valid()) MPI_Comm_dup(MPI_COMM_WORLD, &group);
    }
    // Not every algorithm takes every number of processes.
    if (group != MPI_COMM_NULL) MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
    groups_.emplace(name, group);
    return group;
  }

  std::map<std::string, MPI_Comm> groups_;
};

int run(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int provided = 0;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  OpenMpi library;
  const int status = serve(library, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(ranks));
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_T_finalize();
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace closeranks::bench

int main(int argc, char** argv) { return closeranks::bench::run(argc, argv); }

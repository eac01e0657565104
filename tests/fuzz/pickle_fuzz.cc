// Dumps of torch's flight recorder, which come from anywhere: nothing is executed, memory stays bounded, and what is
// read can be judged.
#include <cstddef>
#include <cstdint>
#include <span>

#include "require.h"
#include "trace/torch_dump.h"

using namespace closeranks;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  auto dump = trace::read_torch_dump(bytes, "rank_3", 0);
  if (!dump.ok()) {
    FUZZ_REQUIRE(dump.status().fault() == Fault::refused);
    return 0;
  }
  FUZZ_REQUIRE(dump.value().ops.size() <= size);
  for (const recorder::OpTrace& op : dump.value().ops) FUZZ_REQUIRE(op.group < dump.value().groups.size());
  recorder::JobTrace job;
  job.workers.push_back(std::move(dump.value()));
  trace::complete_members(job);
  return 0;
}

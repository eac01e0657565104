// Boundaries between training steps, and newcomers joining there.
#include <utility>

#include "communicator/engine_core.h"

namespace closeranks::communicator {

Result<BoundaryResult> EngineCore::at_boundary(std::uint64_t) { return BoundaryResult{}; }
bool EngineCore::newcomer() { return false; }
Result<StateTransfer> EngineCore::request_join() {
  return Status(Fault::unsupported, Move::fix_call, "this worker is no newcomer");
}
Result<bool> EngineCore::finish_transfer(ViewNumber, const Status&) { return false; }
void EngineCore::step_finished(std::uint64_t) {}
void EngineCore::pause(std::string, std::chrono::milliseconds) {}
void EngineCore::leave(std::string) {}

}  // namespace closeranks::communicator

#include "control/worker_link.h"

#include <utility>
#include <variant>

#include "base/assert.h"
#include "control/client_link.h"
#include "control/codec.h"

namespace closeranks::control {
namespace {

Result<std::vector<std::string>> encode_all(const std::vector<membership::FromWorker>& messages) {
  std::vector<std::string> frames;
  for (const membership::FromWorker& message : messages) {
    Result<std::string> frame = encode(message);
    if (!frame.ok()) return frame.status();
    frames.push_back(std::move(frame.value()));
  }
  return frames;
}

ClientLinkOptions client_options(WorkerLinkOptions options) {
  ClientLinkOptions client;
  static_cast<LinkOptions&>(client) = options;
  client.claim = Claim{Role::worker, options.worker, options.job, ""};
  client.opening = [opening = std::move(options.opening)] { return encode_all(opening()); };
  client.frame = [message = std::move(options.message)](FrameKind kind, std::span<const std::byte> body) {
    Result<membership::ToWorker> decoded = decode_to_worker(kind, body);
    if (decoded.ok()) message(std::move(decoded.value()));
    return decoded.status();
  };
  client.events = std::move(options.events);
  return client;
}

}  // namespace

struct WorkerLink::State {
  State(ControlThread& thread, WorkerLinkOptions options) : link(thread, client_options(std::move(options))) {}
  ClientLink link;
};

WorkerLink::WorkerLink(ControlThread& thread, WorkerLinkOptions options)
    : state_(std::make_unique<State>(thread, std::move(options))) {}

WorkerLink::~WorkerLink() = default;

void WorkerLink::start() { state_->link.start(); }

Status WorkerLink::send(const membership::FromWorker& message) {
  CR_ASSERT(!std::holds_alternative<membership::Hello>(message));
  Result<std::string> frame = encode(message);
  if (!frame.ok()) return frame.status();
  return state_->link.send(std::move(frame.value()), std::holds_alternative<membership::OpRepaired>(message));
}

void WorkerLink::stop(std::chrono::milliseconds grace) { state_->link.stop(grace); }

bool WorkerLink::connected() const { return state_->link.connected(); }

}  // namespace closeranks::control

#include "control/agent_link.h"

#include <utility>
#include <variant>

#include "base/assert.h"
#include "control/client_link.h"
#include "control/codec.h"

namespace closeranks::control {
namespace {

Result<std::vector<std::string>> encode_all(const std::vector<membership::FromAgent>& messages) {
  std::vector<std::string> frames;
  for (const membership::FromAgent& message : messages) {
    Result<std::string> frame = encode(message);
    if (!frame.ok()) return frame.status();
    frames.push_back(std::move(frame.value()));
  }
  return frames;
}

ClientLinkOptions client_options(AgentLinkOptions options) {
  ClientLinkOptions client;
  static_cast<LinkOptions&>(client) = options;
  client.claim = Claim{Role::agent, WorkerId{}, options.job, options.host};
  client.opening = [opening = std::move(options.opening)] { return encode_all(opening()); };
  client.frame = [message = std::move(options.message)](FrameKind kind, std::span<const std::byte> body) {
    Result<membership::ToAgent> decoded = decode_to_agent(kind, body);
    if (decoded.ok()) message(std::move(decoded.value()));
    return decoded.status();
  };
  client.events = std::move(options.events);
  return client;
}

}  // namespace

struct AgentLink::State {
  State(ControlThread& thread, AgentLinkOptions options) : link(thread, client_options(std::move(options))) {}
  ClientLink link;
};

AgentLink::AgentLink(ControlThread& thread, AgentLinkOptions options)
    : state_(std::make_unique<State>(thread, std::move(options))) {}

AgentLink::~AgentLink() = default;

void AgentLink::start() { state_->link.start(); }

Status AgentLink::send(const membership::FromAgent& message) {
  CR_ASSERT(!std::holds_alternative<membership::AgentHello>(message));
  Result<std::string> frame = encode(message);
  if (!frame.ok()) return frame.status();
  return state_->link.send(std::move(frame.value()), false);
}

void AgentLink::stop(std::chrono::milliseconds grace) { state_->link.stop(grace); }

bool AgentLink::connected() const { return state_->link.connected(); }

}  // namespace closeranks::control

#include "coordinator/server.h"

#include <asio/steady_timer.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/log.h"
#include "control/codec.h"
#include "control/connection.h"
#include "coordinator/door.h"
#include "coordinator/refusals.h"

namespace closeranks::coordinator {
namespace {

using control::Claim;
using control::Connection;
using control::FrameHeader;
using control::Role;

// Frames that a worker or agent has not taken. At 1,000 workers a welcome is 120 KiB; who is this far behind does not
// read, and gets everything afresh when it connects again.
constexpr std::size_t unread_limit = 8u << 20;

membership::Time machine_time() {
  return std::chrono::duration_cast<membership::Time>(std::chrono::steady_clock::now().time_since_epoch());
}

EventKind kind_of(membership::EventKind kind) {
  switch (kind) {
    case membership::EventKind::worker_registered:
      return EventKind::worker_registered;
    case membership::EventKind::worker_left:
      return EventKind::worker_left;
    case membership::EventKind::worker_suspected:
      return EventKind::worker_suspected;
    case membership::EventKind::worker_fenced:
      return EventKind::worker_fenced;
    case membership::EventKind::fence_overdue:
      return EventKind::fence_overdue;
    case membership::EventKind::view_proposed:
      return EventKind::view_proposed;
    case membership::EventKind::worker_excluded:
      return EventKind::worker_excluded;
    case membership::EventKind::view_installed:
      return EventKind::view_installed;
    case membership::EventKind::op_repaired:
      return EventKind::op_repaired;
    case membership::EventKind::session_started:
      return EventKind::session_started;
    case membership::EventKind::worker_joined:
      return EventKind::worker_joined;
    case membership::EventKind::join_pending:
      return EventKind::join_pending;
    case membership::EventKind::join_cancelled:
      return EventKind::join_cancelled;
    case membership::EventKind::first_step:
      return EventKind::first_step;
    case membership::EventKind::worker_hung:
      return EventKind::worker_hung;
    case membership::EventKind::draining:
      return EventKind::draining;
    case membership::EventKind::gave_up:
      return EventKind::gave_up;
    case membership::EventKind::superseded:
      return EventKind::superseded;
  }
  CR_ASSERT(!"an event kind outside its enum");
}

std::string list(const std::vector<Slot>& slots) {
  std::string text;
  for (const Slot slot : slots) text += (text.empty() ? "" : ", ") + std::to_string(slot.value());
  return text.empty() ? "none" : text;
}

// Who a message says it is from.
WorkerId sender(const membership::FromWorker& message) {
  return std::visit(
      [](const auto& one) {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, membership::Hello>) {
          return one.self.worker;
        } else {
          return one.from;
        }
      },
      message);
}

}  // namespace

struct Server::State : public std::enable_shared_from_this<Server::State> {
  State(control::ControlThread& control_thread, ServerOptions given, Journal& its_journal, EventSink& its_events)
      : thread(control_thread),
        options(std::move(given)),
        journal(its_journal),
        events(its_events),
        tick(control_thread.context()) {}

  // A connection that is in. `opened`: its first message, the hello, has come.
  struct Peer {
    std::shared_ptr<Connection> connection;
    bool opened = false;
  };

  control::ControlThread& thread;
  const ServerOptions options;
  Journal& journal;
  EventSink& events;
  asio::steady_timer tick;
  std::shared_ptr<Door> door;
  std::optional<membership::Coordinator> machine;
  std::map<WorkerId, Peer> workers;
  std::map<std::string, Peer> agents;  // by host
  std::vector<std::shared_ptr<Connection>> observers;
  Refusals refusals;
  bool running = false;
  bool stopped = false;
  bool told_end = false;
  std::string address;

  mutable std::mutex mutex;
  ViewSnapshot snapshot;  // under mutex

  Status begin();
  void stop_now();
  void finish_with(const Event& why);

  Status check(const Claim& claim) const;
  void admit(const Claim& claim, std::shared_ptr<Connection> connection);
  void refused(const std::string& who, const std::string& why);
  template <class Key>
  void drop(std::map<Key, Peer>& peers, const Key& key, const std::string& why);
  template <class Key>
  void listen_to(std::map<Key, Peer>& peers, const Key& key, const std::shared_ptr<Connection>& connection);
  Status received(WorkerId worker, Peer& peer, const FrameHeader& header, std::span<const std::byte> body);
  Status received(const std::string& host, Peer& peer, const FrameHeader& header, std::span<const std::byte> body);
  void gone(WorkerId worker, const std::string& why);
  void gone(const std::string& host, const std::string& why);

  void carry_out(const membership::Effects& effects);
  void report(const membership::Event& event);
  template <class Key, class Message>
  void send(std::map<Key, Peer>& peers, const Key& key, const Message& message);
  void schedule(std::optional<membership::Time> at);
};

// ---- start and stop ----------------------------------------------------------------------------------------------

Status Server::State::begin() {
  membership::CoordinatorConfig config;
  config.job = options.job;
  config.min_present = options.min_present;
  config.shrink = options.shrink;
  if (options.hang_timeout) {
    config.hang.timeout = *options.hang_timeout;
    config.hang.adaptive = false;
  }
  machine.emplace(std::move(config), options.roster, journal.records());
  Event started;
  started.kind = EventKind::coordinator_started;
  started.detail = "listens on " + address;
  membership::Effects effects = machine->start(machine_time());
  started.view = ViewNumber{machine->term(), machine->view().n};
  events.emit(std::move(started));
  carry_out(effects);
  if (stopped) {
    return Status(Fault::system, Move::give_up, "the coordinator's journal does not take the term it starts with");
  }
  running = true;
  door->start();
  return {};
}

Result<std::unique_ptr<Server>> Server::start(control::ControlThread& thread, ServerOptions options, Journal& journal,
                                              EventSink& events) {
  Claim claim;
  claim.job = options.job;
  if (Status status = control::check_claim(claim); !status.ok()) return status;
  auto state = std::make_shared<State>(thread, std::move(options), journal, events);
  const std::weak_ptr<State> weak = state;
  DoorOptions door;
  door.address = state->options.address;
  door.port = state->options.port;
  door.job = state->options.job;
  door.token = state->options.token;
  door.check = [weak](const Claim& who) {
    const auto self = weak.lock();
    return self ? self->check(who) : Status(Fault::closed, Move::retry, "the coordinator stops");
  };
  door.admitted = [weak](const Claim& who, std::shared_ptr<Connection> connection) {
    if (auto self = weak.lock()) self->admit(who, std::move(connection));
  };
  door.refused = [weak](const std::string& who, const std::string& why) {
    if (auto self = weak.lock()) self->refused(who, why);
  };
  state->door = std::make_shared<Door>(thread.context(), std::move(door));
  if (Status status = state->door->listen(); !status.ok()) return status;
  const bool v6 = state->options.address.find(':') != std::string::npos;
  state->address =
      (v6 ? "[" + state->options.address + "]" : state->options.address) + ":" + std::to_string(state->door->port());
  auto server = std::unique_ptr<Server>(new Server(state));
  auto begun = std::make_shared<Status>();
  if (Status status = thread.run([state, begun] { *begun = state->begin(); }); !status.ok()) return status;
  if (!begun->ok()) return *begun;
  return server;
}

Server::Server(std::shared_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() { stop(); }

std::string Server::address() const { return state_->address; }

ViewSnapshot Server::view() const {
  const std::lock_guard lock(state_->mutex);
  return state_->snapshot;
}

void Server::stop() {
  CR_ASSERT(!state_->thread.is_current());
  const Status stopped = state_->thread.run([state = state_] { state->stop_now(); });
  if (stopped.fault() == Fault::timeout) log::error(stopped.message());
}

void Server::State::stop_now() {
  if (std::exchange(stopped, true)) return;
  tick.cancel();
  door->stop();
  for (auto& [worker, peer] : workers) peer.connection->close();
  for (auto& [host, peer] : agents) peer.connection->close();
  for (auto& connection : observers) connection->close();
  workers.clear();
  agents.clear();
  observers.clear();
}

void Server::State::finish_with(const Event& why) {
  // A failure within start() is start()'s answer.
  if (!running || std::exchange(told_end, true)) return;
  if (options.ended) options.ended(why);
}

// ---- who comes in ------------------------------------------------------------------------------------------------

Status Server::State::check(const Claim& claim) const {
  if (claim.role == Role::worker && machine->roster().find(claim.worker) == nullptr) {
    return Status(Fault::refused, Move::give_up,
                  "there is no worker " + std::to_string(claim.worker.value()) + " in job " + options.job);
  }
  if (claim.role == Role::agent && claim.host.empty()) {
    return Status(Fault::refused, Move::give_up, "an agent has to name its host");
  }
  return {};
}

void Server::State::admit(const Claim& claim, std::shared_ptr<Connection> connection) {
  switch (claim.role) {
    case Role::worker:
      return listen_to(workers, claim.worker, connection);
    case Role::agent:
      return listen_to(agents, claim.host, connection);
    case Role::observer:
      break;
  }
  Connection::Events its_events;
  const std::weak_ptr<State> weak = weak_from_this();
  const std::weak_ptr<Connection> its_connection = connection;
  its_events.frame = [its_connection](const FrameHeader&, std::span<const std::byte>) {
    if (auto observer = its_connection.lock()) Door::turn_away(*observer, "an observer has nothing to say");
  };
  its_events.closed = [weak, its_connection](const Status&) {
    if (auto self = weak.lock()) std::erase(self->observers, its_connection.lock());
  };
  connection->set_events(std::move(its_events));
  observers.push_back(std::move(connection));
}

template <class Key>
void Server::State::listen_to(std::map<Key, Peer>& peers, const Key& key,
                              const std::shared_ptr<Connection>& connection) {
  Peer& peer = peers[key];
  if (peer.connection) {
    // Its end went through a broken line, or the process began anew; the newest connection counts.
    log::info(connection->peer() + " has a new connection to the coordinator; the old one is closed");
    peer.connection->close();
  }
  peer = Peer{connection, false};
  const std::weak_ptr<State> weak = weak_from_this();
  // Raw: only compared, to tell whether this connection is still the newest.
  const Connection* its_connection = connection.get();
  const auto find = [weak, key, its_connection, &peers]() -> Peer* {
    const auto self = weak.lock();
    if (!self || self->stopped) return nullptr;
    const auto found = peers.find(key);
    return found != peers.end() && found->second.connection.get() == its_connection ? &found->second : nullptr;
  };
  Connection::Events its_events;
  its_events.frame = [this, find, key, &peers](const FrameHeader& header, std::span<const std::byte> body) {
    Peer* found = find();
    if (found == nullptr) return;
    if (Status status = received(key, *found, header, body); !status.ok()) drop(peers, key, status.message());
  };
  its_events.rejected = [this, find, key, &peers](const Status& why) {
    if (find() != nullptr) drop(peers, key, why.message());
  };
  its_events.closed = [this, find, key, &peers](const Status& why) {
    if (find() == nullptr) return;
    peers.erase(key);
    gone(key, why.message());
  };
  connection->set_events(std::move(its_events));
}

void Server::State::refused(const std::string& who, const std::string& why) {
  const membership::Time now = machine_time();
  if (const auto left_out = refusals.left_out(now)) {
    log::warning("the coordinator refused " + std::to_string(*left_out) + " more connections in the last seconds");
  }
  if (!refusals.tell(now)) return;
  log::warning("the coordinator refused a connection from " + who + ": " + why);
  Event event;
  event.kind = EventKind::connection_refused;
  event.reason = why;
  event.detail = who;
  events.emit(std::move(event));
}

template <class Key>
void Server::State::drop(std::map<Key, Peer>& peers, const Key& key, const std::string& why) {
  const auto found = peers.find(key);
  if (found == peers.end()) return;
  const std::shared_ptr<Connection> connection = found->second.connection;
  peers.erase(found);
  refused(connection->peer(), why);
  Door::turn_away(*connection, why);
  gone(key, why);
}

void Server::State::gone(WorkerId worker, const std::string& why) {
  log::debug("the coordinator lost the connection of worker " + std::to_string(worker.value()) + ": " + why);
  carry_out(machine->connection_lost(worker, machine_time()));
}

void Server::State::gone(const std::string& host, const std::string& why) {
  // At the end of a job agents leave too; while workers of theirs live it is worth a line.
  bool workers_left = false;
  for (const membership::Member& member : machine->roster().members()) {
    const bool lives = member.life == membership::Life::running || member.life == membership::Life::suspected;
    workers_left |= lives && member.host == host;
  }
  const std::string text = "the coordinator lost the agent of host " + host + ": " + why;
  if (workers_left && !machine->ended()) {
    log::warning(text + "; deaths there are noticed when it is back");
  } else {
    log::debug(text);
  }
  Event event;
  event.kind = EventKind::agent_lost;
  event.host = host;
  event.reason = why;
  events.emit(std::move(event));
}

// ---- what they say -----------------------------------------------------------------------------------------------

Status Server::State::received(WorkerId worker, Peer& peer, const FrameHeader& header,
                               std::span<const std::byte> body) {
  const Result<membership::FromWorker> message = control::decode_from_worker(header.kind, body);
  if (!message.ok()) return message.status();
  const auto refuse = [&header](const std::string& what) {
    return Status(Fault::refused, Move::give_up,
                  "a frame (" + std::string(control::name_of(header.kind)) + ") " + what);
  };
  if (sender(message.value()) != worker) {
    return refuse("from worker " + std::to_string(sender(message.value()).value()) + " on the connection of worker " +
                  std::to_string(worker.value()));
  }
  if (!peer.opened && !std::holds_alternative<membership::Hello>(message.value())) return refuse("before its hello");
  peer.opened = true;
  carry_out(machine->handle_worker(message.value(), machine_time()));
  return {};
}

Status Server::State::received(const std::string& host, Peer& peer, const FrameHeader& header,
                               std::span<const std::byte> body) {
  const Result<membership::FromAgent> message = control::decode_from_agent(header.kind, body);
  if (!message.ok()) return message.status();
  const auto* hello = std::get_if<membership::AgentHello>(&message.value());
  if (!peer.opened && hello == nullptr) {
    return Status(Fault::refused, Move::give_up,
                  "a frame (" + std::string(control::name_of(header.kind)) + ") before its hello");
  }
  if (hello != nullptr && hello->host != host) {
    return Status(Fault::refused, Move::give_up,
                  "a hello of host " + hello->host + " on the connection of host " + host);
  }
  if (!std::exchange(peer.opened, true)) {
    Event event;
    event.kind = EventKind::agent_connected;
    event.host = host;
    event.pid = hello->pid;
    events.emit(std::move(event));
  }
  carry_out(machine->handle_agent(host, message.value(), machine_time()));
  return {};
}

// ---- what the machine wants --------------------------------------------------------------------------------------

void Server::State::carry_out(const membership::Effects& effects) {
  for (const membership::JournalRecord& record : effects.journal) {
    if (Status status = journal.append(record); !status.ok()) {
      // Nothing of these effects may be announced, and no later decision either.
      log::error("the coordinator stops: its journal cannot be written: " + status.message());
      Event event;
      event.kind = EventKind::gave_up;
      event.reason = "the journal cannot be written: " + status.message();
      events.emit(event);
      finish_with(event);
      stop_now();
      return;
    }
  }
  {
    const std::lock_guard lock(mutex);
    snapshot = ViewSnapshot{machine->view(), machine->term(), machine->present(), machine->excluded()};
  }
  for (const membership::Event& event : effects.events) report(event);
  for (const auto& [host, message] : effects.to_agents) send(agents, host, message);
  for (const auto& [worker, message] : effects.to_workers) send(workers, worker, message);
  schedule(effects.next_tick);
}

void Server::State::report(const membership::Event& given) {
  Event event;
  event.kind = kind_of(given.kind);
  event.slot = given.slot;
  event.worker = given.worker;
  if (given.worker) {
    if (const membership::Member* member = machine->roster().find(*given.worker)) {
      event.host = member->host;
      if (member->registered) event.pid = member->address.pid;
    }
  }
  if (given.view != ViewNumber{}) event.view = given.view;
  event.reason = given.reason;
  event.detail = given.detail;
  if (given.kind == membership::EventKind::view_installed) {
    event.detail = "present slots: " + list(given.present) + (given.detail.empty() ? "" : "; " + given.detail);
  }
  if (given.repaired) {
    event.detail = given.repaired->op + " of group '" + given.repaired->group + "', with the inputs of slots " +
                   list(given.repaired->contributors) +
                   "; blocks taken over here: " + std::to_string(given.repaired->blocks_taken_over);
  }
  events.emit(event);
  if (given.kind == membership::EventKind::gave_up || given.kind == membership::EventKind::superseded) {
    // Not at once: the messages of the same effects still have to go out.
    thread.post([weak = weak_from_this(), event] {
      if (auto self = weak.lock(); self && !self->stopped) self->finish_with(event);
    });
  }
}

template <class Key, class Message>
void Server::State::send(std::map<Key, Peer>& peers, const Key& key, const Message& message) {
  const auto found = peers.find(key);
  if (found == peers.end()) return;
  const Result<std::string> frame = control::encode(message);
  if (!frame.ok()) {
    log::error("the coordinator cannot tell " + found->second.connection->peer() + ": " + frame.status().message());
    return;
  }
  found->second.connection->write(frame.value());
  if (found->second.connection->queued_bytes() <= unread_limit) return;
  // Later, not here: the machine must not be called while its effects are carried out.
  thread.post([weak = weak_from_this(), key, &peers, connection = found->second.connection] {
    const auto self = weak.lock();
    if (!self || self->stopped) return;
    const auto slow = peers.find(key);
    if (slow == peers.end() || slow->second.connection != connection) return;
    log::warning(connection->peer() + " does not read what the coordinator sends; its connection is closed");
    connection->close();
    peers.erase(slow);
    self->gone(key, "it does not read");
  });
}

void Server::State::schedule(std::optional<membership::Time> at) {
  tick.cancel();
  if (!at || stopped) return;
  tick.expires_at(std::chrono::steady_clock::time_point(*at));
  tick.async_wait([weak = weak_from_this()](const std::error_code& error) {
    if (error) return;
    if (auto self = weak.lock(); self && !self->stopped) self->carry_out(self->machine->tick(machine_time()));
  });
}

}  // namespace closeranks::coordinator

#include "agent/store_server.h"

#include <array>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <map>
#include <string>
#include <utility>

#include "agent/store.h"
#include "agent/store_protocol.h"
#include "base/deadlines.h"
#include "base/log.h"

namespace closeranks::agent {

using asio::ip::tcp;

struct StoreServer::State : public std::enable_shared_from_this<StoreServer::State> {
  explicit State(asio::io_context& its_context) : context(its_context), acceptor(its_context), pause(its_context) {}

  struct Client {
    Client(Store::Client its_id, tcp::socket connection)
        : id(its_id), socket(std::move(connection)), silence(socket.get_executor()) {}
    Store::Client id;
    tcp::socket socket;
    asio::steady_timer silence;  // until the first query
    QueryDecoder decoder;
    std::array<char, 16384> buffer{};
    std::string unsent;  // answers behind those being written
    std::string writing;
    bool validated = false;
  };

  asio::io_context& context;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  Store store;
  std::map<Store::Client, std::shared_ptr<Client>> clients;
  Store::Client next_id = 1;
  bool closed = false;

  void accept() {
    acceptor.async_accept([self = shared_from_this()](const std::error_code& error, tcp::socket socket) {
      if (self->closed) return;
      if (!error) self->welcome(std::move(socket));
      if (!error || error == asio::error::connection_aborted) {
        self->accept();
        return;
      }
      // Out of descriptors, most likely: try again when some may be free.
      self->pause.expires_after(std::chrono::milliseconds(100));
      self->pause.async_wait([self](const std::error_code&) {
        if (!self->closed) self->accept();
      });
    });
  }

  void welcome(tcp::socket socket) {
    std::error_code ignored;
    if (clients.size() >= max_store_clients) {
      log::warning("store: a connection over the limit of " + std::to_string(max_store_clients) + " is refused");
      socket.close(ignored);
      return;
    }
    socket.set_option(tcp::no_delay(true), ignored);
    auto client = std::make_shared<Client>(next_id++, std::move(socket));
    clients[client->id] = client;
    client->silence.expires_after(deadlines::handshake);
    client->silence.async_wait([self = shared_from_this(), client](const std::error_code& error) {
      if (!error && !client->validated) self->drop(client, "it said nothing for too long");
    });
    read(client);
  }

  void read(const std::shared_ptr<Client>& client) {
    client->socket.async_read_some(asio::buffer(client->buffer), [self = shared_from_this(), client](
                                                                     const std::error_code& error, std::size_t bytes) {
      if (error) {
        self->drop(client, "");
        return;
      }
      client->decoder.feed({client->buffer.data(), bytes});
      if (self->take_queries(client)) self->read(client);
    });
  }

  // False: the client was dropped.
  bool take_queries(const std::shared_ptr<Client>& client) {
    for (;;) {
      auto query = client->decoder.next();
      if (!query.ok()) {
        drop(client, query.status().message());
        return false;
      }
      if (!query.value().has_value()) return true;
      if (!std::exchange(client->validated, true)) client->silence.cancel();
      Store::Outcome outcome = store.handle(client->id, *query.value());
      if (!outcome.refusal.ok()) {
        drop(client, outcome.refusal.message());
        return false;
      }
      for (const Store::Answer& answer : outcome.answers) {
        if (const auto to = clients.find(answer.to); to != clients.end()) send(to->second, answer.bytes);
      }
      if (!clients.contains(client->id)) return false;
    }
  }

  void send(const std::shared_ptr<Client>& client, const std::string& bytes) {
    if (client->unsent.size() + bytes.size() > max_unread_bytes) {
      drop(client, "it does not read its answers");
      return;
    }
    client->unsent += bytes;
    if (client->writing.empty()) write(client);
  }

  void write(const std::shared_ptr<Client>& client) {
    client->writing = std::exchange(client->unsent, {});
    if (client->writing.empty()) return;
    asio::async_write(client->socket, asio::buffer(client->writing),
                      [self = shared_from_this(), client](const std::error_code& error, std::size_t) {
                        client->writing.clear();
                        if (error) {
                          self->drop(client, "");
                        } else {
                          self->write(client);
                        }
                      });
  }

  // `why` empty: it has gone by itself.
  void drop(const std::shared_ptr<Client>& client, const std::string& why) {
    if (clients.erase(client->id) == 0) return;
    if (!why.empty()) log::warning("store: a connection on port " + std::to_string(port()) + " is closed: " + why);
    store.forget(client->id);
    client->silence.cancel();
    std::error_code ignored;
    client->socket.close(ignored);
  }

  [[nodiscard]] std::uint16_t port() const {
    std::error_code ignored;
    return acceptor.local_endpoint(ignored).port();
  }

  void close() {
    closed = true;
    std::error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
    while (!clients.empty()) drop(clients.begin()->second, "");
  }
};

StoreServer::StoreServer(std::shared_ptr<State> state) : state_(std::move(state)) {}
StoreServer::~StoreServer() { state_->close(); }
std::uint16_t StoreServer::port() const { return state_->port(); }

Result<std::unique_ptr<StoreServer>> StoreServer::start(asio::io_context& context, std::uint16_t port) {
  auto state = std::make_shared<State>(context);
  const tcp::endpoint endpoint(asio::ip::address_v4::loopback(), port);
  std::error_code error;
  state->acceptor.open(endpoint.protocol(), error);
  if (!error) state->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) state->acceptor.bind(endpoint, error);
  if (!error) state->acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    return Status(Fault::system, Move::fix_call,
                  "the store cannot listen on 127.0.0.1:" + std::to_string(port) + " (" + error.message() +
                      "); leave --master-port out for a free port");
  }
  state->accept();
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(state)));
}

}  // namespace closeranks::agent

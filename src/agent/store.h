// The data of a TCPStore and what each query does to it. Pure: (client, query) -> answers to clients. Waiting queries
// are answered later, when another client's query fulfils them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agent/store_protocol.h"
#include "closeranks/status.h"

namespace closeranks::agent {

// Bytes of keys and values the store holds at most: a rendezvous needs kilobytes.
inline constexpr std::uint64_t max_store_bytes = 1ull << 30;

class Store {
 public:
  using Client = std::uint64_t;
  struct Answer {
    Client to = 0;
    std::string bytes;
  };
  // What a query came to. `refusal`: this client broke a rule that torch's server too answers by closing its connection
  // (an add to a value that is no number; the store is full); no answers then.
  struct Outcome {
    std::vector<Answer> answers;
    Status refusal;
  };

  explicit Store(std::uint64_t max_bytes = max_store_bytes) : max_bytes_(max_bytes) {}

  Outcome handle(Client client, const Query& query);
  // The client's connection is gone: it waits for nothing any more. What it has set stays.
  void forget(Client client);

 private:
  // A wait is over when every key exists (or has something queued); a barrier when enough have come.
  struct Waiter {
    std::set<std::string> missing;       // wait
    std::optional<std::string> barrier;  // key
    std::int64_t needed = 0;             // barrier
  };
  [[nodiscard]] bool exists(const std::string& key) const;
  // False: the store would be full.
  bool put(const std::string& key, std::string value);
  [[nodiscard]] std::vector<Client> listed(const std::string& key) const;
  void unlist(const std::string& key, Client client);
  bool fulfil(const std::string& key, Client client, std::vector<Answer>& answers);
  void key_appeared(const std::string& key, std::vector<Answer>& answers);
  void item_queued(const std::string& key, std::vector<Answer>& answers);
  void stop_waiting(Client client, std::vector<Answer>& answers);
  Outcome add(Client client, const std::string& key, std::int64_t difference);
  Outcome enter_barrier(Client client, const std::string& key, std::int64_t needed);
  Outcome wait(Client client, const std::vector<std::string>& keys);

  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;
  std::map<Client, Waiter> waiters_;
  std::map<std::string, std::vector<Client>> waiting_for_;  // key -> clients, in the order they came
  const std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;
};

}  // namespace closeranks::agent

#include "agent/store.h"

#include <algorithm>
#include <charconv>

namespace closeranks::agent {
namespace {

Status broken(const std::string& why) { return {Fault::refused, Move::fix_call, why}; }

Status full(const std::string& key) { return broken("the store is full: '" + key + "' is not set"); }

std::optional<std::int64_t> as_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool Store::exists(const std::string& key) const {
  if (values_.contains(key)) return true;
  const auto queue = queues_.find(key);
  return queue != queues_.end() && !queue->second.empty();
}

bool Store::put(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const std::uint64_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const std::uint64_t after = bytes_ - before + key.size() + value.size();
  if (after > max_bytes_) return false;
  bytes_ = after;
  values_[key] = std::move(value);
  return true;
}

void Store::stop_waiting(Client client, std::vector<Answer>& answers) {
  forget(client);
  answers.push_back({client, std::string(1, answer_stop_waiting)});
}

std::vector<Store::Client> Store::listed(const std::string& key) const {
  const auto found = waiting_for_.find(key);
  return found == waiting_for_.end() ? std::vector<Client>() : found->second;
}

void Store::unlist(const std::string& key, Client client) {
  const auto found = waiting_for_.find(key);
  if (found == waiting_for_.end()) return;
  std::erase(found->second, client);
  if (found->second.empty()) waiting_for_.erase(found);
}

// True: the client was waiting for the key (not in a barrier of that name).
bool Store::fulfil(const std::string& key, Client client, std::vector<Answer>& answers) {
  Waiter& waiter = waiters_.at(client);
  if (waiter.barrier.has_value()) return false;
  waiter.missing.erase(key);
  unlist(key, client);
  if (waiter.missing.empty()) stop_waiting(client, answers);
  return true;
}

void Store::key_appeared(const std::string& key, std::vector<Answer>& answers) {
  for (const Client client : listed(key)) fulfil(key, client, answers);
}

// One item lets one waiter go on: it will pop it.
void Store::item_queued(const std::string& key, std::vector<Answer>& answers) {
  for (const Client client : listed(key)) {
    if (fulfil(key, client, answers)) return;
  }
}

Store::Outcome Store::add(Client client, const std::string& key, std::int64_t difference) {
  Outcome outcome;
  std::int64_t sum = difference;
  if (const auto found = values_.find(key); found != values_.end()) {
    const auto before = as_number(found->second);
    if (!before.has_value() || __builtin_add_overflow(*before, difference, &sum)) {
      outcome.refusal = broken("add to '" + key + "', whose value is no number that it could be added to");
      return outcome;
    }
  }
  if (!put(key, std::to_string(sum))) {
    outcome.refusal = full(key);
    return outcome;
  }
  outcome.answers.push_back({client, encode_number(sum)});
  key_appeared(key, outcome.answers);
  return outcome;
}

Store::Outcome Store::enter_barrier(Client client, const std::string& key, std::int64_t needed) {
  Outcome outcome = add(client, key, 1);
  if (!outcome.refusal.ok()) return outcome;
  outcome.answers.erase(outcome.answers.begin());  // a barrier's caller is not told the count
  const std::int64_t come = *as_number(values_.at(key));
  waiters_[client] = {{}, key, needed};
  waiting_for_[key].push_back(client);
  for (const Client other : listed(key)) {
    const Waiter& waiter = waiters_.at(other);
    if (waiter.barrier == key && come >= waiter.needed) stop_waiting(other, outcome.answers);
  }
  return outcome;
}

Store::Outcome Store::wait(Client client, const std::vector<std::string>& keys) {
  Outcome outcome;
  Waiter waiter;
  for (const std::string& key : keys) {
    if (!exists(key) && waiter.missing.insert(key).second) waiting_for_[key].push_back(client);
  }
  if (waiter.missing.empty()) {
    outcome.answers.push_back({client, std::string(1, answer_stop_waiting)});
  } else {
    waiters_[client] = std::move(waiter);
  }
  return outcome;
}

void Store::forget(Client client) {
  const auto found = waiters_.find(client);
  if (found == waiters_.end()) return;
  std::set<std::string> keys = found->second.missing;
  if (found->second.barrier.has_value()) keys.insert(*found->second.barrier);
  waiters_.erase(found);
  for (const std::string& key : keys) unlist(key, client);
}

Store::Outcome Store::handle(Client client, const Query& query) {
  Outcome outcome;
  const auto answer = [&](std::string bytes) { outcome.answers.push_back({client, std::move(bytes)}); };
  const auto store = [&](const std::string& key, std::string value) {
    if (!put(key, std::move(value))) {
      outcome.refusal = full(key);
      return false;
    }
    key_appeared(key, outcome.answers);
    return true;
  };
  // A client that waits has nothing else to say but that it gives up.
  if (waiters_.contains(client) && query.type != QueryType::cancel_wait) {
    outcome.refusal = broken(std::string(name_of(query.type)) + " while it waits");
    return outcome;
  }
  switch (query.type) {
    case QueryType::validate:
      break;
    case QueryType::ping:
      answer(encode_nonce(static_cast<std::uint32_t>(query.number)));
      break;
    case QueryType::set:
      store(query.keys[0], query.values[0]);
      break;
    case QueryType::append: {
      const auto found = values_.find(query.keys[0]);
      std::string value = found == values_.end() ? query.values[0] : found->second + query.values[0];
      store(query.keys[0], std::move(value));
      break;
    }
    case QueryType::compare_set: {
      const auto found = values_.find(query.keys[0]);
      const bool fits = found == values_.end() ? query.values[0].empty() : found->second == query.values[0];
      if (fits) {
        if (store(query.keys[0], query.values[1])) answer(encode_text(query.values[1]));
      } else {
        // As torch: a missing key is answered with what was expected of it.
        answer(encode_text(found == values_.end() ? query.values[0] : found->second));
      }
      break;
    }
    case QueryType::get:
    case QueryType::multi_get:
      for (const std::string& key : query.keys) {
        const auto found = values_.find(key);
        answer(encode_text(found == values_.end() ? "" : found->second));
      }
      break;
    case QueryType::multi_set:
      for (std::size_t at = 0; at < query.keys.size(); ++at) {
        if (!store(query.keys[at], query.values[at])) break;
      }
      break;
    case QueryType::add:
      return add(client, query.keys[0], query.number);
    case QueryType::check: {
      const bool ready =
          std::all_of(query.keys.begin(), query.keys.end(), [&](const auto& key) { return exists(key); });
      answer(std::string(1, ready ? answer_ready : answer_not_ready));
      break;
    }
    case QueryType::wait:
      return wait(client, query.keys);
    case QueryType::cancel_wait:
      // Also when the wait is over already: the client counts on this answer (and drops the other one).
      forget(client);
      answer(std::string(1, answer_wait_canceled));
      break;
    case QueryType::get_num_keys:
      answer(encode_number(static_cast<std::int64_t>(values_.size())));
      break;
    case QueryType::delete_key: {
      const auto found = values_.find(query.keys[0]);
      std::int64_t deleted = 0;
      if (found != values_.end()) {
        bytes_ -= found->first.size() + found->second.size();
        values_.erase(found);
        deleted = 1;
      }
      answer(encode_number(deleted));
      break;
    }
    case QueryType::queue_push: {
      if (bytes_ + query.values[0].size() > max_bytes_) {
        outcome.refusal = full(query.keys[0]);
        break;
      }
      bytes_ += query.values[0].size();
      queues_[query.keys[0]].push_back(query.values[0]);
      item_queued(query.keys[0], outcome.answers);
      break;
    }
    case QueryType::queue_pop: {
      const auto queue = queues_.find(query.keys[0]);
      if (queue == queues_.end()) {
        answer(encode_number(0));
        break;
      }
      answer(encode_number(1) + encode_text(queue->second.front()));
      bytes_ -= queue->second.front().size();
      queue->second.pop_front();
      if (queue->second.empty()) queues_.erase(queue);
      break;
    }
    case QueryType::queue_len: {
      const auto queue = queues_.find(query.keys[0]);
      answer(encode_number(queue == queues_.end() ? 0 : static_cast<std::int64_t>(queue->second.size())));
      break;
    }
    case QueryType::list_keys: {
      std::string bytes = encode_number(static_cast<std::int64_t>(values_.size()));
      for (const auto& [key, value] : values_) bytes += encode_text(key);
      answer(std::move(bytes));
      break;
    }
    case QueryType::barrier:
      return enter_barrier(client, query.keys[0], query.number);
  }
  return outcome;
}

}  // namespace closeranks::agent

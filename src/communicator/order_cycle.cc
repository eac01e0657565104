#include "communicator/order_cycle.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

namespace closeranks::communicator {

using transport::WaitKey;
using transport::WaitRecord;

namespace {

// Threads of a circle that its sentence names.
constexpr std::size_t spelled_out = 4;

using Keys = std::set<WaitKey>;

// The threads named of `worker`, if all of them are in `stuck`; else none.
std::vector<WaitKey> stuck_threads(const WaitRecord& record, WorkerId worker, const Keys& stuck) {
  std::vector<WaitKey> threads;
  for (const WaitKey& key : record.awaited) {
    if (key.worker != worker) continue;
    if (!stuck.contains(key)) return {};
    threads.push_back(key);
  }
  return threads;
}

// The waits that have to end first, in groups of which each alone keeps `record` waiting; none: it can end.
std::vector<std::vector<WaitKey>> reasons(const WaitRecord& record, const Keys& stuck) {
  std::vector<std::vector<WaitKey>> found;
  if (record.any) {
    const bool all = std::all_of(record.awaited.begin(), record.awaited.end(),
                                 [&stuck](const WaitKey& key) { return stuck.contains(key); });
    if (all && !record.awaited.empty()) found.push_back(record.awaited);
    return found;
  }
  std::set<WorkerId> workers;
  for (const WaitKey& key : record.awaited) {
    if (!workers.insert(key.worker).second) continue;
    std::vector<WaitKey> threads = stuck_threads(record, key.worker, stuck);
    if (!threads.empty()) found.push_back(std::move(threads));
  }
  return found;
}

// All waits that cannot end, whatever the threads outside do: what is left when those that can are taken away, and
// those that can end then, and so on.
Keys stuck_in(const Waits& waits) {
  Keys stuck;
  std::map<WaitKey, std::vector<WaitKey>> waited_by;
  std::deque<WaitKey> doubtful;
  for (const auto& [key, record] : waits) {
    stuck.insert(key);
    doubtful.push_back(key);
    for (const WaitKey& awaited : record.awaited) waited_by[awaited].push_back(key);
  }
  while (!doubtful.empty()) {
    const WaitKey key = doubtful.front();
    doubtful.pop_front();
    if (!stuck.contains(key) || !reasons(waits.at(key), stuck).empty()) continue;
    stuck.erase(key);
    for (const WaitKey& waiting : waited_by[key]) doubtful.push_back(waiting);
  }
  return stuck;
}

// The shortest way from `self` back to it; empty: there is none.
std::vector<WaitKey> shortest_circle(const Waits& waits, const Keys& stuck, const WaitKey& self) {
  std::map<WaitKey, WaitKey> came_from;
  std::deque<WaitKey> open{self};
  while (!open.empty()) {
    const WaitKey at = open.front();
    open.pop_front();
    for (const std::vector<WaitKey>& reason : reasons(waits.at(at), stuck)) {
      for (const WaitKey& next : reason) {
        if (next == self) {
          std::vector<WaitKey> circle;
          for (WaitKey back = at; back != self; back = came_from.at(back)) circle.push_back(back);
          circle.push_back(self);
          std::reverse(circle.begin(), circle.end());
          return circle;
        }
        if (came_from.try_emplace(next, at).second) open.push_back(next);
      }
    }
  }
  return {};
}

// The circle, and for each of its waits one reason why it cannot end, and for each of those, and so on.
std::vector<WaitKey> closure(const Waits& waits, const Keys& stuck, const std::vector<WaitKey>& circle) {
  Keys needed(circle.begin(), circle.end());
  std::deque<WaitKey> open(circle.begin(), circle.end());
  const auto need = [&](const std::vector<WaitKey>& keys) {
    for (const WaitKey& key : keys) {
      if (needed.insert(key).second) open.push_back(key);
    }
  };
  for (std::size_t i = 0; i < circle.size(); ++i) {
    const WaitKey& next = circle[(i + 1) % circle.size()];
    for (const std::vector<WaitKey>& reason : reasons(waits.at(circle[i]), stuck)) {
      if (std::find(reason.begin(), reason.end(), next) == reason.end()) continue;
      need(reason);
      break;
    }
  }
  while (!open.empty()) {
    const WaitKey key = open.front();
    open.pop_front();
    // What is needed already is enough, for the circle's own waits at least.
    if (!reasons(waits.at(key), needed).empty()) continue;
    need(reasons(waits.at(key), stuck).front());
  }
  return {needed.begin(), needed.end()};
}

}  // namespace

std::optional<OrderCycle> find_cycle(const Waits& waits, const WaitKey& self) {
  const Keys stuck = stuck_in(waits);
  if (!stuck.contains(self)) return std::nullopt;
  OrderCycle cycle;
  cycle.circle = shortest_circle(waits, stuck, self);
  if (cycle.circle.empty()) return std::nullopt;
  cycle.stuck = closure(waits, stuck, cycle.circle);
  return cycle;
}

bool still_there(const OrderCycle& cycle, const Waits& waits) {
  const Keys stuck(cycle.stuck.begin(), cycle.stuck.end());
  const bool all = std::all_of(stuck.begin(), stuck.end(), [&](const WaitKey& key) {
    const auto found = waits.find(key);
    return found != waits.end() && !reasons(found->second, stuck).empty();
  });
  if (!all) return false;
  for (std::size_t i = 0; i < cycle.circle.size(); ++i) {
    const std::vector<WaitKey>& awaited = waits.at(cycle.circle[i]).awaited;
    const WaitKey& next = cycle.circle[(i + 1) % cycle.circle.size()];
    if (std::find(awaited.begin(), awaited.end(), next) == awaited.end()) return false;
  }
  return true;
}

std::optional<OrderCycle> CycleWatch::look(const Waits& waits, const WaitKey& self, Time now) {
  if (!seen_ || !still_there(*seen_, waits)) {
    seen_ = find_cycle(waits, self);
    since_ = now;
  }
  return seen_ && now - since_ >= cycle_lasts ? seen_ : std::nullopt;
}

std::vector<WaitKey> from_the_lowest(const std::vector<WaitKey>& circle) {
  std::vector<WaitKey> turned = circle;
  std::rotate(turned.begin(), std::min_element(turned.begin(), turned.end()), turned.end());
  return turned;
}

std::string describe_circle(const std::vector<CircleMember>& circle) {
  std::string text;
  const std::size_t named = std::min(circle.size(), spelled_out);
  for (std::size_t i = 0; i < named; ++i) {
    text += i == 0 ? circle[0].name + " waits in " : ", which waits in ";
    text += circle[i].call + " for " + circle[(i + 1) % circle.size()].name;
  }
  if (named < circle.size()) {
    text += ", and so on through " + std::to_string(circle.size() - named) + " more back to " + circle[0].name;
  }
  return text;
}

}  // namespace closeranks::communicator

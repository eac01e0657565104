#include "communicator/group_key.h"

#include <map>
#include <mutex>

namespace closeranks::communicator {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<GroupKey, std::uint32_t> made;
};

Counts& counts() {
  static Counts of_the_process;
  return of_the_process;
}

}  // namespace

GroupKey group_key(std::string_view name, const std::vector<Slot>& members, std::uint32_t made_before) {
  // FNV-1a, 64 bits. Groups of one job only need to differ from each other.
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](std::uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  const auto mix_word = [&mix](std::uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) mix(static_cast<std::uint8_t>(word >> shift));
  };
  for (const char letter : name) mix(static_cast<std::uint8_t>(letter));
  mix(0);
  for (const Slot slot : members) mix_word(slot.value());
  mix_word(made_before);
  return GroupKey{hash};
}

std::uint32_t groups_made(GroupKey family) {
  const std::lock_guard lock(counts().mutex);
  const auto found = counts().made.find(family);
  return found == counts().made.end() ? 0 : found->second;
}

void count_group(GroupKey family) {
  const std::lock_guard lock(counts().mutex);
  ++counts().made[family];
}

}  // namespace closeranks::communicator

#include "communicator/group_key.h"

namespace closeranks::communicator {

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

}  // namespace closeranks::communicator

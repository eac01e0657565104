#include "base/slot_names.h"

#include <algorithm>

namespace closeranks {

std::string name_slots(std::vector<Slot> slots) {
  std::sort(slots.begin(), slots.end());
  std::string text = slots.size() == 1 ? "slot " : "slots ";
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (at > 0) text += at + 1 == slots.size() ? " and " : ", ";
    text += std::to_string(slots[at].value());
  }
  return text;
}

}  // namespace closeranks

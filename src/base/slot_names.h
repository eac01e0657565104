// Slots in sentences.
#pragma once

#include <string>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks {

// "slot 2", "slots 0 and 3", "slots 0, 1 and 3": ascending. Precondition: not empty.
std::string name_slots(std::vector<Slot> slots);

}  // namespace closeranks

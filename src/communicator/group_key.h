// The name of a group that members agree on without talking: a hash of its name and its members' slots.
#pragma once

#include <string_view>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks::communicator {

GroupKey group_key(std::string_view name, const std::vector<Slot>& members);

}  // namespace closeranks::communicator

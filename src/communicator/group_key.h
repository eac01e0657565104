// The name of a group that members agree on without talking: a hash of its name, its members' slots, and how many
// groups of this name and these members the process has made before. Without the count, a member that makes a group
// again (destroy_process_group, init_process_group) could meet the old segment of one that has not closed it yet.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks::communicator {

GroupKey group_key(std::string_view name, const std::vector<Slot>& members, std::uint32_t made_before);

}  // namespace closeranks::communicator

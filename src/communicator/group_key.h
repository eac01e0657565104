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

// How many groups of this family (key with made_before = 0) this process has made, and one more. Counted for the
// process and not for its engine: the others may still be at the engine before, and would be met at its old segments. A
// group that never came about does not count, so that it can be tried again. Any thread.
std::uint32_t groups_made(GroupKey family);
void count_group(GroupKey family);

}  // namespace closeranks::communicator

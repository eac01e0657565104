// What steps and actions are called in a transcript, and where a block lies in its regions.
#pragma once

#include <cstdint>
#include <string>

#include "algorithm/group_machine.h"
#include "closeranks/ids.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

std::string describe(const algorithm::Action& action);
std::string describe(const Step& step, ViewNumber view);

// Half blocks of a member's input (for scatter: of the root's).
std::uint32_t input_cells_of(const algorithm::EntryPlan& plan, std::uint32_t members);
// A block's place within its source's input and its destination's output, in blocks.
std::uint32_t input_block(const algorithm::EntryPlan& plan, std::uint32_t block);
std::uint32_t output_block(const algorithm::EntryPlan& plan, std::uint32_t block);

}  // namespace closeranks::simulator

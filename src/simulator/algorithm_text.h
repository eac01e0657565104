// What steps and actions are called in a transcript.
#pragma once

#include <cstdint>
#include <string>

#include "algorithm/group_machine.h"
#include "closeranks/ids.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

std::string describe(const algorithm::Action& action);
std::string describe(const Step& step, ViewNumber view);

}  // namespace closeranks::simulator

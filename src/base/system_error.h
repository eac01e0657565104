// What the operating system says of a call that failed.
#pragma once

#include <string_view>

#include "closeranks/status.h"

namespace closeranks {

// A Status of Fault::system with errno's text: "<what>: <text>".
Status system_error(std::string_view what, int error, Move move = Move::give_up);

}  // namespace closeranks

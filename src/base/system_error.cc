#include "base/system_error.h"

#include <string>
#include <system_error>

namespace closeranks {

Status system_error(std::string_view what, int error, Move move) {
  return {Fault::system, move, std::string(what) + ": " + std::system_category().message(error)};
}

}  // namespace closeranks

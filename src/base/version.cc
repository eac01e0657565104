#include "base/version.h"

namespace closeranks {

const char* const version = CLOSERANKS_VERSION;

}  // namespace closeranks

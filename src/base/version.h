// The version of this build, as the tree's CMakeLists.txt has it.
#pragma once

namespace closeranks {

extern const char* const version;

}  // namespace closeranks

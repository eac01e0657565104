// Texts out of a file that nobody vouches for.
#pragma once

#include <string>
#include <string_view>

namespace closeranks::recorder {

// `text` with every byte that is not sound UTF-8, and every control character but tab and line feed, as '?'.
std::string printable(std::string_view text);

}  // namespace closeranks::recorder

// A verdict as JSON, for programs: docs/trace.md has its keys.
#pragma once

#include <string>

#include "recorder/trace.h"
#include "trace/verdict.h"

namespace closeranks::trace {

// {"verdict": {...}, "workers": [...], "remarks": [...]} on one line.
std::string to_json(const Verdict& verdict, const recorder::JobTrace& job);

}  // namespace closeranks::trace

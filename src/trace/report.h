// A verdict and what led to it, for a terminal.
#pragma once

#include <cstddef>
#include <string>

#include "recorder/trace.h"
#include "trace/verdict.h"

namespace closeranks::trace {

struct ReportStyle {
  std::size_t width = 100;  // columns; at least 40
  bool colours = false;
};

// The verdict, its evidence, and a table for each group of the ops around the end: one column a slot.
std::string report(const Verdict& verdict, const recorder::JobTrace& job, const ReportStyle& style);

}  // namespace closeranks::trace

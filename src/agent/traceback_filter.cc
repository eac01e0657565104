#include "agent/traceback_filter.h"

#include <algorithm>
#include <cctype>

#include "base/slot_names.h"

namespace closeranks::agent {
namespace {

// torch prefixes the lines of an uncaught exception with "[rank2]: "; python itself does not.
std::string_view without_rank(std::string_view line) {
  if (!line.starts_with("[rank")) return line;
  std::size_t at = 5;
  while (at < line.size() && std::isdigit(static_cast<unsigned char>(line[at])) != 0) ++at;
  const std::string_view rest = line.substr(at);
  if (at == 5 || !rest.starts_with("]:")) return line;
  return rest.substr(rest.starts_with("]: ") ? 3 : 2);
}

// Addresses differ between processes that fail alike.
std::string without_addresses(std::string_view line) {
  std::string result;
  for (std::size_t at = 0; at < line.size(); ++at) {
    result.push_back(line[at]);
    if (line.substr(at).starts_with("0x")) {
      result.push_back('x');
      at += 1;
      while (at + 1 < line.size() && std::isxdigit(static_cast<unsigned char>(line[at + 1])) != 0) ++at;
    }
  }
  return result;
}

// What python itself says of a script or module that it does not find: one line that is the whole error.
bool is_python_refusal(std::string_view line) {
  return line.find("python") != std::string_view::npos &&
         (line.find(": can't open file '") != std::string_view::npos ||
          line.find(": No module named ") != std::string_view::npos ||
          line.find(": can't find '__main__' module") != std::string_view::npos);
}

bool begins_block(std::string_view line) {
  const std::string_view text = without_rank(line);
  if (text.starts_with("Traceback (most recent call last):")) return true;
  if (text.find("Exception Group Traceback (most recent call last):") != std::string_view::npos) return true;
  // A syntax error in the script itself has no header.
  return text.starts_with("  File \"") && text.find("\", line ") != std::string_view::npos;
}

// Frames and source lines are indented; the line of the exception is not.
bool is_error_line(std::string_view line) {
  const std::string_view text = without_rank(line);
  return !text.empty() && text.front() != ' ' && text.front() != '\t' && !begins_block(line);
}

bool goes_on_after_error(std::string_view line) {
  const std::string_view text = without_rank(line);
  return text.starts_with("During handling of the above exception") ||
         text.starts_with("The above exception was the direct cause") || begins_block(line);
}

std::string key_of(const std::vector<std::string>& lines) {
  std::string key;
  for (const std::string& line : lines) key += without_addresses(without_rank(line)) + '\n';
  while (key.ends_with("\n\n")) key.pop_back();
  return key;
}

}  // namespace

TracebackFilter::Lines TracebackFilter::line(Slot slot, int stream, std::string_view text, Time now) {
  Lines shown = tick(now);
  const auto found = open_.find({slot, stream});
  if (found == open_.end()) {
    if (begins_block(text)) {
      open_[{slot, stream}] = Block{{std::string(text)}, false, now, std::nullopt};
    } else if (is_python_refusal(text)) {
      open_[{slot, stream}] = Block{{std::string(text)}, true, now, now};
    } else {
      shown.push_back({slot, stream, std::string(text)});
    }
    return shown;
  }
  Block& block = found->second;
  block.lines.emplace_back(text);
  block.last = now;
  if (block.error_seen && goes_on_after_error(text)) {
    // A chained exception: its own error line is still to come.
    block.error_seen = !without_rank(text).starts_with("Traceback");
    block.error_at.reset();
  } else if (!block.error_seen && is_error_line(text)) {
    block.error_seen = true;
    block.error_at = now;
  }
  if (block.lines.size() >= most_lines) {
    Block whole = std::move(block);
    open_.erase(found);
    close(slot, stream, std::move(whole), now, shown);
  }
  return shown;
}

TracebackFilter::Lines TracebackFilter::ended(Slot slot, int stream, Time now) {
  Lines shown = tick(now);
  if (const auto found = open_.find({slot, stream}); found != open_.end()) {
    Block whole = std::move(found->second);
    open_.erase(found);
    close(slot, stream, std::move(whole), now, shown);
  }
  return shown;
}

void TracebackFilter::close(Slot slot, int stream, Block block, Time now, Lines& shown) {
  const std::string key = key_of(block.lines);
  const auto same =
      std::find_if(errors_.begin(), errors_.end(), [&](const Remembered& error) { return error.key == key; });
  if (same != errors_.end()) {
    const bool again =
        same->first == slot || std::find(same->others.begin(), same->others.end(), slot) != same->others.end();
    if (!again) {
      if (same->shown && same->others_told == same->others.size()) same->due = now + gather;
      same->others.push_back(slot);
      return;
    }
    // The same worker once more: it prints this time and again, and each time is shown.
    show(*same, shown);
    errors_.erase(same);
  }
  if (errors_.size() == most_remembered) {
    show(errors_.front(), shown);
    errors_.erase(errors_.begin());
  }
  errors_.push_back({key, slot, stream, std::move(block.lines), {}, 0, false, now + gather});
}

// Shows what has not been shown or told of `error` yet.
void TracebackFilter::show(Remembered& error, Lines& shown) {
  if (!error.shown) {
    for (std::string& text : error.lines) shown.push_back({error.first, error.stream, std::move(text)});
    error.lines.clear();
    error.shown = true;
  }
  if (error.others_told < error.others.size()) {
    const std::vector<Slot> untold(error.others.begin() + static_cast<std::ptrdiff_t>(error.others_told),
                                   error.others.end());
    error.others_told = error.others.size();
    shown.push_back({std::nullopt, 2,
                     "the same error as on slot " + std::to_string(error.first.value()) + " on " + name_slots(untold)});
  }
}

void TracebackFilter::flush_due(Time now, bool all, Lines& shown) {
  for (auto block = open_.begin(); block != open_.end();) {
    const bool still = now - block->second.last >= (block->second.error_seen ? quiet : patience);
    const bool long_enough = block->second.error_at.has_value() && now - *block->second.error_at >= longest;
    if (!all && !still && !long_enough) {
      ++block;
      continue;
    }
    const auto [slot, stream] = block->first;
    Block whole = std::move(block->second);
    block = open_.erase(block);
    close(slot, stream, std::move(whole), now, shown);
  }
  for (Remembered& error : errors_) {
    const bool pending = !error.shown || error.others_told < error.others.size();
    if (pending && (all || now >= error.due)) show(error, shown);
  }
}

TracebackFilter::Lines TracebackFilter::tick(Time now) {
  Lines shown;
  flush_due(now, false, shown);
  return shown;
}

TracebackFilter::Lines TracebackFilter::finish(Time now) {
  Lines shown;
  flush_due(now, true, shown);
  return shown;
}

std::optional<TracebackFilter::Time> TracebackFilter::next_tick() const {
  std::optional<Time> next;
  const auto consider = [&next](Time time) {
    if (!next.has_value() || time < *next) next = time;
  };
  for (const auto& [where, block] : open_) {
    consider(block.last + (block.error_seen ? quiet : patience));
    if (block.error_at.has_value()) consider(*block.error_at + longest);
  }
  for (const Remembered& error : errors_) {
    if (!error.shown || error.others_told < error.others.size()) consider(error.due);
  }
  return next;
}

}  // namespace closeranks::agent

#include <glob.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "agent/command_line.h"

namespace closeranks::agent {
namespace {

constexpr std::uint32_t max_workers = 1024;

Status wrong(const std::string& sentence) { return {Fault::invalid_argument, Move::fix_call, sentence}; }

std::uint32_t usable_cpus() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<std::uint32_t>(CPU_COUNT(&set));
  return 1;
}

// NVIDIA devices of this host, restricted by CUDA_VISIBLE_DEVICES. No driver library is asked: it may not be there.
std::uint32_t visible_gpus() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string text = visible;
    if (text.empty() || text == "-1") return 0;
    return static_cast<std::uint32_t>(1 + std::count(text.begin(), text.end(), ','));
  }
  glob_t found{};
  const bool ok = ::glob("/dev/nvidia[0-9]*", 0, nullptr, &found) == 0;
  const auto count = ok ? static_cast<std::uint32_t>(found.gl_pathc) : 0;
  ::globfree(&found);
  return count;
}

}  // namespace

std::optional<std::uint32_t> whole_number(const std::string& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool StreamChoice::has(Slot slot, int stream) const {
  const bool named = slot.value() < by_slot.size() && (by_slot[slot.value()] & 0x80) != 0;
  return ((named ? by_slot[slot.value()] : all) & stream) != 0;
}

Result<std::uint32_t> worker_count(const std::string& text) {
  if (text == "cpu") return usable_cpus();
  const std::uint32_t gpus = text == "gpu" || text == "auto" ? visible_gpus() : 0;
  if (text == "gpu" && gpus == 0)
    return wrong("--nproc-per-node is gpu, but no GPU is visible here; say cpu or a number");
  if (text == "gpu") return gpus;
  if (text == "auto") return gpus > 0 ? gpus : usable_cpus();
  const auto value = whole_number(text);
  if (!value.has_value() || *value < 1 || *value > max_workers) {
    return wrong("--nproc-per-node takes auto, cpu, gpu or a number from 1 to " + std::to_string(max_workers) +
                 ", not '" + text + "'");
  }
  return *value;
}

Result<StreamChoice> parse_streams(const std::string& flag, const std::string& text) {
  const Status bad =
      wrong(flag + " takes 0 to 3 for all workers, or pairs such as 0:3,1:2 (1 stdout, 2 stderr), not '" + text + "'");
  StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    const auto bits = whole_number(text);
    if (!bits.has_value() || *bits > 3) return bad;
    choice.all = static_cast<std::uint8_t>(*bits);
    return choice;
  }
  std::stringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t colon = item.find(':');
    if (colon == std::string::npos) return bad;
    const auto slot = whole_number(item.substr(0, colon));
    const auto bits = whole_number(item.substr(colon + 1));
    if (!slot.has_value() || *slot >= max_workers || !bits.has_value() || *bits > 3) return bad;
    if (choice.by_slot.size() <= *slot) choice.by_slot.resize(*slot + 1, 0);
    choice.by_slot[*slot] = static_cast<std::uint8_t>(*bits | 0x80);
  }
  return choice;
}

}  // namespace closeranks::agent

// Tells of refused connections without letting a stranger fill the log: a bounded number of lines per interval, then
// one line with the number of those left out. Control thread only; takes the time as an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace closeranks::coordinator {

class Refusals {
 public:
  using Time = std::chrono::microseconds;
  // A person sees the first ones whole; a scan of all day costs a line every ten seconds.
  static constexpr std::uint32_t lines_per_interval = 10;
  static constexpr Time interval = std::chrono::seconds(10);

  // True when this refusal may be told; otherwise it is counted.
  bool tell(Time now);
  // After an interval in which some were left out: how many, once.
  std::optional<std::uint64_t> left_out(Time now);

 private:
  void roll(Time now);
  std::optional<Time> began_;
  std::uint32_t told_ = 0;
  std::uint64_t untold_ = 0;
  std::uint64_t due_ = 0;
};

}  // namespace closeranks::coordinator

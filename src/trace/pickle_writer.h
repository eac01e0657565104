// Writes plain data as a Python pickle of protocol 2, in the order of the calls: dict(), then key and value and key and
// value, then end().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace closeranks::trace {

class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02", 2) {}
  void none() { bytes_ += 'N'; }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void text(std::string_view value);
  void dict() { bytes_ += "}("; }
  void list() { bytes_ += "]("; }
  void end_dict() { bytes_ += 'u'; }
  void end_list() { bytes_ += 'e'; }
  void pair_of_texts(std::string_view first, std::string_view second);  // a tuple
  [[nodiscard]] std::string finish() const { return bytes_ + '.'; }

 private:
  std::string bytes_;
};

}  // namespace closeranks::trace

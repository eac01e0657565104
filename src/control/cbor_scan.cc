#include "control/cbor_scan.h"

#include <array>
#include <cstdint>
#include <string>

namespace closeranks::control {
namespace {

// RFC 8949, section 3: the major type is the upper three bits of an item's first byte.
enum class Major : std::uint8_t { unsigned_integer, negative_integer, bytes, text, array, map, tag, simple };

struct Head {
  Major major = Major::simple;
  std::uint64_t argument = 0;
};

// A container that is being walked: how many items it still has to come, and whether they are keys and values by turns.
struct Open {
  std::uint64_t items = 0;
  bool map = false;
};

class Scan {
 public:
  explicit Scan(std::span<const std::byte> body) : body_(body) {}

  Status run() {
    // The body as a whole is a container of one item.
    open_[0] = Open{1, false};
    while (true) {
      while (open_[depth_].items == 0) {
        if (depth_ == 0) return end();
        --depth_;
      }
      Open& parent = open_[depth_];
      const bool is_key = parent.map && parent.items % 2 == 0;
      --parent.items;
      if (Status status = item(is_key); !status.ok()) return status;
    }
  }

 private:
  Status item(bool is_key) {
    if (++items_ > cbor_item_limit) return refuse("more than " + std::to_string(cbor_item_limit) + " items");
    Head head;
    if (Status status = read_head(head); !status.ok()) return status;
    if (is_key && head.major != Major::text) return refuse("a map key that is no text");
    switch (head.major) {
      case Major::unsigned_integer:
        return {};
      case Major::negative_integer:
        // -1 - argument has to fit a signed 64-bit number.
        return head.argument > static_cast<std::uint64_t>(INT64_MAX) ? refuse("an integer out of range") : Status{};
      case Major::text:
        if (is_key && head.argument > cbor_key_bytes) return refuse("a map key that is too long");
        if (head.argument > rest()) return refuse("a text longer than the body");
        at_ += static_cast<std::size_t>(head.argument);
        return {};
      case Major::array:
        return open(head.argument, false);
      case Major::map:
        if (head.argument > rest()) return refuse("a map larger than the body");
        return open(2 * head.argument, true);
      case Major::simple:
        return {};
      case Major::bytes:
        return refuse("a byte string, which no message has");
      case Major::tag:
        return refuse("a tag, which no message has");
    }
    return refuse("an unknown item");
  }

  Status open(std::uint64_t items, bool map) {
    // Every item takes a byte at least, so a count above the rest is a lie.
    if (items > rest()) return refuse("a list or map larger than the body");
    if (depth_ + 1 >= open_.size()) {
      return refuse("lists and maps nested deeper than " + std::to_string(cbor_depth_limit));
    }
    open_[++depth_] = Open{items, map};
    return {};
  }

  Status read_head(Head& head) {
    if (rest() == 0) return refuse("it ends in the middle of an item");
    const auto first = std::to_integer<std::uint8_t>(body_[at_++]);
    const std::uint8_t info = first & 0x1f;
    head.major = static_cast<Major>(first >> 5);
    if (head.major == Major::simple) {
      // false, true, null; no floating point, no other simple value, no "break".
      return info >= 20 && info <= 22 ? Status{}
                                      : refuse("a floating-point or other simple value, which no message has");
    }
    if (info < 24) {
      head.argument = info;
      return {};
    }
    if (info > 27) return refuse("an item of indefinite length, which no message has");
    const std::size_t width = std::size_t{1} << (info - 24);
    if (width > rest()) return refuse("it ends in the middle of an item");
    for (std::size_t i = 0; i < width; ++i) {
      head.argument = head.argument << 8 | std::to_integer<std::uint64_t>(body_[at_++]);
    }
    return {};
  }

  Status end() const { return rest() == 0 ? Status{} : refuse("bytes after its end"); }

  [[nodiscard]] std::size_t rest() const { return body_.size() - at_; }

  Status refuse(const std::string& what) const {
    return Status(Fault::refused, Move::give_up, "CBOR body with " + what + " (byte " + std::to_string(at_) + ")");
  }

  std::span<const std::byte> body_;
  std::size_t at_ = 0;
  std::size_t items_ = 0;
  std::size_t depth_ = 0;
  std::array<Open, cbor_depth_limit + 1> open_{};
};

}  // namespace

Status scan_cbor(std::span<const std::byte> body) { return Scan(body).run(); }

}  // namespace closeranks::control

#include "trace/pickle_reader.h"

#include <bit>
#include <cstring>
#include <unordered_map>

namespace closeranks::trace {
namespace {

Status refused(const std::string& sentence) { return {Fault::refused, Move::give_up, sentence}; }

// An integer of Python's may have any length; those of a recorder have 64 bits.
constexpr std::size_t longest_integer = 8;

}  // namespace

const Pickle::Node* Pickle::find(const Node& dict, std::string_view key) const {
  if (dict.type != Type::dict) return nullptr;
  for (std::size_t at = 0; at + 1 < dict.items.size(); at += 2) {
    const Node& name = nodes_.at(dict.items[at]);
    if (name.type == Type::text && name.text == key) return &nodes_.at(dict.items[at + 1]);
  }
  return nullptr;
}

// The stack machine that a pickle is a program for, without the instructions that run code. Each instruction pushes at
// most one node, so memory is bounded by the input.
class PickleMachine {
 public:
  explicit PickleMachine(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<Pickle> run() {
    while (failure_.empty()) {
      const auto code = static_cast<std::uint8_t>(number(1));
      if (!failure_.empty()) break;
      if (code == '.') {
        if (stack_.size() != 1 || !marks_.empty()) return refused("the pickle does not end with one value");
        pickle_.root_ = stack_.back();
        return std::move(pickle_);
      }
      step(code);
    }
    return refused(failure_);
  }

 private:
  using Type = Pickle::Type;
  using Index = Pickle::Index;

  void fail(const char* why) {
    if (failure_.empty()) failure_ = std::string("the pickle ") + why + " at byte " + std::to_string(position_);
  }

  std::uint64_t number(std::size_t width) {
    if (bytes_.size() - position_ < width) {
      fail("is cut");
      return 0;
    }
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + position_, width);
    position_ += width;
    return value;
  }

  std::string text(std::uint64_t length) {
    if (bytes_.size() - position_ < length) {
      fail("is cut");
      return "";
    }
    std::string found(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
    position_ += length;
    return found;
  }

  Index push(Pickle::Node node) {
    pickle_.nodes_.push_back(std::move(node));
    stack_.push_back(static_cast<Index>(pickle_.nodes_.size() - 1));
    return stack_.back();
  }
  void push_integer(std::int64_t value, Type type = Type::integer) { push({type, value, 0, {}, {}}); }
  void push_text(std::uint64_t length) {
    std::string found = text(length);
    push({Type::text, 0, 0, std::move(found), {}});
  }

  // The values above the last mark, taken off the stack.
  std::vector<Index> above_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) {
      fail("lacks a mark");
      return {};
    }
    std::vector<Index> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<Index> top(std::size_t count) {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) {
      fail("takes more than there is");
      return {};
    }
    std::vector<Index> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  void add(const std::vector<Index>& items, Type type) {
    if (!failure_.empty()) return;
    if (stack_.empty() || pickle_.nodes_[stack_.back()].type != type) return fail("adds to something else");
    if (type == Type::dict && items.size() % 2 != 0) return fail("has a key without a value");
    auto& to = pickle_.nodes_[stack_.back()].items;
    to.insert(to.end(), items.begin(), items.end());
  }
  void put(std::uint64_t place) {
    if (stack_.empty()) return fail("remembers nothing");
    memo_[place] = stack_.back();
  }
  void get(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) return fail("recalls what it did not remember");
    stack_.push_back(found->second);
  }
  void push_long() {
    const std::uint64_t width = number(1);
    if (width > longest_integer) return fail("has an integer of more than 64 bits");
    std::uint64_t value = number(width);
    if (width > 0 && width < 8 && (value >> (8 * width - 1)) != 0) value |= ~std::uint64_t{0} << (8 * width);
    push_integer(static_cast<std::int64_t>(value));
  }
  void push_real() {
    std::uint64_t bits = number(8);
    bits = __builtin_bswap64(bits);
    push({Type::real, 0, std::bit_cast<double>(bits), {}, {}});
  }

  void step(std::uint8_t code) {
    switch (code) {
      case 0x80: {  // PROTO
        if (number(1) > 5) fail("is of a later protocol than 5");
        return;
      }
      case 0x95:  // FRAME
        number(8);
        return;
      case '(':
        return marks_.push_back(stack_.size());
      case '}':
        push({Type::dict, 0, 0, {}, {}});
        return;
      case ']':
        push({Type::list, 0, 0, {}, {}});
        return;
      case ')':
        push({Type::tuple, 0, 0, {}, {}});
        return;
      case 't': {
        std::vector<Index> items = above_mark();
        push({Type::tuple, 0, 0, {}, std::move(items)});
        return;
      }
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<Index> items = top(code - 0x84U);
        push({Type::tuple, 0, 0, {}, std::move(items)});
        return;
      }
      case 'a':
        return add(top(1), Type::list);
      case 'e':
        return add(above_mark(), Type::list);
      case 's':
        return add(top(2), Type::dict);
      case 'u':
        return add(above_mark(), Type::dict);
      case 'q':
        return put(number(1));
      case 'r':
        return put(number(4));
      case 0x94:
        return put(memo_.size());
      case 'h':
        return get(number(1));
      case 'j':
        return get(number(4));
      case 'X':
        return push_text(number(4));
      case 0x8c:
      case 'U':
        return push_text(number(1));
      case 0x8d:
        return push_text(number(8));
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4)));
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1)));
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2)));
      case 0x8a:
        return push_long();
      case 'G':
        return push_real();
      case 'N':
        push({});
        return;
      case 0x88:
        return push_integer(1, Type::boolean);
      case 0x89:
        return push_integer(0, Type::boolean);
      default:
        // GLOBAL, REDUCE, BUILD and their like are here: they name code, and this runs none.
        fail("is more than plain data");
    }
  }

  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  std::string failure_;
  Pickle pickle_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Index> memo_;
};

Result<Pickle> read_pickle(std::span<const std::byte> bytes) { return PickleMachine(bytes).run(); }

}  // namespace closeranks::trace

#include "agent/store_protocol.h"

#include <array>
#include <utility>

namespace closeranks::agent {
namespace {

// Fields of each query: k key, v value, n number, x nonce, c count; and those repeated after a count.
struct Layout {
  const char* name;
  const char* fixed;
  const char* repeated;
};

constexpr std::array<Layout, query_types> layouts = {{
    {"validate", "x", ""},   {"set", "kv", ""},     {"compare_set", "kvv", ""}, {"get", "k", ""},
    {"add", "kn", ""},       {"check", "c", "k"},   {"wait", "c", "k"},         {"get_num_keys", "", ""},
    {"delete_key", "k", ""}, {"append", "kv", ""},  {"multi_get", "c", "k"},    {"multi_set", "c", "kv"},
    {"cancel_wait", "", ""}, {"ping", "x", ""},     {"queue_push", "kv", ""},   {"queue_pop", "k", ""},
    {"queue_len", "k", ""},  {"list_keys", "", ""}, {"barrier", "kn", ""},
}};

const Layout& layout_of(QueryType type) { return layouts[static_cast<std::size_t>(type)]; }

std::string little_endian(std::uint64_t value, int bytes) {
  std::string result;
  for (int at = 0; at < bytes; ++at) result.push_back(static_cast<char>(value >> (8 * at)));
  return result;
}

Status refuse(const std::string& why) {
  return {Fault::refused, Move::fix_call, "not a client of torch's TCPStore: " + why};
}

}  // namespace

std::string_view name_of(QueryType type) { return layout_of(type).name; }

void QueryDecoder::feed(std::string_view bytes) {
  // What was read is dropped when it is the larger part, so that each byte is moved a bounded number of times.
  if (at_ > buffer_.size() / 2) {
    buffer_.erase(0, at_);
    at_ = 0;
  }
  buffer_.append(bytes);
}

std::optional<std::uint64_t> QueryDecoder::read_number(std::size_t bytes) {
  if (buffer_.size() - at_ < bytes) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(buffer_[at_ + i])) << (8 * i);
  }
  at_ += bytes;
  return value;
}

bool QueryDecoder::begin_query() {
  const auto type = read_number(1);
  if (!type.has_value()) return false;
  if (*type >= query_types) {
    failure_ = refuse("query type " + std::to_string(*type) + " does not exist");
    return false;
  }
  query_ = Query{};
  query_.type = static_cast<QueryType>(*type);
  if (!validated_ && query_.type != QueryType::validate) {
    failure_ = refuse("the first query is not validate");
    return false;
  }
  query_bytes_ = 0;
  step_ = 0;
  repeats_left_ = 0;
  in_query_ = true;
  return true;
}

bool QueryDecoder::read_text(std::uint64_t limit, const char* what, std::vector<std::string>& into) {
  if (!text_bytes_.has_value()) {
    text_bytes_ = read_number(8);
    if (!text_bytes_.has_value()) return false;
    query_bytes_ += *text_bytes_ <= limit ? *text_bytes_ : 0;
    if (*text_bytes_ > limit || query_bytes_ > max_query_bytes) {
      failure_ = refuse(std::string("a ") + what + " of " + std::to_string(*text_bytes_) + " bytes in " +
                        std::string(name_of(query_.type)) + " is over the limit");
      return false;
    }
  }
  if (buffer_.size() - at_ < *text_bytes_) return false;
  into.push_back(buffer_.substr(at_, *text_bytes_));
  at_ += *text_bytes_;
  text_bytes_.reset();
  return true;
}

bool QueryDecoder::read_field(Field field) {
  if (field == Field::key) return read_text(max_key_bytes, "key", query_.keys);
  if (field == Field::value) return read_text(max_value_bytes, "value", query_.values);
  const auto value = read_number(field == Field::nonce ? 4 : 8);
  if (!value.has_value()) return false;
  if (field == Field::count) {
    if (*value > max_keys_per_query) {
      failure_ = refuse(std::to_string(*value) + " keys in one " + std::string(name_of(query_.type)));
      return false;
    }
    repeats_left_ = *value * std::string_view(layout_of(query_.type).repeated).size();
  } else {
    query_.number = static_cast<std::int64_t>(*value);
  }
  return true;
}

Result<std::optional<Query>> QueryDecoder::next() {
  const auto field_of = [](char letter) {
    switch (letter) {
      case 'k':
        return Field::key;
      case 'v':
        return Field::value;
      case 'x':
        return Field::nonce;
      case 'c':
        return Field::count;
      default:
        return Field::number;
    }
  };
  const auto incomplete = [this]() -> Result<std::optional<Query>> {
    if (!failure_.ok()) return failure_;
    return std::optional<Query>();
  };
  if (!failure_.ok()) return failure_;
  if (!in_query_ && !begin_query()) return incomplete();

  const std::string_view fixed = layout_of(query_.type).fixed;
  const std::string_view repeated = layout_of(query_.type).repeated;
  for (; step_ < fixed.size(); ++step_) {
    if (!read_field(field_of(fixed[step_]))) return incomplete();
  }
  for (; repeats_left_ > 0; --repeats_left_) {
    // Counted down from a multiple of the pattern's length.
    if (!read_field(field_of(repeated[(repeated.size() - repeats_left_ % repeated.size()) % repeated.size()]))) {
      return incomplete();
    }
  }
  in_query_ = false;
  if (query_.type == QueryType::validate) {
    if (query_.number != store_magic) {
      failure_ = refuse("its magic number is wrong");
      return failure_;
    }
    validated_ = true;
  }
  return std::optional<Query>(std::move(query_));
}

std::string encode_number(std::int64_t value) { return little_endian(static_cast<std::uint64_t>(value), 8); }
std::string encode_nonce(std::uint32_t value) { return little_endian(value, 4); }
std::string encode_text(std::string_view text) { return little_endian(text.size(), 8).append(text); }

}  // namespace closeranks::agent

#include "control/codec.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <variant>

#include "control/cbor_scan.h"
#include "control/message_fields.h"

namespace closeranks::control {
namespace {

using nlohmann::json;

template <class T>
struct IsIdentity : std::false_type {};
template <class Tag, class Representation>
struct IsIdentity<Identity<Tag, Representation>> : std::true_type {};

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

constexpr std::uint64_t highest_policy = 2;  // 0 fail, 1 repair, 2 exact

template <class T>
constexpr std::uint64_t maximum_of() {
  return std::is_same_v<T, Slot> ? slot_limit - 1 : std::numeric_limits<typename T::representation>::max();
}

// Fills one CBOR map. The first field that cannot be said makes the whole message fail.
class Writer {
 public:
  explicit Writer(json& object) : object_(object) { object_ = json::object(); }

  template <class T>
  void field(const char* key, const T& value) {
    object_[key] = write(key, value);
  }

  template <class T>
  void number(const char* key, const T& value, std::uint64_t maximum) {
    if (std::uint64_t{value} > maximum) fail(std::string(key) + " is above " + std::to_string(maximum));
    object_[key] = std::uint64_t{value};
  }

  void require(bool holds, const char* what) {
    if (!holds) fail(what);
  }

  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  void fail(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  template <class T>
  json write(const char* key, const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      return std::int64_t{value};
    } else if constexpr (std::is_same_v<T, std::string>) {
      return value.size() <= text_limit ? value : value.substr(0, text_limit);
    } else if constexpr (std::is_same_v<T, Policy>) {
      return static_cast<std::uint64_t>(value);
    } else if constexpr (std::is_same_v<T, ViewNumber>) {
      return json::array({std::uint64_t{value.term}, value.n});
    } else if constexpr (IsIdentity<T>::value) {
      if (value.value() > maximum_of<T>()) fail(std::string(key) + " is above " + std::to_string(maximum_of<T>()));
      return std::uint64_t{value.value()};
    } else if constexpr (IsVector<T>::value) {
      json list = json::array();
      for (const auto& element : value) list.push_back(write(key, element));
      return list;
    } else {
      json object;
      Writer inner(object);
      fields(inner, value);
      if (!inner.failure_.empty()) fail(std::string(key) + ": " + inner.failure_);
      return object;
    }
  }

  json& object_;
  std::string failure_;
};

// Reads one CBOR map. After the first failure nothing more is read.
class Reader {
 public:
  Reader(const json& object, std::string& failure) : object_(object), failure_(failure) {
    if (!object_.is_object()) fail("not a map");
  }

  template <class T>
  void field(const char* key, T& value) {
    if (const json* found = find(key)) read(key, *found, value);
  }

  template <class T>
  void number(const char* key, T& value, std::uint64_t maximum) {
    if (const json* found = find(key)) {
      std::uint64_t number = 0;
      read_unsigned(key, *found, maximum, number);
      value = static_cast<T>(number);
    }
  }

  void require(bool holds, const char* what) {
    if (failure_.empty() && !holds) fail(what);
  }

 private:
  void fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }

  const json* find(const char* key) {
    if (!failure_.empty()) return nullptr;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      fail("no \"" + std::string(key) + "\"");
      return nullptr;
    }
    return &*found;
  }

  void read_unsigned(const char* key, const json& given, std::uint64_t maximum, std::uint64_t& number) {
    if (!given.is_number_unsigned()) return fail("\"" + std::string(key) + "\" is no unsigned integer");
    number = given.get<std::uint64_t>();
    if (number > maximum) {
      number = 0;
      fail("\"" + std::string(key) + "\" is above " + std::to_string(maximum));
    }
  }

  template <class T>
  void read(const char* key, const json& given, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (!given.is_boolean()) return fail("\"" + std::string(key) + "\" is no boolean");
      value = given.get<bool>();
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      read_signed(key, given, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!given.is_string()) return fail("\"" + std::string(key) + "\" is no text");
      const auto& text = given.get_ref<const std::string&>();
      if (text.size() > text_limit) return fail("\"" + std::string(key) + "\" is too long");
      value = text;
    } else if constexpr (std::is_same_v<T, Policy>) {
      std::uint64_t number = 0;
      read_unsigned(key, given, highest_policy, number);
      value = static_cast<Policy>(number);
    } else if constexpr (std::is_same_v<T, ViewNumber>) {
      if (!given.is_array() || given.size() != 2) return fail("\"" + std::string(key) + "\" is no [term, number]");
      std::uint64_t term = 0;
      read_unsigned(key, given[0], std::numeric_limits<std::uint32_t>::max(), term);
      value.term = static_cast<std::uint32_t>(term);
      read_unsigned(key, given[1], std::numeric_limits<std::uint64_t>::max(), value.n);
    } else if constexpr (IsIdentity<T>::value) {
      std::uint64_t number = 0;
      read_unsigned(key, given, maximum_of<T>(), number);
      value = T(static_cast<typename T::representation>(number));
    } else if constexpr (IsVector<T>::value) {
      if (!given.is_array()) return fail("\"" + std::string(key) + "\" is no list");
      value.clear();
      for (const json& element : given) {
        if (!failure_.empty()) return;
        read(key, element, value.emplace_back());
      }
    } else {
      std::string failure;
      Reader inner(given, failure);
      fields(inner, value);
      if (!failure.empty()) fail("in \"" + std::string(key) + "\": " + failure);
    }
  }

  void read_signed(const char* key, const json& given, std::int32_t& value) {
    constexpr std::int64_t lowest = std::numeric_limits<std::int32_t>::min();
    constexpr std::int64_t highest = std::numeric_limits<std::int32_t>::max();
    if (given.is_number_unsigned()) {
      std::uint64_t number = 0;
      read_unsigned(key, given, static_cast<std::uint64_t>(highest), number);
      value = static_cast<std::int32_t>(number);
      return;
    }
    if (!given.is_number_integer()) return fail("\"" + std::string(key) + "\" is no integer");
    const auto number = given.get<std::int64_t>();
    if (number < lowest) return fail("\"" + std::string(key) + "\" is below " + std::to_string(lowest));
    value = static_cast<std::int32_t>(number);
  }

  const json& object_;
  std::string& failure_;
};

// The frame kind of each message, both ways.
template <class Message>
constexpr FrameKind kind_of() {
  using namespace membership;
  if constexpr (std::is_same_v<Message, Hello>) return FrameKind::hello;
  if constexpr (std::is_same_v<Message, Prepared>) return FrameKind::prepared;
  if constexpr (std::is_same_v<Message, Suspicion>) return FrameKind::suspicion;
  if constexpr (std::is_same_v<Message, OpRepaired>) return FrameKind::op_repaired;
  if constexpr (std::is_same_v<Message, Goodbye>) return FrameKind::goodbye;
  if constexpr (std::is_same_v<Message, AgentHello>) return FrameKind::agent_hello;
  if constexpr (std::is_same_v<Message, AgentSuspicion>) return FrameKind::agent_suspicion;
  if constexpr (std::is_same_v<Message, membership::Fenced>) return FrameKind::fenced;
  if constexpr (std::is_same_v<Message, Exited>) return FrameKind::exited;
  if constexpr (std::is_same_v<Message, Welcome>) return FrameKind::welcome;
  if constexpr (std::is_same_v<Message, Propose>) return FrameKind::propose;
  if constexpr (std::is_same_v<Message, Install>) return FrameKind::install;
  if constexpr (std::is_same_v<Message, Evicted>) return FrameKind::evicted;
  if constexpr (std::is_same_v<Message, Fence>) return FrameKind::fence;
  if constexpr (std::is_same_v<Message, JoinRequest>) return FrameKind::join_request;
  if constexpr (std::is_same_v<Message, Holding>) return FrameKind::holding;
  if constexpr (std::is_same_v<Message, StateServed>) return FrameKind::state_served;
  if constexpr (std::is_same_v<Message, StateReceived>) return FrameKind::state_received;
  if constexpr (std::is_same_v<Message, JoinFailed>) return FrameKind::join_failed;
  if constexpr (std::is_same_v<Message, Progress>) return FrameKind::progress;
  if constexpr (std::is_same_v<Message, FirstStep>) return FrameKind::first_step;
  if constexpr (std::is_same_v<Message, Pause>) return FrameKind::pause;
  if constexpr (std::is_same_v<Message, Started>) return FrameKind::started;
  if constexpr (std::is_same_v<Message, Drain>) return FrameKind::drain;
  if constexpr (std::is_same_v<Message, Resize>) return FrameKind::resize;
  if constexpr (std::is_same_v<Message, Hold>) return FrameKind::hold;
  if constexpr (std::is_same_v<Message, Admit>) return FrameKind::admit;
  if constexpr (std::is_same_v<Message, Transfer>) return FrameKind::transfer;
  if constexpr (std::is_same_v<Message, Cancel>) return FrameKind::cancel;
  if constexpr (std::is_same_v<Message, JobFinished>) return FrameKind::job_finished;
  if constexpr (std::is_same_v<Message, Leave>) return FrameKind::leave;
}

template <class Message>
Result<std::string> encode_one(const Message& message) {
  constexpr FrameKind kind = kind_of<Message>();
  json object;
  Writer writer(object);
  fields(writer, message);
  if (!writer.failure().empty()) {
    return Status(Fault::invalid_argument, Move::fix_call,
                  "cannot say " + std::string(name_of(kind)) + ": " + writer.failure());
  }
  std::string body;
  json::to_cbor(object, body);
  return make_frame(kind, body);
}

// Tries each message of the variant until one has the frame's kind.
template <class Variant, std::size_t index = 0>
Result<Variant> decode_as(FrameKind kind, std::span<const std::byte> body) {
  if constexpr (index == std::variant_size_v<Variant>) {
    return Status(Fault::refused, Move::give_up,
                  "a frame (" + std::string(name_of(kind)) + ") that this side of the connection does not send");
  } else {
    using Message = std::variant_alternative_t<index, Variant>;
    if (kind != kind_of<Message>()) return decode_as<Variant, index + 1>(kind, body);
    const std::string where = "a bad frame (" + std::string(name_of(kind)) + "): ";
    if (Status status = scan_cbor(body); !status.ok()) {
      return Status(Fault::refused, Move::give_up, where + status.message());
    }
    const auto* first = reinterpret_cast<const std::uint8_t*>(body.data());
    const json object = json::from_cbor(first, first + body.size(), true, false);
    if (object.is_discarded()) return Status(Fault::refused, Move::give_up, where + "no valid CBOR");
    Message message;
    std::string failure;
    Reader reader(object, failure);
    fields(reader, message);
    if (!failure.empty()) return Status(Fault::refused, Move::give_up, where + failure);
    return Variant(std::move(message));
  }
}

// The parser reports some errors by throwing whatever it is told; nothing of that passes this edge.
template <class Variant>
Result<Variant> decode(FrameKind kind, std::span<const std::byte> body) {
  try {
    return decode_as<Variant>(kind, body);
  } catch (const std::exception& error) {
    return Status(Fault::refused, Move::give_up,
                  "a bad frame (" + std::string(name_of(kind)) + "): " + std::string(error.what()));
  }
}

template <class Variant>
Result<std::string> encode_any(const Variant& message) {
  try {
    return std::visit([](const auto& one) { return encode_one(one); }, message);
  } catch (const std::exception& error) {
    return Status(Fault::invalid_argument, Move::fix_call, "cannot encode a message: " + std::string(error.what()));
  }
}

}  // namespace

Result<std::string> encode(const membership::FromWorker& message) { return encode_any(message); }
Result<std::string> encode(const membership::FromAgent& message) { return encode_any(message); }
Result<std::string> encode(const membership::ToWorker& message) { return encode_any(message); }
Result<std::string> encode(const membership::ToAgent& message) { return encode_any(message); }

Result<membership::FromWorker> decode_from_worker(FrameKind kind, std::span<const std::byte> body) {
  return decode<membership::FromWorker>(kind, body);
}
Result<membership::FromAgent> decode_from_agent(FrameKind kind, std::span<const std::byte> body) {
  return decode<membership::FromAgent>(kind, body);
}
Result<membership::ToWorker> decode_to_worker(FrameKind kind, std::span<const std::byte> body) {
  return decode<membership::ToWorker>(kind, body);
}
Result<membership::ToAgent> decode_to_agent(FrameKind kind, std::span<const std::byte> body) {
  return decode<membership::ToAgent>(kind, body);
}

}  // namespace closeranks::control

#include "communicator/issuers.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace closeranks::communicator {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint32_t low_half = 0xffffffff;

thread_local std::uint32_t thread_id = 0;
thread_local std::uint32_t callback_depth = 0;

}  // namespace

std::uint32_t this_thread() {
  if (thread_id == 0) {
    // The one thread of a fork child has another number.
    static const int registered = ::pthread_atfork(nullptr, nullptr, [] { thread_id = 0; });
    static_cast<void>(registered);
    thread_id = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  }
  return thread_id;
}

std::uint32_t calling_thread() { return callback_depth > 0 ? a_callback : this_thread(); }

InCallbacks::InCallbacks() { ++callback_depth; }
InCallbacks::~InCallbacks() { --callback_depth; }

// The first call takes the maker's place.
Issuers::Issuers(transport::IssuerLine& line) : line_(line), last_thread_(calling_thread()) {
  store();
  calls_ = 0;
}

void Issuers::start_anew(std::uint32_t queued) {
  collectives_ = queued;
  for (auto& word : line_.words) word.store(0, relaxed);
  calls_ = 0;
  store();
  calls_ = 0;
}

IssuedBy read_issuers(const transport::IssuerLine& line) {
  IssuedBy issued;
  bool any = false;
  for (const auto& word : line.words) {
    const std::uint64_t value = word.load(relaxed);
    if (value == 0) continue;
    const auto collectives = static_cast<std::uint32_t>(value & low_half);
    if (!any || static_cast<std::int32_t>(collectives - issued.collectives) > 0) issued.collectives = collectives;
    any = true;
    const auto thread = static_cast<std::uint32_t>(value >> 32);
    const bool known = std::find(issued.threads.begin(), issued.threads.end(), thread) != issued.threads.end();
    if (thread != 0 && !known) issued.threads.push_back(thread);
  }
  return issued;
}

}  // namespace closeranks::communicator

// How a peer on the same host gets a memfd: over an abstract unix socket (no name in a file system), as ancillary data,
// after both sides have proved that they know the job's token and run as the same user. docs/segment.md has the frames.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace asio {
class io_context;
}

namespace closeranks::transport {

// What is asked for: the life memfd of the process, its arena, or its segment of a group.
struct SegmentKey {
  enum class Kind : std::uint32_t { life = 1, group = 2, arena = 3 };
  Kind kind = Kind::life;
  std::uint64_t group = 0;  // 0 for life and arena
  static SegmentKey life() { return {}; }
  static SegmentKey arena() { return {Kind::arena, 0}; }
  static SegmentKey of(GroupKey key) { return {Kind::group, key.value()}; }
  friend auto operator<=>(const SegmentKey&, const SegmentKey&) = default;
};

// Connections served at once; further ones wait in the kernel's queue.
inline constexpr std::uint32_t max_segment_connections = 1024;
// A request for a segment that is not published is answered when it is, or given up after this.
inline constexpr std::chrono::milliseconds max_segment_wait{600'000};

// Runs on the thread(s) of `context`, which must outlive it; its functions may be called from any thread. Refused
// connections (wrong token, another user, another version, garbage, silence for deadlines::handshake) are closed with
// one log line each and disturb nobody.
class SegmentServer {
 public:
  // Listens at once, on a fresh name. Fault::system when the kernel refuses.
  static Result<std::unique_ptr<SegmentServer>> start(asio::io_context& context, std::string token);
  // Stops listening and closes all connections; with the context stopped, when the context is destroyed.
  ~SegmentServer();
  SegmentServer(const SegmentServer&) = delete;
  SegmentServer& operator=(const SegmentServer&) = delete;

  // Name of the abstract socket without the leading zero byte, e.g. "closeranks-4711-9f86d081884c7d65".
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  // From now on `key` is answered with (a duplicate of) `descriptor`. A second publish replaces the first.
  void publish(SegmentKey key, FileDescriptor descriptor);
  void withdraw(SegmentKey key);

 private:
  class State;
  SegmentServer(std::shared_ptr<State> state, std::string endpoint);
  std::shared_ptr<State> state_;
  std::string endpoint_;
};

using Fetched = std::function<void(Result<FileDescriptor>)>;

// Asks the server at `endpoint` for `key`; `done` is called once, on a thread of `context`, within `deadline` (at most
// max_segment_wait; not at all when the context is stopped before) with the memfd, not yet looked at (Segment::attach,
// PeerLife::attach and PeerArena::attach validate it), or
//   Fault::peer_lost  nobody listens there, or the connection ended: the process is gone
//   Fault::refused    wrong token, another user or another version on either side
//   Fault::timeout    not published in time
void async_fetch_segment(asio::io_context& context, const std::string& endpoint, const std::string& token,
                         SegmentKey key, std::chrono::milliseconds deadline, Fetched done);

// The same, blocking the calling thread.
Result<FileDescriptor> fetch_segment(const std::string& endpoint, const std::string& token, SegmentKey key,
                                     std::chrono::milliseconds deadline);

}  // namespace closeranks::transport

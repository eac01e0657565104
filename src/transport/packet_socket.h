// Non-blocking SOCK_SEQPACKET sockets on abstract names: whole messages, with at most one descriptor on each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/status.h"

namespace closeranks::transport {

// Listens on the abstract name `name` (without the zero byte).
Result<FileDescriptor> listen_abstract(const std::string& name, int backlog);

// errno of the connect, 0 when connected. EAGAIN: the listener's queue is full, try again.
int connect_abstract(const std::string& name, FileDescriptor& connected);

// Who is at the other end, as the kernel recorded it when the connection was made.
struct PeerProcess {
  int pid = 0;
  unsigned int user = 0;
};
std::optional<PeerProcess> peer_process(const FileDescriptor& socket);

// Sends one message, with `attached` when valid. False: the peer is gone or does not read.
bool send_packet(int socket, std::span<const std::byte> message, const FileDescriptor* attached = nullptr);

struct Packet {
  enum class State : std::uint8_t {
    none,    // nothing there yet
    closed,  // the peer has closed, or the socket failed
    whole,   // one message of `bytes` bytes
    broken,  // longer than the buffer, or with more than one descriptor
  };
  State state = State::none;
  std::size_t bytes = 0;
  FileDescriptor attached;
};
Packet receive_packet(int socket, std::span<std::byte> buffer);

}  // namespace closeranks::transport

#include "transport/packet_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "transport/mapping.h"

namespace closeranks::transport {
namespace {

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// nullopt: the name is empty or too long for an address.
std::optional<AbstractAddress> abstract_address(const std::string& name) {
  AbstractAddress result;
  result.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof(result.address.sun_path)) {
    return std::nullopt;
  }
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

FileDescriptor make_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Takes every descriptor out of the ancillary data, so that none leaks whatever a peer sends.
std::vector<FileDescriptor> take_descriptors(msghdr& header) {
  std::vector<FileDescriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      taken.emplace_back(descriptor);
    }
  }
  return taken;
}

}  // namespace

Result<FileDescriptor> listen_abstract(const std::string& name, int backlog) {
  const auto address = abstract_address(name);
  CR_ASSERT(address.has_value());
  FileDescriptor listener = make_socket();
  if (!listener.valid()) {
    return system_error("cannot make a unix socket", errno);
  }
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address->address), address->bytes) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    return system_error("cannot listen on the abstract unix socket @" + name, errno);
  }
  return listener;
}

int connect_abstract(const std::string& name, FileDescriptor& connected) {
  const auto address = abstract_address(name);
  if (!address.has_value()) {
    return EINVAL;
  }
  FileDescriptor socket = make_socket();
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address->address), address->bytes) != 0) {
    return errno;
  }
  connected = std::move(socket);
  return 0;
}

std::optional<PeerProcess> peer_process(const FileDescriptor& socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return std::nullopt;
  }
  return PeerProcess{credentials.pid, credentials.uid};
}

bool send_packet(int socket, std::span<const std::byte> message, const FileDescriptor* attached) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  if (attached != nullptr) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = attached->get();
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  }
  return ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

Packet receive_packet(int socket, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  // Room for a few descriptors, although one is allowed: those that do not fit are dropped by the kernel.
  alignas(cmsghdr) std::byte control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t received = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Packet packet;
  if (received < 0) {
    packet.state = errno == EAGAIN || errno == EINTR ? Packet::State::none : Packet::State::closed;
    return packet;
  }
  std::vector<FileDescriptor> descriptors = take_descriptors(header);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || descriptors.size() > 1) {
    packet.state = Packet::State::broken;
    return packet;
  }
  if (received == 0) {
    // Also what an empty message looks like; no frame is empty.
    packet.state = Packet::State::closed;
    return packet;
  }
  packet.state = Packet::State::whole;
  packet.bytes = static_cast<std::size_t>(received);
  if (!descriptors.empty()) {
    packet.attached = std::move(descriptors.front());
  }
  return packet;
}

}  // namespace closeranks::transport

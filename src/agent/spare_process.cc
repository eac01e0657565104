#include "agent/spare_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>
#include <tuple>
#include <utility>

namespace closeranks::agent {
namespace {

// An environment can be as large as the kernel lets a program's be; a socket buffer is usually 208 KiB.
constexpr int order_buffer_bytes = 4 << 20;
constexpr std::size_t shown_error_bytes = 300;

void append_number(std::string& bytes, std::size_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>((value >> shift) & 0xff));
}

// Ours, which does not block, and the spare's.
Result<std::pair<FileDescriptor, FileDescriptor>> make_socket() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(Fault::system, Move::retry, std::string("cannot make a socket for a spare: ") + std::strerror(errno));
  }
  std::pair<FileDescriptor, FileDescriptor> socket{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  ::fcntl(socket.first.get(), F_SETFL, O_NONBLOCK);
  // More than the default only where the system permits it: an environment of that size is rare.
  ::setsockopt(socket.first.get(), SOL_SOCKET, SO_SNDBUF, &order_buffer_bytes, sizeof(order_buffer_bytes));
  return socket;
}

// As send(2), with the successor's ends in the order of the standard streams.
ssize_t send_with_ends(int socket, std::string_view bytes, const SuccessorEnds& ends) {
  const std::array<int, 3> descriptors{ends.its_orders.get(), ends.output.write.get(), ends.errors.write.get()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(descriptors))> control{};
  iovec content{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(descriptors));
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(descriptors));
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string joined(std::span<const std::string> words) {
  std::string bytes;
  for (const std::string& word : words) bytes.append(word).push_back('\0');
  return bytes;
}

}  // namespace

Result<SpareProcess> start_spare(std::span<const std::string> command, std::span<const std::string> environment) {
  auto socket = make_socket();
  if (!socket.ok()) return socket.status();
  SpareProcess spare;
  spare.orders = std::move(socket.value().first);
  auto process = start_worker(command, environment, &socket.value().second);
  if (!process.ok()) return process.status();
  spare.process = std::move(process.value());
  return spare;
}

SpareWord word_of(const FileDescriptor& orders) {
  constexpr std::string_view word = "ready ";
  std::array<char, 32> said{};
  const ssize_t bytes = ::recv(orders.get(), said.data(), said.size(), MSG_DONTWAIT | MSG_PEEK);
  if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR)) return {std::nullopt, true};
  const std::string_view text(said.data(), bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  const std::size_t end = text.find('\n');
  if (!text.starts_with(word) || end == std::string_view::npos) return {};
  pid_t pid = 0;
  const auto [stopped, error] = std::from_chars(text.data() + word.size(), text.data() + end, pid);
  return error == std::errc() && stopped == text.data() + end ? SpareWord{pid, false} : SpareWord{};
}

Result<SuccessorEnds> make_successor_ends() {
  SuccessorEnds ends;
  auto socket = make_socket();
  if (!socket.ok()) return socket.status();
  std::tie(ends.orders, ends.its_orders) = std::move(socket.value());
  for (OutputPipe* place : {&ends.output, &ends.errors}) {
    auto pipe = make_output_pipe();
    if (!pipe.ok()) return pipe.status();
    *place = std::move(pipe.value());
  }
  return ends;
}

std::string encode_orders(std::span<const std::string> environment, std::span<const std::string> command) {
  const std::string variables = joined(environment);
  const std::string words = joined(command);
  std::string bytes;
  append_number(bytes, variables.size());
  append_number(bytes, words.size());
  return bytes + variables + words;
}

Status send_orders(const FileDescriptor& orders, std::span<const std::string> environment,
                   std::span<const std::string> command, const SuccessorEnds* successor) {
  const std::string bytes = encode_orders(environment, command);
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const bool first = rest.size() == bytes.size();
    const ssize_t sent = first && successor != nullptr
                             ? send_with_ends(orders.get(), rest, *successor)
                             : ::send(orders.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // The socket closes with the failure, and the spare ends.
      const bool full = errno == EAGAIN;
      return Status(full ? Fault::system : Fault::peer_lost, Move::retry,
                    std::string("a spare cannot be told what to become: ") +
                        (full ? "the environment does not fit into its socket" : std::strerror(errno)));
    }
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  return {};
}

std::uint64_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  return file >> size >> resident ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

std::string last_line(const FileDescriptor& pipe) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t bytes = ::read(pipe.get(), buffer.data(), buffer.size());
    if (bytes <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t before = text.rfind('\n');
  text.erase(0, before == std::string::npos ? 0 : before + 1);
  if (text.size() > shown_error_bytes) text.erase(0, text.size() - shown_error_bytes);
  return text;
}

}  // namespace closeranks::agent

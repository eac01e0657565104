#include "agent/spare_process.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace closeranks::agent {
namespace {

// An environment can be as large as the kernel lets a program's be; a socket buffer is usually 208 KiB.
constexpr int order_buffer_bytes = 4 << 20;
constexpr std::size_t shown_error_bytes = 300;

void append_number(std::string& bytes, std::size_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>((value >> shift) & 0xff));
}

std::string joined(std::span<const std::string> words) {
  std::string bytes;
  for (const std::string& word : words) bytes.append(word).push_back('\0');
  return bytes;
}

}  // namespace

Result<SpareProcess> start_spare(std::span<const std::string> command, std::span<const std::string> environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(Fault::system, Move::retry, std::string("cannot make a socket for a spare: ") + std::strerror(errno));
  }
  SpareProcess spare;
  spare.orders = FileDescriptor(ends[0]);
  const FileDescriptor its_end(ends[1]);
  ::fcntl(spare.orders.get(), F_SETFL, O_NONBLOCK);
  // More than the default only where the system permits it: an environment of that size is rare.
  ::setsockopt(spare.orders.get(), SOL_SOCKET, SO_SNDBUF, &order_buffer_bytes, sizeof(order_buffer_bytes));
  auto process = start_worker(command, environment, &its_end);
  if (!process.ok()) return process.status();
  spare.process = std::move(process.value());
  return spare;
}

bool is_ready(const FileDescriptor& orders) {
  char byte = 0;
  return ::recv(orders.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
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
                   std::span<const std::string> command) {
  const std::string bytes = encode_orders(environment, command);
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t sent = ::send(orders.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
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

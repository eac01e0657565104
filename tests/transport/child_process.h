// Real processes for tests: a forked child with a packet socket to its parent. Killed and reaped on destruction.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <utility>

#include "base/file_descriptor.h"
#include "transport/packet_socket.h"

namespace closeranks::transport {

// One end of the socket between a child and its parent: single bytes as signs, descriptors as cargo.
class Channel {
 public:
  explicit Channel(FileDescriptor socket) : socket_(std::move(socket)) {}
  bool say(char sign, const FileDescriptor* attached = nullptr) const {
    return send_packet(socket_.get(), std::as_bytes(std::span(&sign, 1)), attached);
  }
  // The next sign within 20 s, or '\0'.
  char hear(FileDescriptor* attached = nullptr) const {
    pollfd wanted{socket_.get(), POLLIN, 0};
    if (::poll(&wanted, 1, 20'000) <= 0) {
      return '\0';
    }
    std::array<std::byte, 8> buffer{};
    Packet packet = receive_packet(socket_.get(), buffer);
    if (attached != nullptr) {
      *attached = std::move(packet.attached);
    }
    return packet.state == Packet::State::whole ? static_cast<char>(buffer[0]) : '\0';
  }

 private:
  FileDescriptor socket_;
};

class ChildProcess {
 public:
  // Runs `body` in a child, which then exits with the status it returns.
  explicit ChildProcess(const std::function<int(const Channel&)>& body) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::_exit(body(Channel(FileDescriptor(ends[1]))));
    }
    ::close(ends[1]);
    channel_ = Channel(FileDescriptor(ends[0]));
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    kill(SIGKILL);
    wait();
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const Channel& channel() const { return channel_; }
  void kill(int signal) const {
    if (!reaped_) {
      ::kill(pid_, signal);
    }
  }
  // Its wait status.
  int wait() {
    if (!std::exchange(reaped_, true)) {
      ::waitpid(pid_, &status_, 0);
    }
    return status_;
  }

 private:
  pid_t pid_ = 0;
  bool reaped_ = false;
  int status_ = 0;
  Channel channel_{FileDescriptor()};
};

// Waits until `condition` holds; a generous bound, because tests share the machine.
inline bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds bound) {
  const auto until = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) {
      return false;
    }
    ::usleep(200);
  }
  return true;
}

// For what is a matter of time on a busy machine: `attempt` must succeed once in three times.
inline bool once_in_three(const std::function<bool()>& attempt) { return attempt() || attempt() || attempt(); }

// Descriptors this process has open.
std::size_t open_descriptors();

}  // namespace closeranks::transport

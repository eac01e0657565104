#include "agent/control_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <istream>
#include <utility>

#include "base/deadlines.h"

namespace closeranks::agent {
namespace {

using Stream = asio::local::stream_protocol::socket;

// A socket's name has 107 bytes at most, and folders can be deeper: named through a descriptor of the folder.
struct Address {
  FileDescriptor folder;
  sockaddr_un name{};
};

Result<Address> address_in(const std::string& folder) {
  Address address;
  address.folder = FileDescriptor(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!address.folder.valid()) {
    return Status(Fault::system, Move::fix_call,
                  "cannot open the job's folder " + folder + ": " + std::strerror(errno));
  }
  address.name.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(address.folder.get()) + "/" + control_socket_name;
  std::strncpy(address.name.sun_path, path.c_str(), sizeof(address.name.sun_path) - 1);
  return address;
}

// One who asks: one line in, one line out, then closed.
struct Asker : public std::enable_shared_from_this<Asker> {
  Asker(Stream given, ControlSocket::Answer its_answer)
      : stream(std::move(given)),
        deadline(stream.get_executor(), deadlines::job_command),
        answer(std::move(its_answer)),
        input(max_request_bytes) {}

  Stream stream;
  asio::steady_timer deadline;
  ControlSocket::Answer answer;
  asio::streambuf input;
  std::string output;

  void start() {
    deadline.async_wait([self = shared_from_this()](const std::error_code& error) {
      std::error_code ignored;
      if (!error) self->stream.close(ignored);
    });
    asio::async_read_until(stream, input, '\n', [self = shared_from_this()](const std::error_code& error, std::size_t) {
      if (error) return self->end();
      std::string request;
      std::istream lines(&self->input);
      std::getline(lines, request);
      self->output = self->answer(request) + "\n";
      asio::async_write(self->stream, asio::buffer(self->output),
                        [self](const std::error_code&, std::size_t) { self->end(); });
    });
  }
  void end() {
    std::error_code ignored;
    deadline.cancel();
    stream.close(ignored);
  }
};

}  // namespace

struct ControlSocket::State : public std::enable_shared_from_this<ControlSocket::State> {
  State(asio::io_context& context, std::string its_path, Answer its_answer)
      : acceptor(context), path(std::move(its_path)), answer(std::move(its_answer)) {}

  asio::local::stream_protocol::acceptor acceptor;
  const std::string path;
  const Answer answer;
  std::size_t askers = 0;

  void accept() {
    acceptor.async_accept([weak = weak_from_this()](const std::error_code& error, Stream stream) {
      const auto self = weak.lock();
      if (!self || error == asio::error::operation_aborted) return;
      if (!error && self->askers < max_askers) {
        ++self->askers;
        const std::shared_ptr<Asker> asker(new Asker(std::move(stream), self->answer), [weak](Asker* gone) {
          delete gone;
          if (const auto left = weak.lock()) --left->askers;
        });
        asker->start();
      }
      self->accept();
    });
  }
};

Result<std::unique_ptr<ControlSocket>> ControlSocket::open(asio::io_context& context, const std::string& folder,
                                                           Answer answer) {
  const std::string path = folder + "/" + control_socket_name;
  auto address = address_in(folder);
  if (!address.ok()) return address.status();
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Before it has a name: the name is made with this mode.
  const bool listens = socket.valid() && ::fchmod(socket.get(), 0600) == 0 &&
                       ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value().name),
                              sizeof(address.value().name)) == 0 &&
                       ::listen(socket.get(), static_cast<int>(max_askers)) == 0;
  if (!listens) {
    return Status(Fault::system, Move::fix_call,
                  "cannot open the control socket " + path + ": " + std::strerror(errno));
  }
  auto state = std::make_shared<State>(context, path, std::move(answer));
  state->acceptor.assign(asio::local::stream_protocol(), socket.release());
  state->accept();
  return std::unique_ptr<ControlSocket>(new ControlSocket(std::move(state)));
}

ControlSocket::ControlSocket(std::shared_ptr<State> state) : state_(std::move(state)) {}

ControlSocket::~ControlSocket() {
  std::error_code ignored;
  state_->acceptor.close(ignored);
  ::unlink(state_->path.c_str());
}

Result<std::string> ask_job(const std::string& folder, const std::string& request) {
  auto address = address_in(folder);
  if (!address.ok()) return address.status();
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value().name),
                                   sizeof(address.value().name)) != 0) {
    return Status(Fault::refused, Move::fix_call, "no running job answers in " + folder + ": " + std::strerror(errno));
  }
  const std::string line = request + "\n";
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    return Status(Fault::system, Move::retry, "the job in " + folder + " does not listen: " + std::strerror(errno));
  }
  const auto until = std::chrono::steady_clock::now() + deadlines::job_command;
  std::string answer;
  std::array<char, 4096> buffer{};
  while (answer.find('\n') == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd wanted{socket.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) == 0) {
      return Status(Fault::timeout, Move::retry, "the job in " + folder + " did not answer in time");
    }
    const ssize_t bytes = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return Status(Fault::system, Move::retry, "the job in " + folder + " ended without an answer");
    answer.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  return answer.substr(0, answer.find('\n'));
}

}  // namespace closeranks::agent

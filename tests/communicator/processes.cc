#include "processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace closeranks::communicator_test {
namespace {

using Clock = std::chrono::steady_clock;

std::string file_of(const std::string& folder, std::string key) {
  for (char& letter : key) {
    if (letter == '/') letter = '_';
  }
  return folder + "/" + key;
}

}  // namespace

FileBook::FileBook() : maker_(::getpid()) {
  std::string name = (std::filesystem::temp_directory_path() / "closeranks-book-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::string("mkdtemp: ") + std::strerror(errno);
  folder_ = name;
}

FileBook::~FileBook() {
  if (::getpid() == maker_) std::filesystem::remove_all(folder_);
}

AddressBook FileBook::book() const {
  AddressBook book;
  book.set = [folder = folder_](const std::string& key, const std::string& value) -> Status {
    const std::string file = file_of(folder, key);
    std::ofstream(file + ".new") << value;
    std::filesystem::rename(file + ".new", file);
    return {};
  };
  book.get = [folder = folder_](const std::string& key, std::chrono::milliseconds deadline) -> Result<std::string> {
    const auto until = Clock::now() + deadline;
    for (;;) {
      std::ifstream file(file_of(folder, key));
      std::string value;
      if (file && std::getline(file, value)) return value;
      if (Clock::now() >= until) return Status(Fault::timeout, Move::retry, "nobody has set " + key);
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  };
  return book;
}

Processes::Processes(std::uint32_t count, Member member) : children_(count) {
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::string("pipe: ") + std::strerror(errno);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      std::string said;
      try {
        said = member(rank);
      } catch (const std::string& failure) {
        said = failure.empty() ? "failed without a reason" : failure;
      }
      if (!said.empty() && ::write(ends[1], said.data(), said.size()) < 0) ::_exit(2);
      ::_exit(said.empty() ? 0 : 1);
    }
    ::close(ends[1]);
    children_[rank].pid = pid;
    children_[rank].pipe = ends[0];
  }
}

Processes::~Processes() {
  for (Child& child : children_) {
    if (!child.reaped) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
    }
    ::close(child.pipe);
  }
}

void Processes::kill(std::uint32_t rank, int signal) {
  children_[rank].killed = true;
  ::kill(children_[rank].pid, signal);
}

int Processes::reap(std::uint32_t rank) {
  int status = 0;
  ::waitpid(children_[rank].pid, &status, 0);
  children_[rank].reaped = true;
  return status;
}

std::string Processes::join(std::chrono::seconds deadline) {
  const auto until = Clock::now() + deadline;
  std::string failures;
  for (std::uint32_t rank = 0; rank < children_.size(); ++rank) {
    Child& child = children_[rank];
    // Reading to the end of the pipe is waiting for the process.
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      pollfd readable{child.pipe, POLLIN, 0};
      if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left)) <= 0) {
        failures += "rank " + std::to_string(rank) + " has not ended; ";
        break;
      }
      char text[4096];
      const ssize_t length = ::read(child.pipe, text, sizeof(text));
      if (length <= 0) {
        if (child.reaped) break;
        const int status = reap(rank);
        if (WIFSIGNALED(status) && !child.killed) {
          failures += "rank " + std::to_string(rank) + " died of signal " + std::to_string(WTERMSIG(status)) + "; ";
        }
        break;
      }
      child.said.append(text, static_cast<std::size_t>(length));
    }
    if (!child.said.empty()) failures += "rank " + std::to_string(rank) + ": " + child.said + "; ";
  }
  return failures;
}

PlainMember::PlainMember(std::uint32_t rank, std::uint32_t count, const AddressBook& book,
                         std::chrono::milliseconds timeout) {
  EngineOptions options;
  options.slot = Slot{rank};
  options.slots = count;
  options.member_word = "rank";
  Result<std::shared_ptr<Engine>> started = Engine::start(options);
  require(started.status(), "engine");
  engine = started.value();
  GroupOptions all;
  all.name = "world";
  for (std::uint32_t slot = 0; slot < count; ++slot) all.members.push_back(Slot{slot});
  all.timeout = timeout;
  Result<std::shared_ptr<Communicator>> made = engine->create_group(all, &book);
  require(made.status(), "group");
  group = made.value();
}

void require(const Status& status, const std::string& what) {
  if (!status.ok()) throw what + ": " + status.message();
}

void require(bool condition, const std::string& what) {
  if (!condition) throw what;
}

}  // namespace closeranks::communicator_test

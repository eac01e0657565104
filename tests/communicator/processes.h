// Real processes for tests: each member is a fork of a test program that has no threads yet. A member reports what went
// wrong as text through a pipe; a test fails with the first such text. Every wait has a deadline, and every process is
// killed and reaped at the end of its scope.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "closeranks/engine.h"

namespace closeranks::communicator_test {

// A directory of files as the store of a plain job. Removed with its contents by the process that made it.
class FileBook {
 public:
  FileBook();
  ~FileBook();
  FileBook(const FileBook&) = delete;
  FileBook& operator=(const FileBook&) = delete;
  [[nodiscard]] AddressBook book() const;

 private:
  std::string folder_;
  pid_t maker_;
};

// For members to end. Sanitizers make kernels twenty times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::chrono::seconds join_patience{300};
#else
inline constexpr std::chrono::seconds join_patience{60};
#endif

// What a member's function returns: empty, or what went wrong.
using Member = std::function<std::string(std::uint32_t rank)>;

class Processes {
 public:
  // Forks `count` members that run `member` and end.
  Processes(std::uint32_t count, Member member);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void kill(std::uint32_t rank, int signal);
  // Waits for the end of a killed member; its wait status.
  int reap(std::uint32_t rank);
  [[nodiscard]] pid_t pid(std::uint32_t rank) const { return children_[rank].pid; }
  // Waits for all that were not killed by us; "" if all returned "", else the texts of those that did not, or who is
  // late (then everybody is killed).
  std::string join(std::chrono::seconds deadline = join_patience);

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;
    bool killed = false;
    bool reaped = false;
    std::string said;
  };
  std::vector<Child> children_;
};

// A plain engine of `rank` among `count`, and a group of all of them. Throws a std::string on failure.
struct PlainMember {
  PlainMember(std::uint32_t rank, std::uint32_t count, const AddressBook& book,
              std::chrono::milliseconds timeout = std::chrono::milliseconds{20000});
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Communicator> group;
};

// Throws `what` and the status' message unless it is ok.
void require(const Status& status, const std::string& what);
void require(bool condition, const std::string& what);

// A buffer over a vector's memory.
template <class T>
Buffer buffer(std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

}  // namespace closeranks::communicator_test

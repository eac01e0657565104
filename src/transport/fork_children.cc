#include "transport/fork_children.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include "base/log.h"

namespace closeranks::transport {

void ForkChildren::before_fork() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) == 0) {
    parents_end_ = FileDescriptor(ends[0]);
    childs_end_ = FileDescriptor(ends[1]);
  } else {
    log::warning("a fork cannot be followed (" + std::system_category().message(errno) +
                 "): shared memory in use now will not be used again");
  }
}

void ForkChildren::in_parent() {
  childs_end_.reset();
  children_.push_back({++forks_, std::move(parents_end_)});
}

void ForkChildren::in_child() {
  children_.clear();
  parents_end_.reset();
  // Open until the child ends.
  static_cast<void>(childs_end_.release());
}

bool ForkChildren::forget_ended() {
  const auto ended = [](const Child& child) {
    pollfd asked{child.alive.get(), POLLIN, 0};
    return child.alive.valid() && ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLHUP) != 0;
  };
  return std::erase_if(children_, ended) != 0;
}

bool ForkChildren::any_since(std::uint64_t forks) const {
  return !children_.empty() && children_.back().number > forks;
}

}  // namespace closeranks::transport

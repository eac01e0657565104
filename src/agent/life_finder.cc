#include "agent/life_finder.h"

#include <fcntl.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace closeranks::agent {

std::optional<transport::PeerLife> find_life(pid_t pid, const transport::LifeIdentity& identity,
                                             std::uint32_t watcher) {
  namespace fs = std::filesystem;
  const std::string wanted = "/memfd:closeranks-life-" + std::to_string(identity.slot.value()) + " ";
  std::error_code error;
  for (fs::directory_iterator entry("/proc/" + std::to_string(pid) + "/fd", error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code unreadable;
    const std::string target = fs::read_symlink(entry->path(), unreadable);
    // The kernel appends " (deleted)": a memfd has no name in a file system.
    if (unreadable || !(target + " ").starts_with(wanted)) continue;
    FileDescriptor descriptor(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!descriptor.valid()) continue;
    auto life = transport::PeerLife::attach(std::move(descriptor), identity, watcher, transport::Access::read_only);
    // Refused while the worker is still making it; the next look finds it whole.
    if (life.ok()) return std::move(life.value());
  }
  return std::nullopt;
}

}  // namespace closeranks::agent

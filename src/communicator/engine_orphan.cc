// Nobody is left who could help: the coordinator is out of reach for longer than its restart would take, or the process
// that it lived in has ended.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <utility>

#include "base/deadlines.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/process_state.h"
#include "communicator/engine_core.h"

namespace closeranks::communicator {
namespace {

// Whoever read our output has ended: what is still said goes to the log files, and a print is no broken pipe.
void keep_output_in(const std::string& files) {
  if (files.empty()) return;
  for (const auto& [stream, ending] :
       {std::pair{STDOUT_FILENO, ".stdout.log"}, std::pair{STDERR_FILENO, ".stderr.log"}}) {
    struct stat kind{};
    // The script may have sent it elsewhere.
    if (::fstat(stream, &kind) != 0 || !S_ISFIFO(kind.st_mode)) continue;
    const FileDescriptor file(::open((files + ending).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (file.valid()) ::dup2(file.get(), stream);
  }
}

// With the children, where this process leads a group of its own, as an agent's workers do.
void kill_this_process() {
  const bool leads = ::getpgrp() == ::getpid();
  ::kill(leads ? 0 : ::getpid(), SIGKILL);
}

std::string seconds(std::chrono::milliseconds time) { return std::to_string(time.count() / 1000) + " s"; }

}  // namespace

// Under the lock. Without the coordinator nobody will ever exclude the member that an op waits for.
void EngineCore::look_for_orphanhood(Clock::time_point now) {
  const std::int64_t lost_at = link_lost_at_ns_.load(std::memory_order_relaxed);
  if (lost_at == 0) return;
  const Clock::time_point since{std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(lost_at))};
  if (now - since < options_.orphan_timeout) return;
  for (const auto& group : groups_) {
    if (!group->waits_for_gone()) continue;
    Status status(Fault::system, Move::give_up,
                  options_.member_word + " " + std::to_string(options_.slot.value()) + " is alone: for " +
                      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - since).count()) +
                      " s it has reached neither the coordinator at " + options_.coordinator +
                      " nor the members its op waits for. This process must end; start the job again");
    status.group = group->options().name;
    group->fail(std::move(status));
  }
}

// Only where the process can be seen, as it is known to live: a worker in a namespace of its own has the orphan
// timeout.
void EngineCore::watch_coordinator_process() {
  if (!options_.coordinator_process) return;
  const auto pid = static_cast<pid_t>(options_.coordinator_process->pid);
  auto process = open_process(pid);
  // The handle is of whoever has the number now; the start time tells whether that is the one that was meant.
  const auto state = process_state(pid);
  if (!process.ok() || !state || state->start_ticks != options_.coordinator_process->start_ticks) {
    log::info("process " + std::to_string(pid) + ", which holds the coordinator, cannot be seen from here: its end " +
              "will be noticed after " + seconds(options_.orphan_timeout));
    return;
  }
  auto end = std::make_shared<asio::posix::stream_descriptor>(control_->context(), process.value().release());
  end->async_wait(asio::posix::stream_descriptor::wait_read, [this, end](const std::error_code& error) {
    if (!error) on_coordinator_ended();
  });
}

void EngineCore::on_coordinator_ended() {
  keep_output_in(options_.output_files);
  end_all({Fault::system, Move::give_up,
           options_.member_word + " " + std::to_string(options_.slot.value()) + " (worker " +
               std::to_string(options_.worker.value()) + "): process " +
               std::to_string(options_.coordinator_process->pid) +
               ", closeranks run with the coordinator of the job, has ended. Nobody can exclude or replace a worker " +
               "any more: this process must end, and is killed in " + seconds(deadlines::agent_lost) +
               ". Start the job again"});
  auto timer = std::make_shared<asio::steady_timer>(control_->context(), deadlines::agent_lost);
  timer->async_wait([this, timer](const std::error_code& cancelled) {
    if (cancelled) return;
    log::error(options_.member_word + " " + std::to_string(options_.slot.value()) + " has not ended within " +
               seconds(deadlines::agent_lost) + "; it is killed");
    kill_this_process();
  });
}

}  // namespace closeranks::communicator

#include "agent/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "agent/line_cutter.h"
#include "agent/traceback_filter.h"
#include "base/blocked_signals.h"
#include "base/log.h"

namespace closeranks::agent {
namespace {

constexpr std::size_t read_bytes = 64ull * 1024;
// Colours of the slots' prefixes on a terminal, in turn.
constexpr std::array<const char*, 6> colours = {"36", "33", "32", "35", "34", "31"};

// All of `text`, waiting for a slow reader. False: there is no reader any more, or the disk is full.
bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd wanted{descriptor, POLLOUT, 0};
      ::poll(&wanted, 1, 1000);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// One of our own standard streams.
struct Screen {
  int descriptor;
  bool terminal;
  bool open = true;
  std::string pending;

  explicit Screen(int given) : descriptor(given), terminal(::isatty(given) == 1) {}

  void add(const ShownLine& line) {
    const std::string text = terminal ? printable(line.text) : line.text;
    std::string prefix = "closeranks: ";
    if (line.slot.has_value()) {
      prefix = "[" + std::to_string(line.slot->value()) + "] ";
      if (terminal)
        prefix = "\x1b[" + std::string(colours[line.slot->value() % colours.size()]) + "m" + prefix + "\x1b[0m";
    } else if (terminal) {
      prefix = "\x1b[1m" + prefix + "\x1b[0m";
    }
    pending += prefix + text + "\n";
  }
  void flush() {
    if (open && !pending.empty()) open = write_all(descriptor, pending);
    pending.clear();
  }
};

}  // namespace

struct Output::State : public std::enable_shared_from_this<Output::State> {
  // A worker's stdout or stderr, and its log file.
  struct Stream {
    Stream(asio::io_context& context, Slot its_slot, int its_number, std::string its_log_name, FileDescriptor pipe)
        : slot(its_slot), number(its_number), log_name(std::move(its_log_name)), reader(context, pipe.release()) {}
    Slot slot;
    int number;
    std::string log_name;
    asio::posix::stream_descriptor reader;
    FileDescriptor log;
    LineCutter cutter;
    std::vector<char> buffer = std::vector<char>(read_bytes);
  };

  explicit State(OutputOptions given) : options(std::move(given)), tick(context) {}

  const OutputOptions options;
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer tick;
  TracebackFilter filter;
  Screen out{STDOUT_FILENO};
  Screen errors{STDERR_FILENO};
  std::set<std::shared_ptr<Stream>> streams;
  bool log_trouble_told = false;
  std::thread thread;

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t open_streams = 0;  // under mutex

  bool is_shown(const Stream& stream) const {
    if (options.redirects.has(stream.slot, stream.number)) return false;
    return options.shown.empty() ||
           std::find(options.shown.begin(), options.shown.end(), stream.slot) != options.shown.end();
  }

  void show(const TracebackFilter::Lines& lines) {
    for (const ShownLine& line : lines) {
      // Kept in order between the two streams where both are a terminal or the same file.
      Screen& screen = line.stream == 1 ? out : errors;
      Screen& other = line.stream == 1 ? errors : out;
      if (!other.pending.empty()) other.flush();
      screen.add(line);
    }
    out.flush();
    errors.flush();
    if (const auto next = filter.next_tick(); next.has_value()) {
      tick.expires_at(*next);
      tick.async_wait([this](const std::error_code& error) {
        if (!error) show(filter.tick(std::chrono::steady_clock::now()));
      });
    }
  }

  void say(const std::string& text) { show({{std::nullopt, 2, text}}); }

  void open_log(Stream& stream) {
    if (options.log_folder.empty()) return;
    const std::string path =
        options.log_folder + "/" + stream.log_name + (stream.number == 1 ? ".stdout.log" : ".stderr.log");
    stream.log = FileDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!stream.log.valid()) tell_log_trouble(path);
  }

  void tell_log_trouble(const std::string& what) {
    if (std::exchange(log_trouble_told, true)) return;
    say("cannot write the workers' log files (" + what + ": " + std::strerror(errno) +
        "); the job goes on without them");
  }

  void read(const std::shared_ptr<Stream>& stream) {
    stream->reader.async_read_some(asio::buffer(stream->buffer),
                                   [this, stream](const std::error_code& error, std::size_t bytes) {
                                     if (error) {
                                       if (error != asio::error::operation_aborted) close(stream);
                                       return;
                                     }
                                     take(*stream, std::string_view(stream->buffer.data(), bytes));
                                     read(stream);
                                   });
  }

  void take(Stream& stream, std::string_view bytes) {
    if (stream.log.valid() && !write_all(stream.log.get(), bytes)) {
      tell_log_trouble("slot " + std::to_string(stream.slot.value()));
      stream.log.reset();
    }
    if (!is_shown(stream)) return;
    TracebackFilter::Lines lines;
    const auto now = std::chrono::steady_clock::now();
    stream.cutter.feed(bytes, [&](std::string_view text) { collect(stream, text, now, lines); });
    show(lines);
  }

  void collect(const Stream& stream, std::string_view text, TracebackFilter::Time now, TracebackFilter::Lines& lines) {
    for (ShownLine& line : filter.line(stream.slot, stream.number, text, now)) lines.push_back(std::move(line));
  }

  // The stream has ended, or is let go.
  void close(const std::shared_ptr<Stream>& stream) {
    if (streams.erase(stream) == 0) return;
    TracebackFilter::Lines lines;
    const auto now = std::chrono::steady_clock::now();
    stream->cutter.finish([&](std::string_view text) { collect(*stream, text, now, lines); });
    for (ShownLine& line : filter.ended(stream->slot, stream->number, now)) lines.push_back(std::move(line));
    show(lines);
    std::error_code ignored;
    stream->reader.close(ignored);
    {
      const std::scoped_lock lock(mutex);
      --open_streams;
    }
    changed.notify_all();
  }

  void run() {
    ::prctl(PR_SET_NAME, "cr-output");
    context.run();
  }
};

Output::Output(OutputOptions options) : state_(std::make_shared<State>(std::move(options))) {
  const BlockedSignals blocked;
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Output::~Output() {
  finish(std::chrono::milliseconds(0));
  state_->work.reset();
  asio::post(state_->context, [state = state_.get()] { state->tick.cancel(); });
  state_->thread.join();
}

void Output::attach(Slot slot, const std::string& log_name, FileDescriptor output, FileDescriptor errors) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->open_streams += 2;
  }
  for (auto [number, pipe] : {std::pair{1, &output}, std::pair{2, &errors}}) {
    auto stream = std::make_shared<State::Stream>(state_->context, slot, number, log_name, std::move(*pipe));
    asio::post(state_->context, [state = state_, stream] {
      state->open_log(*stream);
      state->streams.insert(stream);
      state->read(stream);
    });
  }
}

void Output::say(std::string_view line) {
  asio::post(state_->context, [state = state_, text = std::string(line)] { state->say(text); });
}

bool Output::finish(std::chrono::milliseconds deadline) {
  bool all = false;
  {
    std::unique_lock lock(state_->mutex);
    all = state_->changed.wait_for(lock, deadline, [this] { return state_->open_streams == 0; });
  }
  // No deadline for what was read already: it is the reader of our own output that we wait for, as any program does.
  auto done = std::make_shared<std::pair<std::mutex, std::condition_variable>>();
  auto finished = std::make_shared<bool>(false);
  asio::post(state_->context, [state = state_, done, finished] {
    const auto streams = state->streams;
    for (const auto& stream : streams) state->close(stream);
    state->show(state->filter.finish(std::chrono::steady_clock::now()));
    const std::scoped_lock lock(done->first);
    *finished = true;
    done->second.notify_all();
  });
  std::unique_lock lock(done->first);
  done->second.wait(lock, [&] { return *finished; });
  return all;
}

}  // namespace closeranks::agent

#include "terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace closeranks::tools {
namespace {

// The other screen, whose content is not kept, without a cursor.
constexpr const char* enter = "\x1b[?1049h\x1b[?25l";
constexpr const char* leave = "\x1b[?25h\x1b[?1049l";
constexpr const char* to_the_top = "\x1b[H";
constexpr const char* clear_rest_of_line = "\x1b[K";
constexpr const char* clear_rest = "\x1b[J";
constexpr char control_c = 3;

bool write_all(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

bool Terminal::is_one() { return ::isatty(STDOUT_FILENO) == 1; }

TerminalSize Terminal::size() {
  winsize size{};
  TerminalSize found;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    found = {size.ws_col, size.ws_row};
  }
  return found;
}

Terminal::Terminal() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = FileDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  has_keys_ = ::tcgetattr(STDIN_FILENO, &before_) == 0;
  if (has_keys_) {
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  write_all(enter);
}

Terminal::~Terminal() {
  write_all(leave);
  if (has_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

bool Terminal::show(const std::vector<std::string>& lines) {
  std::string text = to_the_top;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += (i == 0 ? "" : "\r\n") + lines[i] + clear_rest_of_line;
  }
  return write_all(text + clear_rest);
}

Terminal::Wish Terminal::wait(std::chrono::milliseconds time) {
  std::array<pollfd, 2> sources{{{signals_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
  if (::poll(sources.data(), has_keys_ ? 2 : 1, static_cast<int>(time.count())) <= 0) return Wish::nothing;
  signalfd_siginfo info{};
  Wish wish = Wish::nothing;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGWINCH) return Wish::end;
    wish = Wish::draw_again;
  }
  if (has_keys_ && sources[1].revents != 0) {
    std::array<char, 64> keys{};
    const ssize_t count = ::read(STDIN_FILENO, keys.data(), keys.size());
    if (count <= 0) return Wish::end;  // the terminal is gone
    for (ssize_t i = 0; i < count; ++i) {
      const char key = keys[static_cast<std::size_t>(i)];
      if (key == 'q' || key == 'Q' || key == control_c) return Wish::end;
    }
    wish = Wish::draw_again;
  }
  return wish;
}

}  // namespace closeranks::tools

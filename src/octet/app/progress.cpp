#include "octet/app/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include "octet/app/standard_streams.h"
#include "octet/base/bottom_line.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

constexpr auto kBetweenDraws = std::chrono::milliseconds(100);
constexpr std::size_t kLosses = 64;
constexpr double kNewest = 0.2;  // weight of the last step in the rate shown

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first of these variables that is set decides, as in setlocale. The fonts of the Linux console lack these glyphs.
Glyphs glyphs_of_terminal() {
  if (environment("TERM") == "linux") return Glyphs::ascii;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = environment(name);
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos ? Glyphs::unicode : Glyphs::ascii;
  }
  return Glyphs::ascii;
}

// Called before each line, because the window may have changed.
int columns_of_terminal() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A job in the background must not write over the line in which its user types.
bool in_background() {
  const pid_t foreground = ::tcgetpgrp(STDOUT_FILENO);
  return foreground >= 0 && foreground != ::getpgrp();
}

constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGQUIT};

void on_crash(int signal) {
  abandon_bottom_line();
  ::raise(signal);  // SA_RESETHAND: now as without this handler
}

std::terminate_handler terminate_before = nullptr;

// Removes the live line in a crash before anything is printed about it. Handlers of debuggers and sanitizers stay.
void clear_line_at_crash() {
  if (terminate_before) return;
  terminate_before = std::set_terminate([] {
    abandon_bottom_line();
    terminate_before();
  });
  for (const int signal : kCrashes) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = on_crash;
    action.sa_flags = SA_RESETHAND | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

Progress::Progress(std::string label, std::int64_t steps, std::size_t width)
    : label_(std::move(label)),
      width_(width),
      every_(std::max<std::int64_t>(1, steps / 10)),
      terminal_(obeys_sequences(STDOUT_FILENO)),
      next_(Clock::now()) {
  if (!terminal_) return;
  glyphs_ = glyphs_of_terminal();
  clear_line_at_crash();
}

Progress::~Progress() {
  if (terminal_) show_bottom_line(STDOUT_FILENO, "");
}

void Progress::line(std::string_view line) {
  ++lines_;
  if (!terminal_) {
    if (label_.empty()) {
      fmt::print("{}\n", line);
    } else if (lines_ == 1 || lines_ % every_ == 0) {
      fmt::print("{:<{}} {}\n", label_, width_, line);
    }
    std::fflush(stdout);
    return;
  }
  last_line_ = line;
  if (!label_.empty()) return;
  const AboveBottomLine above;
  fmt::print("{}\n", fit_console_line(line, columns_of_terminal()));
  std::fflush(stdout);
}

void Progress::step(const train::StepProgress& at) {
  step({.step = at.step,
        .steps = at.steps,
        .loss = at.loss,
        .tokens_per_s = at.tokens_per_s,
        .worker = at.worker,
        .eta = std::isnan(at.eta_s) ? "" : telemetry::format_duration(at.eta_s)});
}

void Progress::step(LiveStep at) {
  if (!terminal_) return;
  if (std::isfinite(at.tokens_per_s)) rate_ = std::isnan(rate_) ? at.tokens_per_s : rate_ + kNewest * (at.tokens_per_s - rate_);
  if (losses_.size() == kLosses) losses_.erase(losses_.begin());
  losses_.push_back(at.loss);
  const Clock::time_point now = Clock::now();
  if (now < next_ || in_background()) return;
  next_ = now + kBetweenDraws;
  at.label = label_;
  at.tokens_per_s = rate_;
  show_bottom_line(STDOUT_FILENO, live_text(at, losses_, columns_of_terminal(), glyphs_));
}

void Progress::end() {
  if (!terminal_) return;
  show_bottom_line(STDOUT_FILENO, "");
  if (label_.empty() || last_line_.empty()) return;
  const std::string label = fmt::format("{:<{}} ", label_, width_);
  fmt::print("{}{}\n", label, fit_console_line(last_line_, columns_of_terminal() - static_cast<int>(label.size())));
  std::fflush(stdout);
}

}  // namespace octet::app

#include "octet/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "octet/base/bottom_line.h"
#include "octet/base/utc.h"
#include "octet/base/visible.h"

namespace octet {
namespace {
std::atomic<Log> printed{Log::all};
std::atomic<LogTime> time_of_lines{LogTime::none};

std::string time_text() {
  if (time_of_lines.load(std::memory_order_relaxed) == LogTime::none) return "";
  return utc_now(::isatty(STDERR_FILENO) != 0 ? "%H:%M:%SZ " : "%Y-%m-%dT%H:%M:%SZ ");
}

void write_line(std::string_view prefix, std::string_view line) {
  std::string text = time_text();
  text.append(prefix).append(printable(line)).push_back('\n');  // a name in it may have line feeds
  const AboveBottomLine above;
  std::fwrite(text.data(), 1, text.size(), stderr);  // one write: lines of several threads do not mix
}
}  // namespace

void log_info(std::string_view line) {
  if (printed.load(std::memory_order_relaxed) == Log::all) write_line("", line);
}
void log_warning(std::string_view line) { write_line("warning: ", line); }
void log_shared_warning(std::string_view line) {
  if (printed.load(std::memory_order_relaxed) != Log::own_warnings) log_warning(line);
}
void set_log(Log log) { printed.store(log, std::memory_order_relaxed); }
void set_log_time(LogTime time) { time_of_lines.store(time, std::memory_order_relaxed); }

}  // namespace octet

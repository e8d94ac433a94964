#include "octet/base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

#include "octet/base/bottom_line.h"

namespace octet {
namespace {
std::atomic<Log> printed{Log::all};

void write_line(std::string_view prefix, std::string_view line) {
  std::string text(prefix);
  text.append(line).push_back('\n');
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

}  // namespace octet

#include "octet/base/start_thread.h"

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"

namespace octet {
namespace {
constexpr int kPerProcessor = 4;

std::string reason(std::string_view what, const std::system_error& error) {
  return concat("cannot start ", what, ": ", error.code().message());
}
constexpr const char* kRemedy = "take fewer threads, or raise the limits of processes (ulimit -u) and memory (ulimit -v)";
}  // namespace

void fail_to_start(std::string_view what, const std::system_error& error) {
  fail(ExitCode::internal, reason(what, error), "; ", kRemedy);
}

void warn_of_foreground(std::string_view what, const std::system_error& error) {
  log_warning(concat(reason(what, error), "; training waits until its work is done; ", kRemedy));
}

int most_threads() { return kPerProcessor * available_cores(); }

void check_threads(std::string_view name, int count) {
  demand(count <= most_threads(), ExitCode::config, name, " = ", count, ": must be at most ", most_threads(), ", which is ",
         kPerProcessor, " for each of the ", available_cores(), " processors of this process");
}

}  // namespace octet

#include "octet/base/start_thread.h"

#include "octet/base/require.h"
#include "octet/base/threads.h"

namespace octet {
namespace {
constexpr int kPerProcessor = 4;
}  // namespace

void fail_to_start(std::string_view what, const std::system_error& error) {
  fail(ExitCode::internal, "cannot start ", what, ": ", error.code().message(),
       "; take fewer threads, or raise the limits of processes (ulimit -u) and memory (ulimit -v)");
}

int most_threads() { return kPerProcessor * available_cores(); }

void check_threads(std::string_view name, int count) {
  demand(count <= most_threads(), ExitCode::config, name, " = ", count, ": must be at most ", most_threads(), ", which is ",
         kPerProcessor, " for each of the ", available_cores(), " processors of this process");
}

}  // namespace octet

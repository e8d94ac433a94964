#include "octet/base/system_call.h"

#include <cerrno>
#include <cstring>

namespace octet {

void fail_errno(ExitCode code, std::string_view what) {
  const int error = errno;
  fail(code, what, ": ", std::strerror(error));
}

void fail_errno(ExitCode code, const std::filesystem::path& path, std::string_view what) {
  const int error = errno;
  fail(code, path.string(), ": ", what, ": ", std::strerror(error));
}

}  // namespace octet

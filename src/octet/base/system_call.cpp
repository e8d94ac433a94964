#include "octet/base/system_call.h"

#include <cerrno>
#include <cstring>

namespace octet {

bool SystemError::not_there() const { return number_ == ENOENT || number_ == ENOTDIR; }

bool SystemError::may_pass() const { return number_ == EIO || number_ == ESTALE || number_ == EINTR || number_ == ETIMEDOUT; }

void fail_errno(ExitCode code, std::string_view what) {
  const int number = errno;
  throw SystemError(code, concat(what, ": ", std::strerror(number)), number);
}

void fail_errno(ExitCode code, const std::filesystem::path& path, std::string_view what) {
  const int number = errno;
  throw SystemError(code, concat(path.string(), ": ", what, what.empty() ? "" : ": ", std::strerror(number)), number);
}

}  // namespace octet

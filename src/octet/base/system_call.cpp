#include "octet/base/system_call.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace octet {

bool SystemError::not_there() const { return number_ == ENOENT || number_ == ENOTDIR; }

bool SystemError::may_pass() const { return number_ == EIO || number_ == ESTALE || number_ == EINTR || number_ == ETIMEDOUT; }

bool SystemError::path_at_fault() const {
  constexpr int kNumbers[] = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, EISDIR, EEXIST, EINVAL, ELOOP, ENAMETOOLONG};
  return std::find(std::begin(kNumbers), std::end(kNumbers), number_) != std::end(kNumbers);
}

void fail_errno(ExitCode code, std::string_view what) {
  const int number = errno;
  throw SystemError(code, concat(what, ": ", std::strerror(number)), number);
}

void fail_errno(ExitCode code, const std::filesystem::path& path, std::string_view what) {
  const int number = errno;
  throw SystemError(code, concat(path.string(), ": ", what, what.empty() ? "" : ": ", std::strerror(number)), number);
}

void fail_again(const Error& error, const std::string& message) {
  if (const auto* system = dynamic_cast<const SystemError*>(&error)) throw SystemError(error.code(), message, system->number());
  throw Error(error.code(), message);
}

}  // namespace octet

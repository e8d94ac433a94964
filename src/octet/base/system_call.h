// Errors of system calls. Test the result of a call in a statement of its own and then call one of these:
//     if (::fsync(fd) != 0) fail_errno(ExitCode::internal, path, "cannot flush to disk");
// The arguments of one call are evaluated in any order: in demand(::fsync(fd) == 0, ..., std::strerror(errno)) the reason may be read
// before fsync fails.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "octet/base/require.h"

namespace octet {

// The system refused a call. The number tells a file that is not there from one that cannot be read now.
class SystemError : public Error {
 public:
  SystemError(ExitCode code, const std::string& message, int number) : Error(code, message), number_(number) {}
  int number() const { return number_; }  // a value of errno
  // The file, or a folder on the way to it, does not exist.
  bool not_there() const;
  // The reason may go away by itself, as on a file server that is restarted: EIO, ESTALE, EINTR, ETIMEDOUT.
  bool may_pass() const;
  // The system will never create this file or folder: it is read-only, has no such folder, or belongs to somebody else.
  bool path_at_fault() const;

 private:
  int number_;
};

// Throws SystemError "WHAT: REASON"; the reason is errno.
[[noreturn]] void fail_errno(ExitCode code, std::string_view what);
// Throws SystemError "PATH: WHAT: REASON", or "PATH: REASON" if `what` is empty.
[[noreturn]] void fail_errno(ExitCode code, const std::filesystem::path& path, std::string_view what);

// Throws `error` again with another message. A SystemError keeps its number.
[[noreturn]] void fail_again(const Error& error, const std::string& message);

// Calls `create`, which creates an output that the user has named. If the path is at fault, the error gets ExitCode::config, because
// another path helps and a second try does not.
template <class F>
decltype(auto) create_output(F&& create) {
  try {
    return create();
  } catch (const SystemError& error) {
    if (error.path_at_fault()) throw SystemError(ExitCode::config, error.what(), error.number());
    throw;
  }
}

}  // namespace octet

// Errors of system calls. Test the result of a call in a statement of its own and then call one of these:
//     if (::fsync(fd) != 0) fail_errno(ExitCode::internal, path, "cannot flush to disk");
// The arguments of one call are evaluated in any order: in demand(::fsync(fd) == 0, ..., std::strerror(errno)) the reason may be read
// before fsync fails.
#pragma once

#include <filesystem>
#include <string_view>

#include "octet/base/require.h"

namespace octet {

// Throws Error "WHAT: REASON"; the reason is errno.
[[noreturn]] void fail_errno(ExitCode code, std::string_view what);
// Throws Error "PATH: WHAT: REASON".
[[noreturn]] void fail_errno(ExitCode code, const std::filesystem::path& path, std::string_view what);

}  // namespace octet

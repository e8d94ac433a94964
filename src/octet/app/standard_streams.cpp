#include "octet/app/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "octet/base/require.h"

namespace octet::app {

void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest number that is free is this one. The wrong way round, so that nothing is read and nothing is lost unsaid.
    const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    demand(opened == stream, ExitCode::internal, "/dev/null: cannot open: ", std::strerror(errno));
  }
}

}  // namespace octet::app

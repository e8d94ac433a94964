#include "octet/app/local_ranks.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "octet/base/require.h"

namespace octet::app {
namespace {

// A port of this machine that nobody has at this moment.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = fd >= 0 && ::bind(fd, generic, size) == 0 && ::getsockname(fd, generic, &size) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  demand(found, ExitCode::internal, "no free port on 127.0.0.1: ", std::strerror(error));
  return ntohs(address.sin_port);
}

}  // namespace

LocalToken::LocalToken() {
  if (!comm::find_token(&::getenv).is_secret()) file_.emplace();
}

std::string LocalToken::variable() const { return file_ ? "OCTET_TOKEN_FILE=" + file_->path().string() : ""; }

ProcessGroupOptions local_ranks(int ranks, const std::vector<std::string>& command, const LocalToken& token) {
  ProcessGroupOptions options{.program = "/proc/self/exe", .arguments = {"octet"}};
  options.arguments.insert(options.arguments.end(), command.begin(), command.end());
  const int port = free_port();
  for (int rank = 0; rank < ranks; ++rank) {
    options.environment.push_back({fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", ranks),
                                   fmt::format("LOCAL_RANK={}", rank), fmt::format("LOCAL_WORLD_SIZE={}", ranks),
                                   "MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", port)});
    if (!token.variable().empty()) options.environment.back().push_back(token.variable());
  }
  return options;
}

}  // namespace octet::app

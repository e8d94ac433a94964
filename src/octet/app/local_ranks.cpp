#include "octet/app/local_ranks.h"

#include <fmt/format.h>

#include <cstdlib>

#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/comm/socket.h"

namespace octet::app {

namespace {

comm::Token token_in(const std::string& path) {
  return comm::find_token([&](const char* name) { return name == std::string_view(comm::kTokenFile) ? path.c_str() : nullptr; });
}

}  // namespace

LocalToken::LocalToken() : token_(comm::find_token(&::getenv)) {
  if (!token_.is_secret()) token_ = comm::Token::random();
  memory_.emplace(token_);
}

LocalToken::LocalToken(const std::filesystem::path& file) : token_(comm::find_token(&::getenv)) {
  if (!token_.is_secret() && !file.empty()) {
    make_folders(file.parent_path());
    comm::make_token_file(file);
    token_ = token_in(file.string());
  }
  if (token_.is_secret()) memory_.emplace(token_);
}

ProcessGroupOptions local_ranks(const RanksHere& here, const std::vector<std::string>& command, const std::string& token) {
  ProcessGroupOptions options{
      .program = "/proc/self/exe", .arguments = {"octet"}, .trains = command.front() == "train", .first_rank = here.first};
  options.arguments.insert(options.arguments.end(), command.begin(), command.end());
  for (int local = 0; local < here.count; ++local) {
    options.environment.push_back({fmt::format("RANK={}", here.first + local), fmt::format("WORLD_SIZE={}", here.all),
                                   fmt::format("LOCAL_RANK={}", local), fmt::format("LOCAL_WORLD_SIZE={}", here.count),
                                   fmt::format("MASTER_ADDR={}", here.host), fmt::format("MASTER_PORT={}", here.port)});
    if (!token.empty()) options.environment.back().push_back(token);
  }
  return options;
}

int free_port(const std::string& host) {
  try {
    return comm::port_of(comm::listen_at(host, 0, "octet launch"));
  } catch (const Error& error) {
    fail(ExitCode::internal, error.what());
  }
}

}  // namespace octet::app

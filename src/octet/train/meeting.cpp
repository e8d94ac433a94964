#include "octet/train/meeting.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/comm/socket.h"
#include "octet/train/version.h"

namespace octet::train {
namespace {

// Whether the text of a host is a loopback address. A host's own name may be one only on that host.
bool names_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0; }

// The host of rank 0, as this rank reaches it or listens there.
std::string host_of(const comm::RankEnvironment& where, const std::string& interface) {
  demand(where.host != "0.0.0.0" && where.host != "::", ExitCode::config, "MASTER_ADDR=", where.host,
         ": means all addresses of a machine; give rank 0's own");
  const bool here = where.rank == 0 || comm::is_loopback(where.host);  // rank 0 is on this machine
  if (here && interface != "auto") return comm::address_on(interface);
  demand(where.rank > 0 || names_loopback(where.host) || !comm::is_loopback(where.host), ExitCode::config, where.host,
         ", the host of rank 0, is a loopback address on this machine, which no other machine can reach. Set comm.interface to the "
         "network of the job (10.0.0.0/8, eth0), or MASTER_ADDR=127.0.0.1 if all ranks are here");
  return where.host;
}

}  // namespace

comm::Rendezvous::Options meeting_options(const comm::RankEnvironment& where, const CommConfig& config) {
  const std::string host = host_of(where, config.interface);
  if (!where.token.is_secret() && !comm::is_loopback(host)) {
    demand(config.token == "none", ExitCode::config, "rank 0 is at ", host,
           ", which is not a loopback address, so the ranks need a token. Make one with `", comm::kMakeToken,
           "`, give it to every rank with OCTET_TOKEN_FILE=token, and keep it secret");
    if (where.rank == 0) {
      log_warning(concat("comm.token = \"none\": anybody who can reach ", host, " can join this run, read it, and end it"));
    }
  }
  return {.rank = where.rank,
          .size = where.size,
          .host = host,
          .port = where.port,
          .token = where.token,
          .version = version_text(),
          .join_timeout_s = config.join_timeout_s,
          .timeout_s = config.timeout_s};
}

std::string address_for_groups(const comm::Rendezvous& rendezvous, const CommConfig& config) {
  return config.interface == "auto" ? rendezvous.address() : comm::address_on(config.interface);
}

void use_interface_for_nccl(const CommConfig& config) {
  if (config.interface == "auto" || config.interface.find('/') != std::string::npos) return;
  // NCCL takes a bare name as a prefix; "=" asks for this name alone.
  ::setenv("NCCL_SOCKET_IFNAME", ("=" + config.interface).c_str(), 0);
}

std::string variables_of_nccl(const char* const* environment) {
  std::vector<std::string> found;
  for (; *environment; ++environment) {
    if (std::string_view(*environment).starts_with("NCCL_")) found.emplace_back(*environment);
  }
  std::sort(found.begin(), found.end());
  return joined(found);
}

}  // namespace octet::train

// Where the ranks of a run meet and who may join them: what the launcher says, combined with [comm].
#pragma once

#include <string>

#include "octet/comm/environment.h"
#include "octet/comm/rendezvous.h"
#include "octet/train/config.h"

namespace octet::train {

// Rank 0 listens on one address alone: where.host, or that of comm.interface. Without a token it must be a loopback address,
// unless comm.token is "none", which rank 0 warns of. Throws Error{config} with the reason and what to do.
comm::Rendezvous::Options meeting_options(const comm::RankEnvironment& where, const CommConfig& config);

// The address of this machine that Gloo connects to: that of comm.interface, or the one from which this rank reaches rank 0.
std::string address_for_groups(const comm::Rendezvous& rendezvous, const CommConfig& config);

// Sets NCCL_SOCKET_IFNAME to comm.interface for the communicators that this process makes later. A variable that is set stays.
// So does NCCL's own choice if comm.interface is "auto" or a range of addresses.
void use_interface_for_nccl(const CommConfig& config);

}  // namespace octet::train

// Decides where the ranks of a run meet and which processes may join: combines the launcher's environment with [comm].
#pragma once

#include <string>

#include "octet/comm/environment.h"
#include "octet/comm/rendezvous.h"
#include "octet/train/config.h"

namespace octet::train {

// Returns the options of the rendezvous. Rank 0 listens on only one address: where.host, or that of comm.interface. Without a
// token it must be a loopback address, unless comm.token is "none", about which rank 0 warns. Throws Error{config} with the
// reason and what to do.
comm::Rendezvous::Options meeting_options(const comm::RankEnvironment& where, const CommConfig& config);

// Returns the address of this machine for Gloo: that of comm.interface, or the one from which this rank reaches rank 0.
std::string address_for_groups(const comm::Rendezvous& rendezvous, const CommConfig& config);

// Sets NCCL_SOCKET_IFNAME to comm.interface for the communicators that this process makes later. Does nothing if the variable
// is set already, or if comm.interface is "auto" or a range of addresses.
void use_interface_for_nccl(const CommConfig& config);
// Returns the variables of an environment that NCCL reads, such as "NCCL_DEBUG=INFO, NCCL_IB_DISABLE=1". "" if there are none.
std::string variables_of_nccl(const char* const* environment);

}  // namespace octet::train

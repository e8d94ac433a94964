// Collectives between processes, or threads, on the CPUs of one host: Gloo over TCP.
#pragma once

#include <memory>

#include "octet/comm/transport.h"

namespace octet::comm {

// Returns when all ranks are connected; from then on the process ignores SIGPIPE. Throws Error{peer} when they are not within the timeout.
std::unique_ptr<Group> make_gloo_group(const GroupOptions& options);

}  // namespace octet::comm

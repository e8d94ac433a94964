// Collectives between processes, or threads, on the CPUs of one host: Gloo over TCP. A connection that breaks, a rank that is
// lost, or an operation that does not end within the timeout ends the group: the operation, or the next one, throws Error{peer}.
#pragma once

#include <memory>

#include "octet/comm/transport.h"

namespace octet::comm {

// Returns when all ranks are connected; from then on the process ignores SIGPIPE. Throws Error{peer} when they are not within the timeout.
std::unique_ptr<Group> make_gloo_group(const GroupOptions& options);

}  // namespace octet::comm

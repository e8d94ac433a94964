// Collectives between processes or threads on CPUs, with Gloo over TCP. If a connection breaks, a rank is lost or an operation
// does not end within the timeout, the group fails: that operation or the next one throws Error{peer}.
#pragma once

#include <memory>

#include "octet/comm/transport.h"

namespace octet::comm {

// Returns when all ranks are connected. Throws Error{peer} if they do not connect within the timeout, or if a rank is lost
// before. Makes the process ignore SIGPIPE.
std::unique_ptr<Group> make_gloo_group(const GroupOptions& options);

}  // namespace octet::comm

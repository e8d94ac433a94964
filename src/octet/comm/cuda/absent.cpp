// Replaces the NCCL sources if the CUDA backend is not built.
#include "octet/comm/multicast.h"
#include "octet/comm/nccl.h"

namespace octet::comm {

std::unique_ptr<Group> make_nccl_group(Device&, const GroupOptions& options) {
  fail(ExitCode::config, "group ", options.name, ": this build of octet has no CUDA backend, so no NCCL");
}

std::string nccl_version() { return {}; }

bool can_use_multicast(int) { return false; }

}  // namespace octet::comm

#include "octet/comm/transport.h"

#include "octet/comm/gloo.h"
#include "octet/comm/nccl.h"

namespace octet::comm {

std::unique_ptr<Group> make_group(Device& device, const GroupOptions& options) {
  return device.kind() == DeviceKind::cuda ? make_nccl_group(device, options) : make_gloo_group(options);
}

}  // namespace octet::comm

#include "octet/comm/transport.h"

#include "octet/base/require.h"
#include "octet/comm/gloo.h"
#include "octet/comm/nccl.h"

namespace octet::comm {

std::string cause_of(const GroupOptions& options, const std::string& reason) {
  const std::string lost = options.lost ? options.lost() : "", blamed = options.blame ? options.blame() : "";
  const std::string& cause = lost.empty() ? reason : lost;
  return blamed.empty() ? cause : blamed.find(cause) != std::string::npos ? blamed : concat(blamed, "; ", cause);
}

std::unique_ptr<Group> make_group(Device& device, const GroupOptions& options) {
  return device.kind() == DeviceKind::cuda ? make_nccl_group(device, options) : make_gloo_group(options);
}

}  // namespace octet::comm

// Ranks as threads on a mesh.
#pragma once

#include <algorithm>

#include "octet/comm/gloo.h"
#include "octet/comm/nccl.h"
#include "octet/parallel/groups.h"
#include "support/ranks.h"

namespace octet::testing {

// Of a rank with this device: over NCCL on GPUs, one a rank, else over Gloo.
inline parallel::Groups thread_groups(ThreadStore& store, const parallel::Mesh& mesh, int rank, Device& device) {
  return parallel::make_groups(
      mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) -> std::unique_ptr<comm::Group> {
        const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
        const int size = static_cast<int>(ranks.size());
        const auto set = [&store](const std::string& key, std::string_view value) { store.set(key, value); };
        const auto get = [&store](const std::string& key) { return store.get(key); };
        if (device.kind() == DeviceKind::cuda) {
          return comm::make_nccl_group(
              device, {.name = name, .rank = place, .size = size, .set = set, .get = get, .blame = {}, .lost = {}});
        }
        return comm::make_gloo_group({.name = name, .rank = place, .size = size, .set = set, .get = get, .blame = {}});
      });
}

}  // namespace octet::testing

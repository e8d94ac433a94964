// Ranks as threads on a mesh.
#pragma once

#include <algorithm>

#include "octet/comm/transport.h"
#include "octet/parallel/groups.h"
#include "support/ranks.h"

namespace octet::testing {

// Of a rank with this device: over NCCL on GPUs, one a rank, else over Gloo.
inline parallel::Groups thread_groups(ThreadStore& store, const parallel::Mesh& mesh, int rank, Device& device) {
  return parallel::make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) {
    return comm::make_group(device, {.name = name,
                                     .rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()),
                                     .size = static_cast<int>(ranks.size()),
                                     .set = [&store](const std::string& key, std::string_view value) { store.set(key, value); },
                                     .get = [&store](const std::string& key) { return store.get(key); }});
  });
}

}  // namespace octet::testing

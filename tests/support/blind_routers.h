// Sets the weights of all routers of a mixture of experts to zero. All tokens then go to the first experts, and the others get
// none.
#pragma once

#include "octet/train/engine.h"

namespace octet::testing {

inline void blind_routers(train::Engine& engine) {
  for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
    if (!p.spec.name.ends_with("block_sparse_moe.gate.weight")) continue;
    engine.stream().zero(p.primary().data, p.primary().bytes());
  }
  engine.refresh();
}

}  // namespace octet::testing

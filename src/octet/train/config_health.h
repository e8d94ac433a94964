// [health]: what a run does to notice hardware that computes or keeps wrong bits. Part of config.h.
#pragma once

#include <cstdint>

#include "octet/base/fields.h"

namespace octet::train {

struct HealthConfig {
  std::int64_t replicas_every = 10;
};
template <FieldsOf<HealthConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "replicas_every",
              .help = "Steps between comparisons of the state that several ranks must hold alike (parallel.replicate, "
                      "parallel.tensor); every save compares first, too. 0 never compares.",
              .value = "steps",
              .range = kNotNegative},
        c.replicas_every);
}

}  // namespace octet::train

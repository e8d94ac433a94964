// [health]: what a run does to notice hardware that computes or keeps wrong bits, or that is slow. Part of config.h.
#pragma once

#include <cstdint>

#include "octet/base/fields.h"

namespace octet::train {

struct HealthConfig {
  std::int64_t replicas_every = 10;
  std::int64_t sdc_every = 0;
  double straggler = 0.85;
};
template <FieldsOf<HealthConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "replicas_every",
              .help = "Steps between comparisons of the state that several ranks must have in common (parallel.replicate, "
                      "parallel.tensor). Every save also compares first. 0 never compares.",
              .value = "steps",
              .range = kNotNegative},
        c.replicas_every);
  visit(Field{.name = "sdc_every",
              .help = "Steps between checks of what ranks compute: all data-parallel ranks compute the same micro-batch and "
                      "compare the bits. Every save also does so first. A check costs a micro-batch. On a GPU without "
                      "run.deterministic only the forward pass is compared. 0 never checks.",
              .value = "steps",
              .range = kNotNegative},
        c.sdc_every);
  visit(Field{.name = "straggler",
              .help = "A rank is called a straggler if it computes at less than this share of the median rank's speed in five "
                      "logged intervals in a row (metrics.log_freq). 0 turns this off.",
              .range = {.min = 0, .max = 1, .below_max = true}},
        c.straggler);
}

}  // namespace octet::train

// [lora]: adapters of a frozen model. Part of config.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/fields.h"

namespace octet::train {

struct LoraConfig {
  std::int64_t rank = 16;
  double alpha = 32;
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false;
  double dropout = 0.0;
  std::string init_from;
};
template <FieldsOf<LoraConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "rank",
              .help = "Rank of each adapter; at most the smaller dim of the linear.", .range = {.min = 1, .max = 1 << 20}},
        c.rank);
  visit(
      Field{
          .name = "alpha", .help = "Scale of the adapters: their output is multiplied by alpha / rank.", .range = kPositiveFp32},
      c.alpha);
  visit(Field{.name = "targets",
              .help = "Linears with an adapter, by the ends of their Hugging Face names, such as q_proj; all-linear is every "
                      "linear of the blocks, including those of experts.",
              .value = "NAME",
              .single = true},
        c.targets);
  visit(Field{.name = "rslora", .help = "Multiplies the output by alpha / sqrt(rank) instead."}, c.rslora);
  visit(Field{.name = "dropout",
              .help = "Probability with which an element of an adapter's input is dropped in training.",
              .range = {.min = 0, .max = 1, .below_max = true}},
        c.dropout);
  visit(Field{.name = "init_from",
              .help = "Adapter directory of PEFT to start from, or s3://BUCKET/PREFIX; if not set, adapters start without effect.",
              .value = "DIR",
              .s3 = true},
        c.init_from);
}

}  // namespace octet::train

// [evaluation]: held-out loss during a run, and what it decides. Part of config.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/fields.h"

namespace octet::train {

struct EvaluationSourceConfig {
  std::string name;
  std::string path;
};
template <FieldsOf<EvaluationSourceConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "name",
              .help =
                  "Name of the held-out set in metrics, on the console and in reports: letters, digits, \"-\", \"_\" and \".\"."},
        c.name);
  visit(Field{.name = "path",
              .help = "Prefix of a corpus that `octet data prepare` wrote, or s3://BUCKET/PREFIX; all of it is held out.",
              .value = "PREFIX",
              .s3 = true},
        c.path);
}

struct EvaluationConfig {
  std::int64_t interval = 100;
  std::int64_t sequences = 64;
  bool keep_best = false;
  std::int64_t patience = 0;
  std::string decides;
  std::vector<EvaluationSourceConfig> source;
};
template <FieldsOf<EvaluationConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "interval",
              .help = "Steps between evaluations; 0 evaluates after the last step only.",
              .value = "steps",
              .range = kNotNegative},
        c.interval);
  visit(Field{.name = "sequences",
              .help = "Number of sequences that an evaluation reads from each held-out set. A smaller set is read once; in a "
                      "larger one, several sources are drawn by weight.",
              .value = "sequences",
              .range = kNotNegative},
        c.sequences);
  visit(
      Field{.name = "keep_best",
            .help =
                "Saves a checkpoint when an evaluation is the best so far, and keeps the best one beside those of [checkpoint]."},
      c.keep_best);
  visit(Field{.name = "patience",
              .help = "Evaluations in a row without a new best after which the run ends with code 0; 0 never ends it.",
              .value = "evaluations",
              .range = kNotNegative},
        c.patience);
  visit(Field{.name = "decides",
              .help = "Name of the held-out set whose loss is eval_loss and decides what is best; the first one if not set.",
              .value = "NAME"},
        c.decides);
  visit(Field{.name = "source",
              .help = "One [[evaluation.source]] table for each held-out set; without any, the held-out part of data.source is "
                      "evaluated."},
        c.source);
}

}  // namespace octet::train

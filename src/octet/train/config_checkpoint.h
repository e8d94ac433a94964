// [checkpoint]: what a run saves, where, and what it goes on from. Part of config.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/fields.h"

namespace octet::train {

struct CheckpointConfig {
  std::int64_t interval = 500;
  std::int64_t keep_latest_k = 3;
  std::int64_t keep_every = 0;
  std::string resume = "auto";
  std::vector<std::string> allow;
  bool async = true;
  std::int64_t max_failed_saves = 3;
  double retry_s = 60;
  std::string memory_every = "auto";
  double mtbf_hours = 8000;
  std::int64_t replicas = 1;
  std::string local_dir;  // "" when not used
  std::string remote;  // "" when not used
};
template <FieldsOf<CheckpointConfig> C>
void visit_fields(C& c, auto&& visit) {
  visit(Field{.name = "interval",
              .help = "Steps between checkpoints; 0 saves at the end only.", .value = "steps", .range = kNotNegative},
        c.interval);
  visit(Field{.name = "keep_latest_k",
              .help = "Number of checkpoints to keep; 0 keeps all.", .value = "checkpoints", .range = {.min = 0, .max = 1e12}},
        c.keep_latest_k);
  visit(Field{.name = "keep_every",
              .help = "Also keeps the checkpoints of steps that are multiples of this, for ever; 0 keeps none.",
              .value = "steps", .range = kNotNegative},
        c.keep_every);
  visit(Field{.name = "resume",
              .help = "auto continues from the newest checkpoint of run.output_dir, none starts anew; or the folder of a checkpoint or "
                      "a run, which may be s3://BUCKET/PREFIX.",
              .value = "DIR",
              .s3 = true},
        c.resume);
  visit(Field{.name = "allow",
              .help = "Changes that are permitted when the run continues from a checkpoint. A change that is not listed is "
                      "refused.",
              .choices = "recipe | seed | seq_len | batch | data | model"},
        c.allow);
  visit(Field{.name = "async",
              .help = "Copies and writes a checkpoint while the next steps run; takes host memory for a copy of the state."},
        c.async);
  visit(Field{.name = "max_failed_saves",
              .help = "This many failed saves in a row end the run with code 1.", .value = "saves", .range = kAtLeastOne},
        c.max_failed_saves);
  visit(Field{.name = "retry_s",
              .help = "How long reads of checkpoints and corpora are retried after an error that may pass, such as EIO.",
              .value = "seconds",
              .range = {.min = 0, .max = 31536000}},
        c.retry_s);
  visit(Field{.name = "memory_every",
              .help = "Steps between snapshots in the memory of `octet launch --supervise`, from which a run continues after "
                      "it has lost ranks. 0 takes none; auto chooses from checkpoint.mtbf_hours and what a snapshot costs.",
              .value = "auto | STEPS",
              .number = true},
        c.memory_every);
  visit(Field{.name = "mtbf_hours",
              .help = "Mean time between two failures of one GPU, or on CPUs of one rank, for memory_every = \"auto\". 0: not known; "
                      "auto then takes as many snapshots as cost 1% of the time.",
              .value = "hours",
              .range = {.min = 0, .max = 1e12}},
        c.mtbf_hours);
  visit(Field{.name = "replicas",
              .help = "Copies of each such snapshot on other hosts, so that a run on several hosts continues from memory "
                      "after it has lost one of them.",
              .value = "0 | 1",
              .range = {.min = 0, .max = 1}},
        c.replicas);
  visit(Field{.name = "local_dir",
              .help = "Folder on each host's own disk. Every snapshot in memory is also copied there, so that a run survives "
                      "a restart of all its hosts. If not set, snapshots stay in memory only.",
              .value = "DIR"},
        c.local_dir);
  visit(Field{.name = "remote",
              .help = "Bucket to which every checkpoint is copied while training goes on. A run fetches its newest checkpoint from "
                      "there if run.output_dir has an older one or none. Octet deletes nothing there. If not set, checkpoints are not "
                      "copied.",
              .value = "s3://BUCKET/PREFIX"},
        c.remote);
}

}  // namespace octet::train

// Continues a run from a checkpoint with another configuration: which changes checkpoint.allow permits, and where in the data
// the run continues.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json.h"
#include "octet/checkpoint/reader.h"
#include "octet/data/dataset.h"
#include "octet/train/config.h"

namespace octet::train {

// A difference that checkpoint.allow must permit.
struct Change {
  std::string_view allow;  // the name in checkpoint.allow
  Difference difference;
};

// Returns the differences between a checkpoint's run and this one that checkpoint.allow must permit, in the order of its
// choices. `meta` is the checkpoint's. "recipe" covers the settings of [precision] that change numbers, if the recipe is
// another or FP8, and the dtypes of weights and moments. "data" covers the text that is trained on; a corpus that has only
// moved, or is held out as a whole, is no change. Throws Error{data} that names `checkpoint` if weights have other shapes.
std::vector<Change> changes_since(const nlohmann::json& meta, const Config& config, const data::Dataset& dataset,
                                  const std::string& checkpoint);

bool changes(const std::vector<Change>& all, std::string_view allow);
// Whether the scales of the checkpoint cannot be used, because a setting of [precision] has changed.
bool changes_scales(const std::vector<Change>& all);
// Whether losses after the changes cannot be compared with losses before them. They can if only precision.skip has changed,
// which anomaly.remedy does in a rollback.
bool changes_losses(const std::vector<Change>& all);

// The place from which a run continues. The default is the beginning of a new run.
struct Continuation {
  std::int64_t step = 0;                      // of the checkpoint
  std::vector<Change> changes = {};           // all allowed
  std::vector<data::Stretch> stretches = {};  // the samples that were used in another order than the present one
  std::int64_t cursor = 0;                    // samples that were used in the present order
  nlohmann::json record =
      nlohmann::json::array();             // the changes of the whole run, {"step", "key", "before", "now"}, for checkpoints
  std::optional<std::int64_t> steps = {};  // of the whole run, if training.epochs has set it before
  bool counts_again = false;               // training.epochs counts the steps that are left anew
};

// Tells the dataset which samples were used, and returns where the run continues. Call it once for a dataset. Throws
// Error{config}, in one line with the values and what to set, if a change is not permitted, and Error{data} if weights have
// other shapes.
Continuation continue_from(const checkpoint::Reader& reader, const Config& config, data::Dataset& dataset);

// For a command that only computes with the weights of a checkpoint. Throws like continue_from() if the architecture or the
// adapters have changed.
void check_model(const checkpoint::Reader& reader, const Config& config);

// For a dry run: returns the error with which a run would refuse to continue from the newest checkpoint of run.output_dir, or
// to begin a new run in the same folder, or "". Compares settings, model and adapters, but neither corpora nor the checkpoint's
// data.
std::string why_not_continued(const Config& config);

// Returns a line for each name of checkpoint.allow that permitted a change: it says what the change means for the run.
std::vector<std::string> consequences(const Continuation& continuation, const data::Dataset& dataset);

// "step 20: precision.recipe fp8_delayed -> bf16; step 40: run.seed 42 -> 7", for run.json.
std::string text_of_record(const nlohmann::json& record);

// Returns the part of a checkpoint's meta that continue_from() reads back.
nlohmann::json to_json(const std::vector<data::Stretch>& stretches);

// Returns the number of steps of the whole run. If training.epochs sets it and the batch, seq_len, data or epochs have changed,
// the samples that remain of the epochs are divided by the present batch.
std::int64_t steps_of(const Config& config, const data::Dataset& dataset, const Continuation& continuation);

}  // namespace octet::train

// The numbers of a comparison, computed once; the console table, report.json and report.html all show these.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/report/run.h"

namespace octet::report {

// A number that the run does not give is NaN.
struct Summary {
  std::string name, recipe, repeat_of, device;
  std::int64_t processes = 1;              // ranks
  std::int64_t steps = 0;                  // the last step logged
  std::int64_t tokens = 0;                 // seen by then
  std::int64_t skipped_steps = 0;
  double tokens_per_s_per_process = 0;     // median over the lines after the first tenth of the steps
  double tflops_per_process = 0;           // likewise
  double mfu = 0;                          // likewise
  double memory_peak_gib = 0;              // largest
  double exposed_pct = 0;                  // of the steps' time in which computation waited for communication; median as above
  double final_loss = 0;                   // of the last step logged
  double mean_loss = 0;                    // mean over the last tenth: lines with step > 0.9 * steps and a finite loss
  double eval_loss = 0;                    // the last held-out loss
  double initial_eval_loss = 0;            // that before step 1, of a run that goes on from weights
  double initial_eval_loss_bf16 = 0;       // of the same weights in BF16, where the recipe is FP8
  double saturated_pct = 0, flushed_pct = 0;  // mean over the sampled steps
  double train_time_s = 0;                 // sum of the steps' times
};
Summary summarize(const Run& run);

// Percentages against the baseline: 100 * (x / x_baseline - 1). NaN for the baseline itself and where either is unknown. Where
// the baseline was run on several numbers of ranks, a row's is the one on its own number, and NaN where there is none.
struct Row {
  Summary summary;
  std::string label;            // what tells it from the other rows: its name, "bf16 x4" where names are on several numbers of ranks
  bool is_baseline = false;
  bool is_repeat = false;
  std::optional<std::size_t> baseline;  // among the rows; its own place for a baseline
  double faster_pct = 0;        // tokens_per_s_per_process
  double final_loss_pct = 0;    // final_loss
  double mean_loss_pct = 0;     // mean_loss
  double eval_loss_pct = 0;     // eval_loss
  double initial_eval_loss_pct = 0;  // initial_eval_loss, against the run's own initial_eval_loss_bf16
  // 100 * (1 - tokens_per_s_per_process / that of the run of this name on the fewest ranks); NaN for that run itself.
  double decrease_pct = 0;
};

// How far the baseline is from itself: its repeat (the same batches, summed in another order) against it, as magnitudes.
struct Spread {
  std::string of;         // the baseline's name
  double mean_loss_pct = 0;
  double eval_loss_pct = 0;
};

struct Comparison {
  std::string baseline;   // "" when no run has that name
  bool scales = false;    // some name was run on several numbers of ranks
  std::vector<Row> rows;  // in the order given; the repeats last
  std::optional<Spread> spread;
};
// A run whose info.repeat_of is set is a repeat of that run; one repeat of the baseline gives the spread.
Comparison compare(std::span<const Run> runs, std::string_view baseline = "bf16");

// The table for a terminal, with the line about the spread; that of scaling.h where numbers of ranks are compared. Ends with a
// newline.
std::string render_text(const Comparison& comparison);
// report.json: {"baseline", "rows": [{every field of Summary and Row}], "spread"}; unknown numbers are null.
std::string render_json(const Comparison& comparison);
// Whether some run goes on from weights whose held-out loss it says: only then are the losses before step 1 shown.
bool has_initial_losses(const Comparison& comparison);
// The line about the spread, or "" when it is unknown.
std::string spread_sentence(const Comparison& comparison);

}  // namespace octet::report

// Computes the numbers of a comparison. The console table, report.json and report.html all show these numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/report/equal_loss.h"
#include "octet/report/run.h"
#include "octet/telemetry/format.h"

namespace octet::report {

// A number is NaN if the run's files do not give it.
struct Summary {
  std::string name, recipe, repeat_of, device;
  std::int64_t processes = 1;              // ranks
  std::int64_t steps = 0;                  // the last step logged
  std::int64_t tokens = 0;                 // tokens seen up to this step
  std::int64_t skipped_steps = 0;
  double tokens_per_s_per_process = 0;     // median over the lines after the first tenth of the steps
  double tflops_per_process = 0;           // median over the same lines
  double mfu = 0;                          // median over the same lines
  double memory_peak_gib = 0;              // maximum
  double exposed_pct = 0;                  // percentage of a step in which the computation waits for communication; median as above
  double bubble_pct = 0;                   // percentage of a step in which ranks wait for other pipeline stages; median as above
  double final_loss = 0;                   // loss of final_line() of run.h
  std::int64_t final_step = 0;             // the step of final_loss
  double mean_loss = 0;                    // mean over the last tenth: lines with step > 0.9 * steps and a finite loss
  double eval_loss = 0;                    // the last held-out loss
  std::int64_t eval_step = 0;              // the step of eval_loss
  telemetry::NamedNumbers eval_losses{};   // of each named held-out set, the last one
  double initial_eval_loss = 0;            // held-out loss before step 1, if the run continues from existing weights
  double initial_eval_loss_bf16 = 0;       // held-out loss of the same weights in BF16, if the recipe is FP8
  double saturated_pct = 0, flushed_pct = 0;  // means over the sampled steps
  double train_time_s = 0;                 // sum of the step times
  std::string unfinished{};                // "400 of 2,000 steps, ended with code 1"; "" if the run finished
};
Summary summarize(const Run& run);

// A run and its percentages against the baseline: 100 * (x / x_baseline - 1). A percentage is NaN for the baseline itself, and
// if either number is unknown. Percentages of losses are also NaN if the last steps of the two runs differ, because a run that
// stopped early has a higher loss whatever its recipe, if a run ends without a finite loss, or if their models, sizes of
// batches or data differ (same_job.h). Percentages of held-out losses are also NaN if the last evaluations were after different
// steps or on different text. If the comparison scales, a row is compared with the baseline on the same number of ranks, and its
// percentages are NaN if there is none.
struct Row {
  Summary summary;
  std::string label;            // the name, or name and ranks ("bf16 x4") if a name was run on several numbers of ranks
  bool is_baseline = false;
  bool is_repeat = false;
  bool has_other_length = false;  // its last step is not the last step of its baseline
  std::string other_job{};        // how its job differs from that of its baseline: "parameters and sequence length"; "" if not
  std::string other_hardware{};   // how the hardware differs from the baseline's: "device and number of ranks"; "" if not
  std::string other_batches{};    // why the same job may have seen other batches: "seed"; "" if not
  std::string other_held_out{};   // how eval_loss of the same job differs from that of its baseline besides its value; "" if not
  std::string other_precision{};  // the changes of its precision during the run; "" without any
  std::optional<std::size_t> baseline;  // index of the row's baseline; a baseline has its own index
  double faster_pct = 0;        // tokens_per_s_per_process
  double final_loss_pct = 0;    // final_loss; NaN also if it is of another step
  double mean_loss_pct = 0;     // mean_loss, of the steps that have a finite loss in both
  double eval_loss_pct = 0;     // eval_loss
  telemetry::NamedNumbers eval_losses_pct{};  // eval_losses that both have; empty if the row is not compared
  double initial_eval_loss_pct = 0;  // initial_eval_loss against initial_eval_loss_bf16 of the same run
  // 100 * (1 - x / x_fewest) for x = tokens_per_s_per_process, where x_fewest belongs to the run with the same name on the fewest ranks.
  // NaN for that run itself.
  double decrease_pct = 0;
  std::optional<EqualLoss> equal_loss{};  // against the baseline; nothing if the row is not compared

  // Whether the losses of its steps can be compared with those of its baseline.
  bool has_same_job() const { return baseline && !is_baseline && other_job.empty(); }
};

// How much the baseline differs from its repeat, which processes the same batches but sums in another order, or processes other
// batches of the same data. The percentages are magnitudes.
struct Spread {
  std::string of;         // the baseline's name
  std::string other_batches;  // Row::other_batches of the repeat
  double mean_loss_pct = 0;
  double eval_loss_pct = 0;
};

struct Comparison {
  std::string baseline;   // name of the baseline; "" if no run has the name
  bool scales = false;    // true if some name was run on several numbers of ranks
  std::vector<Row> rows;  // in the order of the runs, with the repeats at the end
  std::optional<Spread> spread;
};
// Compares the runs with the run named `baseline`. A run with info.repeat_of is a repeat of the run with that name; the first repeat of
// the baseline gives the spread.
Comparison compare(std::span<const Run> runs, std::string_view baseline = "bf16");

// The number with this name, or NaN.
double number_named(const telemetry::NamedNumbers& numbers, std::string_view name);

// Returns the table for a terminal, that of named held-out sets (held_out.h), and the sentence about the spread. If the
// comparison scales, returns render_scaling() (scaling.h). Ends with a newline.
std::string render_text(const Comparison& comparison);
// The process to which the comparison's rates refer: a GPU if every run had one.
telemetry::Worker worker_of(const Comparison& comparison);
// Returns report.json: {"baseline", "rows": [{the numbers of Summary and Row, and "equal_loss": {EqualLoss} or null}], "spread"}.
// Unknown numbers are null.
std::string render_json(const Comparison& comparison);
// Whether some run's name is not that of its recipe. Only then do tables have a column of recipes besides that of runs.
bool has_own_names(const Comparison& comparison);
// Whether some run has pipeline stages. Only then is the bubble shown.
bool has_bubbles(const Comparison& comparison);
// Whether some run has a held-out loss from before step 1. Only then are these losses shown.
bool has_initial_losses(const Comparison& comparison);
// Whether some row has a time to equal loss, known or not. Only then is it shown.
bool has_equal_losses(const Comparison& comparison);
// Format the speed-up, "1.46x", and its noise, "2.1%". An unknown number is "-".
std::string text_speedup(const std::optional<EqualLoss>& equal);
std::string text_noise(const std::optional<EqualLoss>& equal);
// Returns the sentences that say what the time to equal loss is and which rows have none, or "".
std::string equal_loss_sentences(const Comparison& comparison);
// Returns the sentences that say which runs did not finish, skipped steps or ended without a finite loss, and which losses are
// compared with care or not at all; or "".
std::string warning_sentences(const Comparison& comparison);
// Returns the sentence that a row ran on other hardware than its baseline, or "".
std::string hardware_sentence(const Comparison& comparison, const Row& row);
// Returns the sentence about the spread, or "" if it is unknown.
std::string spread_sentence(const Comparison& comparison);

}  // namespace octet::report

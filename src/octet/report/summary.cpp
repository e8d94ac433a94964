#include "octet/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "octet/base/json.h"
#include "octet/base/median.h"
#include "octet/base/require.h"
#include "octet/report/held_out.h"
#include "octet/report/same_job.h"
#include "octet/report/scaling.h"
#include "octet/report/text_table.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/skipped_steps.h"

namespace octet::report {
namespace {
using telemetry::kUnknown;
using telemetry::StepMetrics;

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? kUnknown : sum / static_cast<double>(values.size());
}

// The finite values of `get(line)` over the lines after step `after`.
template <class Get>
std::vector<double> finite_values(const Run& run, double after, Get&& get) {
  std::vector<double> values;
  for (const StepMetrics& line : run.metrics) {
    const double value = get(line);
    if (static_cast<double>(line.step) > after && std::isfinite(value)) values.push_back(value);
  }
  return values;
}

double higher_pct(double value, double reference) {
  return std::isfinite(value) && std::isfinite(reference) && reference != 0 ? 100 * (value / reference - 1) : kUnknown;
}

// Row::mean_loss_pct of runs that end with the same step. A step that only one of the two runs has skipped or not logged counts
// in neither mean: losses fall, so its place in the last tenth would move the mean.
double mean_loss_pct(const Run& run, const Run& baseline) {
  double sum = 0, of_baseline = 0;
  auto other = baseline.metrics.begin();
  for (const StepMetrics& line : run.metrics) {
    while (other != baseline.metrics.end() && other->step < line.step) ++other;
    if (other == baseline.metrics.end()) break;
    const bool late = static_cast<double>(line.step) > 0.9 * static_cast<double>(run.metrics.back().step);
    if (!late || other->step != line.step || !std::isfinite(line.loss) || !std::isfinite(other->loss)) continue;
    sum += line.loss;
    of_baseline += other->loss;
  }
  return higher_pct(sum, of_baseline);
}

nlohmann::ordered_json number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

// Sets the labels. Returns whether some name was run on several numbers of ranks; the labels then include the ranks.
bool label_rows(std::vector<Row>& rows) {
  const bool scales = std::any_of(rows.begin(), rows.end(), [&](const Row& a) {
    return std::any_of(rows.begin(), rows.end(), [&](const Row& b) {
      return a.summary.name == b.summary.name && a.summary.processes != b.summary.processes;
    });
  });
  for (Row& row : rows) {
    row.label = scales ? fmt::format("{} x{}", row.summary.name, row.summary.processes) : row.summary.name;
  }
  return scales;
}

// Makes the first row named `name` on each number of ranks a baseline. If the report does not scale, a single baseline serves all
// rows.
void assign_baselines(std::vector<Row>& rows, std::string_view name, bool scales) {
  std::vector<std::size_t> baselines;
  const auto on = [&](std::int64_t processes) {
    return std::find_if(baselines.begin(), baselines.end(), [&](std::size_t i) { return rows[i].summary.processes == processes; });
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].is_repeat || rows[i].summary.name != name || on(rows[i].summary.processes) != baselines.end()) continue;
    rows[i].is_baseline = true;
    baselines.push_back(i);
  }
  for (Row& row : rows) {
    const auto own = on(row.summary.processes);
    if (own != baselines.end()) {
      row.baseline = *own;
    } else if (!scales && baselines.size() == 1) {
      row.baseline = baselines.front();
    }
  }
}

// Row::decrease_pct. Repeats are ignored.
double decrease_pct(const std::vector<Row>& rows, const Row& row) {
  const Row* fewest = &row;
  for (const Row& other : rows) {
    const bool same = other.summary.name == row.summary.name && !other.is_repeat && !row.is_repeat;
    if (same && other.summary.processes < fewest->summary.processes) fewest = &other;
  }
  if (fewest == &row) return kUnknown;
  return -higher_pct(row.summary.tokens_per_s_per_process, fewest->summary.tokens_per_s_per_process);
}

// Row::equal_loss of a row that has its baseline's job.
EqualLoss equal_loss_of(const std::vector<Row>& rows, const std::vector<LossCurve>& curves, std::size_t i) {
  const std::size_t baseline = *rows[i].baseline;
  const Summary& base = rows[baseline].summary;
  if (rows[i].summary.processes != base.processes) return {.reason = "the baseline ran on another number of ranks"};
  if (!rows[i].other_hardware.empty()) return {.reason = "the baseline ran on another device"};
  const auto repeat = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
    return row.is_repeat && row.summary.repeat_of == base.name && row.summary.processes == base.processes && row.has_same_job();
  });
  const LossCurve* second = repeat == rows.end() ? nullptr : &curves[static_cast<std::size_t>(repeat - rows.begin())];
  return equal_loss(curves[i], curves[baseline], second);
}

nlohmann::ordered_json to_json(const telemetry::NamedNumbers& numbers) {
  nlohmann::ordered_json object;  // null until it has a key
  for (const auto& [name, value] : numbers) object[name] = number(value);
  return object;
}

nlohmann::ordered_json to_json(const std::optional<EqualLoss>& equal) {
  if (!equal) return nullptr;
  return {{"loss", number(equal->loss)},
          {"time_s", number(equal->time_s)},
          {"baseline_time_s", number(equal->baseline_time_s)},
          {"speedup", number(equal->speedup)},
          {"noise_pct", number(equal->noise_pct)},
          {"noise_from", equal->noise_from},
          {"reason", equal->reason}};
}

// Summary::unfinished. A run that was killed says as little about its end as one that goes on.
std::string unfinished(std::int64_t steps, const telemetry::RunInfo& info) {
  const bool asked = info.code == static_cast<int>(ExitCode::done) || info.code == static_cast<int>(ExitCode::preempted);
  const bool failed = !info.ended.empty() && !asked;
  if (steps >= info.steps && !failed) return "";
  return fmt::format("{} of {}{}", telemetry::format_count(steps), telemetry::format_count(std::max(steps, info.steps), "step"),
                     info.ended.empty() ? ""
                     : asked            ? ", stopped"
                                        : fmt::format(", ended with code {}", info.code));
}

// The sentence that says why the losses of a row are not compared with those of its baseline, or "".
std::string difference_sentence(const Comparison& comparison, const Row& row) {
  if (!row.baseline || row.is_baseline) return "";
  const Row& baseline = comparison.rows[*row.baseline];
  if (!row.other_job.empty()) {
    return fmt::format("{} differs from {} in {}, so their losses are not compared.", row.label, baseline.label, row.other_job);
  }
  if (row.has_other_length) {
    return fmt::format("{} has {} and {} has {}, so the losses at their ends are not compared.", row.label,
                       telemetry::format_count(row.summary.steps, "step"), baseline.label,
                       telemetry::format_count(baseline.summary.steps));
  }
  if (!row.other_held_out.empty() && std::isfinite(row.summary.eval_loss) && std::isfinite(baseline.summary.eval_loss)) {
    return fmt::format("{} differs from {} in {}, so their held-out losses are not compared.", row.label, baseline.label,
                       row.other_held_out);
  }
  return "";
}

}  // namespace

Summary summarize(const Run& run) {
  Summary summary;
  summary.name = run.info.name;
  summary.recipe = run.info.recipe;
  summary.repeat_of = run.info.repeat_of;
  summary.device = run.info.device;
  summary.processes = run.info.processes;
  summary.initial_eval_loss = run.info.initial_eval_loss;
  summary.initial_eval_loss_bf16 = run.info.initial_eval_loss_bf16;
  summary.final_loss = kUnknown;
  if (!run.metrics.empty()) {
    const StepMetrics& last = run.metrics.back();
    summary.steps = last.step;
    summary.tokens = last.tokens_seen;
    summary.skipped_steps = last.skipped_steps;
    summary.final_loss = final_line(run)->loss;
    summary.final_step = final_line(run)->step;
  }
  const auto steps = static_cast<double>(summary.steps);
  // Leaves out the first tenth of the steps, which are slower: they touch memory and fill caches for the first time.
  const auto settled = [&](auto&& get) {
    const double value = median(finite_values(run, 0.1 * steps, get));
    return std::isnan(value) ? median(finite_values(run, -1, get)) : value;
  };
  summary.tokens_per_s_per_process = settled([](const StepMetrics& m) { return m.tokens_per_s_per_gpu; });
  summary.tflops_per_process = settled([](const StepMetrics& m) { return m.tflops_per_gpu; });
  summary.mfu = settled([](const StepMetrics& m) { return m.mfu.value_or(kUnknown); });
  summary.exposed_pct = settled([](const StepMetrics& m) { return 100 * m.comm_exposed_s.value_or(kUnknown) / m.step_time_s; });
  summary.bubble_pct = settled([](const StepMetrics& m) { return 100 * m.pipeline_bubble_s.value_or(kUnknown) / m.step_time_s; });
  summary.mean_loss = mean(finite_values(run, 0.9 * steps, [](const StepMetrics& m) { return m.loss; }));
  summary.saturated_pct = mean(finite_values(run, -1, [](const StepMetrics& m) { return m.fp8_saturated_pct.value_or(kUnknown); }));
  summary.flushed_pct = mean(finite_values(run, -1, [](const StepMetrics& m) { return m.fp8_underflow_pct.value_or(kUnknown); }));
  summary.eval_loss = kUnknown;
  for (const StepMetrics& line : run.metrics) {
    if (std::isfinite(line.eval_loss.value_or(kUnknown))) {
      summary.eval_loss = *line.eval_loss;
      summary.eval_step = line.step;
    }
    if (!line.eval_losses.empty()) summary.eval_losses = line.eval_losses;
  }
  const auto memory = finite_values(run, -1, [](const StepMetrics& m) { return m.memory_peak_gib; });
  summary.memory_peak_gib = memory.empty() ? kUnknown : *std::max_element(memory.begin(), memory.end());
  if (const std::vector<double> times = training_times(run); !times.empty()) summary.train_time_s = times.back();
  summary.unfinished = unfinished(summary.steps, run.info);
  return summary;
}

Comparison compare(std::span<const Run> runs, std::string_view baseline) {
  Comparison comparison;
  std::vector<Row>& rows = comparison.rows;
  std::vector<LossCurve> curves;
  std::vector<const Run*> sources;  // the run of each row
  for (const bool repeats : {false, true}) {
    for (const Run& run : runs) {
      if (run.info.repeat_of.empty() == repeats) continue;
      Row row;
      row.summary = summarize(run);
      row.is_repeat = repeats;
      row.other_precision = other_precision_before(run);
      rows.push_back(std::move(row));
      curves.emplace_back(run);
      sources.push_back(&run);
    }
  }
  comparison.scales = label_rows(rows);
  assign_baselines(rows, baseline, comparison.scales);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (row.is_baseline) comparison.baseline = row.summary.name;
    if (!row.baseline || row.is_baseline) continue;
    row.has_other_length = row.summary.steps != rows[*row.baseline].summary.steps;
    const Run &run = *sources[i], &base = *sources[*row.baseline];
    row.other_hardware = other_hardware(run, base);
    row.other_job = other_job(run, base);
    if (!row.other_job.empty()) continue;
    row.other_batches = other_batches(run, base);
    row.other_held_out = row.summary.eval_step == rows[*row.baseline].summary.eval_step ? other_held_out(run, base)
                                                                                        : "the step of the last evaluation";
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    const bool compared = row.baseline && !row.is_baseline;
    const bool compares_losses = row.has_same_job() && !row.has_other_length && std::isfinite(row.summary.final_loss) &&
                                 std::isfinite(rows[*row.baseline].summary.final_loss);
    const auto against = [&](double Summary::*field) { return higher_pct(row.summary.*field, rows[*row.baseline].summary.*field); };
    row.faster_pct = compared ? against(&Summary::tokens_per_s_per_process) : kUnknown;
    const bool same_end = compares_losses && row.summary.final_step == rows[*row.baseline].summary.final_step;
    row.final_loss_pct = same_end ? against(&Summary::final_loss) : kUnknown;
    row.mean_loss_pct = compares_losses ? mean_loss_pct(*sources[i], *sources[*row.baseline]) : kUnknown;
    row.eval_loss_pct = compares_losses && row.other_held_out.empty() ? against(&Summary::eval_loss) : kUnknown;
    for (const auto& [name, loss] : row.summary.eval_losses) {
      if (!compares_losses || row.summary.eval_step != rows[*row.baseline].summary.eval_step) break;
      if (!other_held_out(*sources[i], *sources[*row.baseline], name).empty()) continue;
      const double pct = higher_pct(loss, number_named(rows[*row.baseline].summary.eval_losses, name));
      if (std::isfinite(pct)) row.eval_losses_pct.emplace_back(name, pct);
    }
    row.initial_eval_loss_pct = higher_pct(row.summary.initial_eval_loss, row.summary.initial_eval_loss_bf16);
    row.decrease_pct = decrease_pct(rows, row);
    if (row.has_same_job()) row.equal_loss = equal_loss_of(rows, curves, i);
    if (row.is_repeat && compared && row.summary.repeat_of == rows[*row.baseline].summary.name && !comparison.spread) {
      comparison.spread =
          Spread{rows[*row.baseline].summary.name, row.other_batches, std::abs(row.mean_loss_pct), std::abs(row.eval_loss_pct)};
    }
  }
  return comparison;
}

double number_named(const telemetry::NamedNumbers& numbers, std::string_view name) {
  const auto found = std::find_if(numbers.begin(), numbers.end(), [&](const auto& entry) { return entry.first == name; });
  return found == numbers.end() ? kUnknown : found->second;
}

bool has_initial_losses(const Comparison& comparison) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(),
                     [](const Row& row) { return std::isfinite(row.summary.initial_eval_loss); });
}

bool has_own_names(const Comparison& comparison) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(), [](const Row& row) {
    return !row.is_repeat && !row.summary.recipe.empty() && row.summary.recipe != row.summary.name;
  });
}

bool has_bubbles(const Comparison& comparison) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(),
                     [](const Row& row) { return std::isfinite(row.summary.bubble_pct); });
}

bool has_equal_losses(const Comparison& comparison) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(), [](const Row& row) { return row.equal_loss.has_value(); });
}

std::string equal_loss_sentences(const Comparison& comparison) {
  if (!has_equal_losses(comparison)) return "";
  const auto any = [&](auto&& holds) {
    return std::any_of(comparison.rows.begin(), comparison.rows.end(),
                       [&](const Row& row) { return row.equal_loss && holds(*row.equal_loss); });
  };
  std::string text = fmt::format(
      "Equal loss: how many times faster than {} the run reaches a loss that both reach, the higher of their two final "
      "smoothed losses.",
      comparison.baseline);
  if (any([](const EqualLoss& equal) { return !equal.noise_from.empty(); })) {
    const bool repeated = any([](const EqualLoss& equal) { return equal.repeated; });
    text += fmt::format(
        " Noise: the standard deviation that chance in the losses gives this factor, estimated from the scatter of the losses "
        "around their smooth curves{}; step times count as exact.",
        repeated ? fmt::format(" or from two {} runs, whichever is larger", comparison.baseline) : "");
  }
  for (const Row& row : comparison.rows) {
    if (!row.equal_loss || row.equal_loss->reason.empty()) continue;
    text += fmt::format(" {} has no time to equal loss: {}.", row.label, row.equal_loss->reason);
  }
  return text;
}

std::string hardware_sentence(const Comparison& comparison, const Row& row) {
  if (row.other_hardware.empty()) return "";
  return fmt::format("{} differs from {} in {}, so the difference in their speeds is not due to the recipe alone.", row.label,
                     comparison.rows[*row.baseline].label, row.other_hardware);
}

std::string warning_sentences(const Comparison& comparison) {
  std::string text;
  const auto say = [&](const std::string& sentence) {
    if (!sentence.empty()) text += (text.empty() ? "" : " ") + sentence;
  };
  const bool alone = comparison.rows.size() == 1;
  for (const Row& row : comparison.rows) {
    const Summary& s = row.summary;
    if (!alone && !s.unfinished.empty()) say(fmt::format("{}: {}.", row.label, s.unfinished));
    if (!row.other_precision.empty())
      say(fmt::format("{} was not trained in one precision ({}).", row.label, row.other_precision));
    say(difference_sentence(comparison, row));
    say(hardware_sentence(comparison, row));
    if (!row.other_batches.empty()) {
      say(
          fmt::format("{} differs from {} in {}, so they may have seen other batches, and part of the difference between their "
                      "losses may be chance.",
                      row.label, comparison.rows[*row.baseline].label, row.other_batches));
    }
    if (!std::isfinite(s.final_loss)) {
      say(fmt::format("{} ends without a finite loss{}.", row.label, alone ? "" : ", so its losses are not compared"));
    }
    if (s.skipped_steps > 0) say(fmt::format("{}: {}.", row.label, telemetry::text_of_skipped(s.skipped_steps, s.steps)));
  }
  return text;
}

std::string spread_sentence(const Comparison& comparison) {
  if (!comparison.spread || !std::isfinite(comparison.spread->mean_loss_pct)) return "";
  const std::string& other = comparison.spread->other_batches;
  std::string sentence = fmt::format(
      "Two {} runs {} differ by {:.2f}% in mean loss over the last tenth of the steps", comparison.spread->of,
      other.empty() ? "on the same batches, with sums in a different order," : fmt::format("that are not the same in {}", other),
      comparison.spread->mean_loss_pct);
  if (std::isfinite(comparison.spread->eval_loss_pct)) {
    sentence += fmt::format(" and by {:.2f}% on held-out text", comparison.spread->eval_loss_pct);
  }
  return sentence + ".";
}

telemetry::Worker worker_of(const Comparison& comparison) {
  const bool on_gpus = std::all_of(comparison.rows.begin(), comparison.rows.end(),
                                   [](const Row& r) { return telemetry::worker_of(r.summary.device) == telemetry::Worker::gpu; });
  return on_gpus && !comparison.rows.empty() ? telemetry::Worker::gpu : telemetry::Worker::process;
}

std::string text_speedup(const std::optional<EqualLoss>& equal) {
  return equal && std::isfinite(equal->speedup) ? fmt::format("{:.2f}x", equal->speedup) : "-";
}

std::string text_noise(const std::optional<EqualLoss>& equal) {
  return equal && std::isfinite(equal->noise_pct) ? fmt::format("{:.1f}%", equal->noise_pct) : "-";
}

std::string render_text(const Comparison& comparison) {
  const std::string warnings = warning_sentences(comparison), below = warnings + (warnings.empty() ? "" : "\n");
  if (comparison.scales) return render_scaling(comparison) + below + render_held_out(comparison);
  const bool named = has_own_names(comparison);
  std::vector<std::vector<std::string>> lines{named ? std::vector<std::string>{"run", "recipe"}
                                                    : std::vector<std::string>{"recipe"}};
  lines[0].insert(lines[0].end(), {std::string(telemetry::rate_unit(worker_of(comparison))), "faster"});
  const bool equal = has_equal_losses(comparison);
  if (equal) lines[0].insert(lines[0].end(), {"equal loss", "noise"});
  lines[0].insert(lines[0].end(), {"final loss", "higher", "last tenth", "higher", "held-out", "higher"});
  const bool initial = has_initial_losses(comparison);
  if (initial) lines[0].insert(lines[0].end(), {"before step 1", "higher"});
  for (const Row& row : comparison.rows) {
    const Summary& s = row.summary;
    lines.push_back(named ? std::vector{s.name, s.recipe} : std::vector{s.name});
    lines.back().insert(lines.back().end(), {text_count(s.tokens_per_s_per_process), text_percent(row.faster_pct, 1)});
    if (equal) lines.back().insert(lines.back().end(), {text_speedup(row.equal_loss), text_noise(row.equal_loss)});
    lines.back().insert(lines.back().end(),
                        {text_number(s.final_loss, 4), text_percent(row.final_loss_pct, 2), text_number(s.mean_loss, 4),
                         text_percent(row.mean_loss_pct, 2), text_number(s.eval_loss, 4), text_percent(row.eval_loss_pct, 2)});
    if (!initial) continue;
    lines.back().insert(lines.back().end(), {text_number(s.initial_eval_loss, 4), text_percent(row.initial_eval_loss_pct, 2)});
  }
  const std::string spread = spread_sentence(comparison), equal_loss = equal_loss_sentences(comparison);
  const char* const before =
      "before step 1: held-out loss of the weights that a run continues from; higher: compared with BF16.\n";
  const std::string sets = render_held_out(comparison);
  return text_table(lines, named ? 2 : 1) + below + (sets.empty() ? "" : "\n" + sets) + (initial ? before : "") +
         (equal ? equal_loss + "\n" : "") + (spread.empty() ? "" : spread + "\n");
}

std::string render_json(const Comparison& comparison) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Row& row : comparison.rows) {
    const Summary& s = row.summary;
    rows.push_back({{"name", s.name},
                    {"recipe", s.recipe},
                    {"repeat_of", s.repeat_of},
                    {"device", s.device},
                    {"processes", s.processes},
                    {"is_baseline", row.is_baseline},
                    {"is_repeat", row.is_repeat},
                    {"steps", s.steps},
                    {"tokens", s.tokens},
                    {"skipped_steps", s.skipped_steps},
                    {"tokens_per_s_per_process", number(s.tokens_per_s_per_process)},
                    {"decrease_pct", number(row.decrease_pct)},
                    {"faster_pct", number(row.faster_pct)},
                    {"equal_loss", to_json(row.equal_loss)},
                    {"final_loss", number(s.final_loss)},
                    {"final_loss_pct", number(row.final_loss_pct)},
                    {"mean_loss", number(s.mean_loss)},
                    {"mean_loss_pct", number(row.mean_loss_pct)},
                    {"eval_loss", number(s.eval_loss)},
                    {"eval_loss_pct", number(row.eval_loss_pct)},
                    {"eval_losses", to_json(s.eval_losses)},
                    {"eval_losses_pct", to_json(row.eval_losses_pct)},
                    {"initial_eval_loss", number(s.initial_eval_loss)},
                    {"initial_eval_loss_bf16", number(s.initial_eval_loss_bf16)},
                    {"initial_eval_loss_pct", number(row.initial_eval_loss_pct)},
                    {"tflops_per_process", number(s.tflops_per_process)},
                    {"mfu", number(s.mfu)},
                    {"memory_peak_gib", number(s.memory_peak_gib)},
                    {"exposed_pct", number(s.exposed_pct)},
                    {"bubble_pct", number(s.bubble_pct)},
                    {"saturated_pct", number(s.saturated_pct)},
                    {"flushed_pct", number(s.flushed_pct)},
                    {"train_time_s", number(s.train_time_s)}});
  }
  nlohmann::ordered_json spread = nullptr;
  if (comparison.spread) {
    spread = {{"of", comparison.spread->of},
              {"mean_loss_pct", number(comparison.spread->mean_loss_pct)},
              {"eval_loss_pct", number(comparison.spread->eval_loss_pct)}};
  }
  const nlohmann::ordered_json document = {{"baseline", comparison.baseline}, {"rows", rows}, {"spread", spread}};
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace octet::report

#include "octet/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <system_error>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/system_call.h"
#include "octet/report/attempts.h"
#include "octet/report/charts.h"
#include "octet/report/curves.h"
#include "octet/report/experts.h"
#include "octet/report/health.h"
#include "octet/report/held_out.h"
#include "octet/report/page.h"
#include "octet/report/scaling.h"
#include "octet/report/stragglers.h"
#include "octet/report/style.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/health_verdict.h"

namespace octet::report {
namespace {
using telemetry::format_compact;
using telemetry::format_count;
using telemetry::format_duration;
using telemetry::format_fixed;
using telemetry::format_significant;
using telemetry::kUnknown;
using telemetry::RunInfo;
using telemetry::StepMetrics;

bool on_gpu(const std::vector<Shown>& shown) {
  return std::any_of(shown.begin(), shown.end(), [](const Shown& s) { return s.run->info.device == "cuda"; });
}
std::string_view per_process(const Comparison& comparison) { return telemetry::rate_title(worker_of(comparison)); }

std::string swatch(const Shown& s) { return fmt::format("<span class=\"swatch {}{}\"></span>", s.colour, s.dashed ? " dashed" : ""); }

double grad_norm_of(const StepMetrics& line) { return line.grad_norm; }

std::string legend(const std::vector<Shown>& shown, const std::string& more) {
  std::string out = "<ul class=\"legend\">";
  for (const Shown& s : shown) put(out, "<li>{}{}</li>", swatch(s), escape(s.row->label));
  return out + more + "</ul>";
}

// Returns the sentences under the title, which tell the reader the most important results.
std::string lead(const std::vector<Shown>& shown, const Comparison& comparison) {
  std::string out = escape(warning_sentences(comparison));
  if (!out.empty()) out = "<strong>" + out + "</strong> ";
  if (comparison.scales) return out + scaling_lead(comparison);
  const Row* farthest = nullptr;
  const Row* fastest = nullptr;
  int compared = 0;
  for (const Shown& s : shown) {
    const Row& row = *s.row;
    if (row.is_baseline || row.is_repeat || comparison.baseline.empty()) continue;
    if (!std::isfinite(row.mean_loss_pct)) continue;
    ++compared;
    if (!farthest || std::abs(row.mean_loss_pct) > std::abs(farthest->mean_loss_pct)) farthest = &row;
    if (row.other_hardware.empty() && std::isfinite(row.faster_pct) && (!fastest || row.faster_pct > fastest->faster_pct))
      fastest = &row;
  }
  const std::string base = escape(comparison.baseline);
  if (compared == 1) {
    put(out, "<strong>{} ends {} {} {}</strong> in mean loss over the last tenth. ", escape(farthest->summary.name),
        format_fixed(std::abs(farthest->mean_loss_pct), 2) + "%", farthest->mean_loss_pct < 0 ? "below" : "above", base);
  } else if (compared > 1) {
    put(out, "<strong>{} recipes end within {}% of {}</strong> in mean loss over the last tenth; the farthest is {}. ",
        compared == 2 ? "Both" : fmt::format("All {}", compared), format_fixed(std::abs(farthest->mean_loss_pct), 2), base,
        escape(farthest->summary.name));
  }
  if (comparison.spread && std::isfinite(comparison.spread->mean_loss_pct)) {
    put(out, "{} itself moves by {:.2f}% when it is trained twice. ", base, comparison.spread->mean_loss_pct);
  }
  if (fastest && fastest->faster_pct > 0) {
    put(out, "<strong>{} is the fastest, {:.0f}% faster than {}.</strong> ", escape(fastest->summary.name), fastest->faster_pct, base);
    if (fastest->equal_loss && std::isfinite(fastest->equal_loss->speedup)) {
      put(out, "It reaches equal loss in {:.0f}% of {}'s training time. ", 100 / fastest->equal_loss->speedup, base);
    }
  }
  if (fastest && !on_gpu(shown)) out += "On a CPU, FP8 is emulated: what this run shows is the loss, not the speed of a GPU.";
  if (shown.size() == 1) {
    const Summary& s = shown.front().row->summary;
    put(out, "{}, {} tokens, in {}.", s.unfinished.empty() ? format_count(s.steps, "step") : s.unfinished,
        format_compact(static_cast<double>(s.tokens)), format_duration(s.train_time_s));
  }
  return out;
}

double gap_limit(const std::vector<Shown>& shown, double band) {
  double largest = band;
  for (const Shown& s : shown) {
    for (const double gap : {s.row->mean_loss_pct, s.row->eval_loss_pct}) {
      if (std::isfinite(gap)) largest = std::max(largest, std::abs(gap));
    }
  }
  for (const double limit : {0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0}) {
    if (1.1 * largest <= limit) return limit;
  }
  return 100;
}

std::string table_section(const std::vector<Shown>& shown, const Comparison& comparison) {
  const bool compared = !comparison.baseline.empty() && shown.size() > 1;
  const double band = comparison.spread && std::isfinite(comparison.spread->mean_loss_pct) ? comparison.spread->mean_loss_pct : 0;
  const double limit = gap_limit(shown, band);
  // Recipes are held to a gap below half a percent, so a smaller gap is no warning.
  const double noise = std::max(band, 0.5);
  const bool initial = has_initial_losses(comparison);
  const bool named = has_own_names(comparison);
  std::string out = fmt::format("<section><table class=\"cards\"><thead><tr>{}",
                                named ? "<th>run</th><th class=\"words\">recipe</th>" : "<th>recipe</th>");
  const bool equal = has_equal_losses(comparison);
  put(out, "<th>{}{}</th>{}<th>final loss</th><th>mean of the<br>last tenth</th><th>held-out<br>loss</th>{}",
      per_process(comparison), compared ? "<br>% faster" : "", equal ? "<th>speed-up at<br>equal loss</th>" : "",
      initial ? "<th>before<br>step 1</th>" : "");
  if (compared) put(out, "<th class=\"middle\">gap to {}<br>−{:g}% to +{:g}%</th>", escape(comparison.baseline), limit, limit);
  // A run of one process waits for nobody, so the column appears only if some run has several processes.
  const bool together = std::any_of(shown.begin(), shown.end(), [](const Shown& s) { return s.row->summary.processes > 1; });
  const bool bubbles = has_bubbles(comparison);
  put(out, "<th>peak<br>memory</th>{}{}{}<th>time</th></tr></thead><tbody>", on_gpu(shown) ? "<th>TFLOPS<br>MFU</th>" : "",
      together ? "<th>exposed<br>communication</th>" : "", bubbles ? "<th>pipeline<br>bubble</th>" : "");
  for (const Shown& s : shown) {
    const Row& row = *s.row;
    const Summary& sum = row.summary;
    put(out, "<tr{}><td class=\"name\">{}{}</td>", row.is_repeat ? " class=\"repeat\"" : "", swatch(s), escape(row.label));
    if (named) out += cell("recipe", escape(sum.recipe), "words");
    out += compared_cell(per_process(comparison), count_or_dash(sum.tokens_per_s_per_process),
                         row.is_repeat ? kUnknown : row.faster_pct, 1, 1, on_gpu(shown) ? 1 : INFINITY);
    if (equal) out += speedup_cell(row.equal_loss);
    out += compared_cell("final loss", number(sum.final_loss, 4), row.final_loss_pct, 2, -1, noise);
    out += compared_cell("last tenth", number(sum.mean_loss, 4), row.mean_loss_pct, 2, -1, noise);
    out += compared_cell("held-out loss", number(sum.eval_loss, 4), row.eval_loss_pct, 2, -1, noise);
    if (initial) out += compared_cell("before step 1", number(sum.initial_eval_loss, 4), row.initial_eval_loss_pct, 2, -1, noise);
    if (compared) {
      const GapPlot plot{s.colour, row.is_baseline ? 0 : row.mean_loss_pct, row.is_baseline ? kUnknown : row.eval_loss_pct, band, limit};
      out += cell("gap to " + comparison.baseline, draw(plot), "middle");
    }
    out += cell("peak memory", gib_or_dash(sum.memory_peak_gib));
    if (on_gpu(shown)) {
      const std::string mfu = std::isfinite(sum.mfu) ? fmt::format("{:.1f}%", 100 * sum.mfu) : "";
      out += cell("TFLOPS, MFU", fmt::format("{}<small>{}</small>", number(sum.tflops_per_process, 0), mfu));
    }
    if (together) out += cell("exposed communication", share_or_dash(sum.exposed_pct));
    if (bubbles) out += cell("pipeline bubble", share_or_dash(sum.bubble_pct));
    out += cell("time", sum.train_time_s > 0 ? format_duration(sum.train_time_s) : "–") + "</tr>";
  }
  out += "</tbody></table><p class=\"hint\">";
  if (compared) {
    put(out, "Small figures: difference from {}. In the gap, a dot is the mean loss over the last tenth of the steps, a ring the held-out loss. ",
        escape(comparison.baseline));
  }
  if (initial) {
    out += "Before step 1: the held-out loss of the weights that a run goes on from, and how much higher it is than that of the same "
           "weights in BF16. ";
  }
  if (equal) put(out, "{} ", escape(equal_loss_sentences(comparison)));
  const std::string spread = spread_sentence(comparison);
  if (!spread.empty()) put(out, "{} That is the shaded band: a gap inside it is noise.", escape(spread));
  return out + "</p></section>";
}

std::string loss_section(const std::vector<Shown>& shown) {
  const LineChart chart = loss_chart(shown);
  const bool evaluated = std::any_of(chart.series.begin(), chart.series.end(), [](const Series& s) { return !s.marks.empty(); });
  const std::string more = evaluated ? "<li><span class=\"ring\"></span>held-out</li>" : "";
  const std::optional<LineChart> close_up = loss_close_up(chart);
  const std::string whole = fmt::format("<figure>{}</figure>", draw(chart));
  const bool all = std::all_of(shown.begin(), shown.end(), [](const Shown& s) { return s.run->metrics.size() <= kMaxPoints; });
  return fmt::format(
      "<section><h2>Loss</h2><p class=\"hint\">Smoothed over a hundredth of the run; the faint line {}.</p>{}{}</section>",
      all ? "is every logged step" : "joins the lowest and the highest loss of every few logged steps", legend(shown, more),
      close_up ? fmt::format("<div class=\"zoom\">{}<figure>{}</figure></div>", whole, draw(*close_up)) : whole);
}

std::string gap_section(const std::vector<Shown>& shown, const Comparison& comparison) {
  const std::optional<LineChart> chart = gap_chart(shown, comparison);
  if (!chart) return "";
  std::vector<Shown> listed;
  std::copy_if(shown.begin(), shown.end(), std::back_inserter(listed), [](const Shown& s) { return s.row->has_same_job(); });
  const bool same = std::all_of(listed.begin(), listed.end(), [](const Shown& s) { return s.row->other_batches.empty(); });
  const std::string more = chart->band > 0 ? fmt::format("<li><span class=\"bar\"></span>spread of {}</li>", escape(comparison.baseline)) : "";
  return fmt::format(
      "<section><h2>Distance from {}</h2><p class=\"hint\">{}; smoothed over a fortieth of the "
      "run.</p>{}<figure>{}</figure></section>",
      escape(comparison.baseline),
      same ? "The same batch at the same step, so that what the data does to the loss cancels" : "The losses at the same step",
      legend(listed, more), draw(*chart));
}

std::string speed_section(const std::vector<Shown>& shown, const Comparison& comparison) {
  BarChart bars{.description = "throughput by recipe", .bars = {}};
  LineChart norms{.description = "gradient norm over the steps",
                  .series = {},
                  .x_label = "step",
                  .y_label = "logarithmic",
                  .y_kind = ScaleKind::logarithmic,
                  .y_low = 0,
                  .y_high = 0,
                  .x_high = last_step(shown),
                  .x_text = step_text,
                  .y_text = [](double y) { return format_significant(y, 3); },
                  .width = 520,
                  .height = 300,
                  .nothing = "no finite norm"};
  for (const Shown& s : shown) {
    if (s.row->is_repeat) continue;
    const double speed = s.row->summary.tokens_per_s_per_process;
    bars.bars.push_back({s.row->label, s.colour, speed, count_or_dash(speed), percent(s.row->faster_pct, 1)});
    const std::vector<Point> norm = points_of(*s.run, grad_norm_of);
    norms.series.push_back({.name = s.row->label, .colour = s.colour, .style = "", .raw = {}, .line = smooth_line(norm)});
  }
  std::tie(norms.y_low, norms.y_high) = value_range(norms.series, norms.y_kind);
  return fmt::format(
      "<section class=\"pair\"><div><h2>Throughput</h2><p class=\"hint\">{}, median after the first "
      "tenth.</p><figure>{}</figure></div>"
      "<div><h2>Gradient norm</h2><p class=\"hint\">Global, before clipping, smoothed.</p><figure>{}</figure></div></section>",
      per_process(comparison), draw(bars), draw(norms));
}

// For example "layer 3 down_proj, gradient, step 1,200".
std::string place_text(const WorstSample& worst, const HealthSheet& sheet) {
  const auto [name, operand] = split_operand(worst.tensor);
  const auto row = std::find_if(sheet.rows.begin(), sheet.rows.end(), [&n = name](const HealthRow& r) { return r.name == n; });
  const std::string where = row == sheet.rows.end() ? name : row->layer < 0 ? row->label : fmt::format("layer {} {}", row->layer, row->label);
  return fmt::format("{}, {}, step {}", where, operand_word(operand), format_count(worst.step));
}

std::string worst_cell(const Run& run, const HealthSheet& sheet, HealthMetric metric, const char* unit) {
  const WorstSample worst = worst_sample(run, metric);
  const std::string_view column = title_of(metric);
  if (worst.tensor.empty()) return cell(column, "–<small>&nbsp;</small>", "wrap");
  if (worst.value == 0 && metric != HealthMetric::sqnr) return cell(column, "none<small>&nbsp;</small>", "wrap");
  return cell(column, fmt::format("{} {}<small>{}</small>", format_significant(worst.value, 3), unit, escape(place_text(worst, sheet))), "wrap");
}

// "Attention's log-sum-exp: from -12.3 (layer 3, step 40) to 31.2 (layer 0, step 1)."
std::string attention_text(const Run& run) {
  using Sample = telemetry::AttentionSample;
  if (run.attention.empty()) return "";
  const auto& all = run.attention;
  const Sample& low = *std::min_element(all.begin(), all.end(), [](const Sample& a, const Sample& b) { return a.lse_min < b.lse_min; });
  const Sample& high = *std::max_element(all.begin(), all.end(), [](const Sample& a, const Sample& b) { return a.lse_max < b.lse_max; });
  const auto at = [](double value, const Sample& s) {
    return fmt::format("{} ({}, step {})", format_significant(value, 3), escape(s.layer), format_count(s.step));
  };
  return fmt::format("<p class=\"hint\">Log-sum-exp of attention's logits: from {} to {}.</p>", at(low.lse_min, low), at(high.lse_max, high));
}

// "Weights of norms at the edge of their binade: at most 3.1% (model.layers.3.input_layernorm, step 40)."
std::string largest_text(const Run& run, const char* figure, std::optional<double> telemetry::HealthSample::*value) {
  const telemetry::HealthSample* most = nullptr;
  for (const telemetry::HealthSample& s : run.health) {
    if (s.*value && std::isfinite(*(s.*value)) && (!most || *(s.*value) > *(most->*value))) most = &s;
  }
  if (!most) return "";
  return fmt::format("<p class=\"hint\">{}: at most {}% ({}, step {}).</p>", figure, format_significant(*(most->*value), 3),
                     escape(most->tensor.substr(0, most->tensor.size() - 2)), format_count(most->step));
}

std::string norms_text(const Run& run) {
  return largest_text(run, "Weights of norms at the edge of their binade", &telemetry::HealthSample::edge_pct);
}

std::string channels_text(const Run& run) {
  return largest_text(run, "Share of the top channel in the largest elements of all channels, after SwiGLU",
                      &telemetry::HealthSample::top_channel_pct);
}

// What the samples say about the run, in a sentence for each finding.
std::string verdict_text(const Run& run, const HealthSheet& sheet) {
  const std::vector<telemetry::HealthFinding> findings = telemetry::find_unhealthy(run.health, run.attention);
  const std::string once =
      sheet.first_step == sheet.last_step ? fmt::format("1 sample (step {})", format_count(sheet.last_step)) : "";
  if (findings.empty()) {
    return once.empty() ? "<p>Verdict: nothing to worry about.</p>"
                        : fmt::format("<p>Verdict: none yet. There is {}, too few to judge; it is within all limits.</p>", once);
  }
  std::string items;
  for (const telemetry::HealthFinding& f : findings) {
    put(items, "<li><b>{}</b> {}: {}</li>", f.concern == telemetry::Concern::danger ? "danger" : "watch", escape(f.layer),
        escape(telemetry::sentence_of(f)));
  }
  return fmt::format("<p>Verdict{}:</p><ul>{}</ul>", once.empty() ? "" : " from " + once, items);
}

std::string health_section(const std::vector<Shown>& shown) {
  std::string rows, sheets;
  for (const Shown& s : shown) {
    if (s.run->health.empty() || s.row->is_repeat) continue;
    const HealthSheet sheet = health_sheet(*s.run);
    const std::string name = escape(s.row->label);
    put(rows, "<tr><td class=\"name\">{}{}</td>{}{}{}</tr>", swatch(s), name, worst_cell(*s.run, sheet, HealthMetric::sqnr, "dB"),
        worst_cell(*s.run, sheet, HealthMetric::saturated, "%"), worst_cell(*s.run, sheet, HealthMetric::flushed, "%"));
    put(sheets, "<details open><summary>{}{}<span>{}; each strip runs from step {} to {}</span></summary>", swatch(s), name,
        format_count(static_cast<std::int64_t>(sheet.rows.size()), "linear layer"), format_count(sheet.first_step),
        format_count(sheet.last_step));
    put(sheets, "{}<figure>{}</figure>{}</details>", verdict_text(*s.run, sheet), draw(sheet, "FP8 health of " + s.row->label),
        attention_text(*s.run) + channels_text(*s.run) + norms_text(*s.run));
  }
  if (rows.empty()) return "";
  return fmt::format(
      "<section><h2>FP8 health</h2><p class=\"hint\">What the casts did to inputs, weights and output gradients of every linear "
      "layer. "
      "Blue strips have a range of their own, written below; the warm ones share theirs, and the warmer the worse. The "
      "signal-to-noise "
      "ratio is coloured by how far it lies below what the format allows: 31.5 dB in E4M3, 25.5 dB in E5M2.</p>"
      "<table class=\"cards\"><thead><tr><th>at worst</th><th>signal to noise</th><th>saturated</th><th>flushed to zero</th></tr>"
      "</thead><tbody>{}</tbody></table>{}</section>",
      rows, sheets);
}

std::string experts_section(const std::vector<Shown>& shown) {
  std::string sheets;
  for (const Shown& s : shown) {
    if (s.run->experts.empty() || s.row->is_repeat) continue;
    put(sheets, "<details open><summary>{}{}</summary>{}</details>", swatch(s), escape(s.row->label),
        draw_experts(expert_sheets(*s.run)));
  }
  if (sheets.empty()) return "";
  return fmt::format("<section><h2>Experts</h2><p class=\"hint\">How often each expert was chosen, as a multiple of its fair share; the table "
                     "has means over the last quarter of the samples. An expert with less than {:g} of its fair share starves: it "
                     "learns next to nothing.</p>{}</section>",
                     telemetry::kStarved, sheets);
}

std::string attempts_section(const std::vector<Shown>& shown) {
  std::string parts;
  for (const Shown& s : shown) {
    const std::string drawn = s.row->is_repeat ? "" : draw_attempts(s.run->attempts);
    if (!drawn.empty()) put(parts, "<details open><summary>{}{}</summary>{}</details>", swatch(s), escape(s.row->label), drawn);
  }
  if (parts.empty()) return "";
  return fmt::format("<section><h2>Attempts</h2><p class=\"hint\">What `octet launch --supervise` did to keep the run going. Starts are known to "
                     "the second.</p>{}</section>",
                     parts);
}

std::string stragglers_section(const std::vector<Shown>& shown) {
  std::string parts;
  for (const Shown& s : shown) {
    const std::int64_t last = s.run->metrics.empty() ? 0 : s.run->metrics.back().step;
    const std::string drawn = s.row->is_repeat ? "" : draw_stragglers(s.run->stragglers, s.run->attempts, last);
    if (!drawn.empty()) put(parts, "<details open><summary>{}{}</summary>{}</details>", swatch(s), escape(s.row->label), drawn);
  }
  if (parts.empty()) return "";
  return fmt::format(
      "<section><h2>Stragglers</h2><p class=\"hint\">Ranks that computed slower than the median in {} logged intervals in a "
      "row (health.straggler). All others waited for them.</p>{}</section>",
      telemetry::StragglerWatch::kIntervals, parts);
}

std::string fact_name(std::string_view json_name) {
  std::string name(json_name);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}
std::string fact_text(const std::string& value) { return escape(value); }
std::string fact_text(std::int64_t value) { return value <= 0 ? "" : format_count(value); }
std::string fact_text(const telemetry::JsonText&) { return ""; }
std::string fact_text(double value) { return std::isfinite(value) ? format_significant(value, 3) : ""; }

// Facts that all runs share are listed once. The other facts go into a table with a row for each run.
std::string facts_section(const std::vector<Shown>& shown) {
  struct Fact {
    std::string name;
    std::vector<std::string> values;
  };
  std::vector<Fact> facts;
  for (const Shown& s : shown) {
    std::size_t index = 0;
    telemetry::visit_fields(s.run->info, [&](const telemetry::FieldName& name, const auto& value) {
      const std::string_view json = name.json;
      const RunInfo& info = s.run->info;
      if (facts.size() <= index) facts.push_back({json == "started" ? "resumed" : fact_name(json), {}});
      const bool is_again = json == "started" && info.started == info.first_started;  // never resumed
      facts[index++].values.push_back(json == "seed" ? std::to_string(info.seed) : is_again ? "" : fact_text(value));
    });
  }
  std::string shared, head, body;
  std::vector<const Fact*> different;
  for (const Fact& fact : facts) {
    if (fact.name == "name" || fact.name == "repeat of") continue;
    const bool same = std::all_of(fact.values.begin(), fact.values.end(), [&](const std::string& value) { return value == fact.values.front(); });
    if (!same) {
      different.push_back(&fact);
      put(head, "<th class=\"words\">{}</th>", fact.name);
    } else if (!fact.values.front().empty()) {
      put(shared, "<div><dt>{}</dt><dd>{}</dd></div>", fact.name, fact.values.front());
    }
  }
  for (std::size_t i = 0; !different.empty() && i < shown.size(); ++i) {
    put(body, "<tr><td class=\"name\">{}{}</td>", swatch(shown[i]), escape(shown[i].row->label));
    for (const Fact* fact : different) body += cell(fact->name, fact->values[i].empty() ? "–" : fact->values[i], "words wrap");
    body += "</tr>";
  }
  std::string out = "<section><h2>Runs</h2>";
  if (!shared.empty()) put(out, "<dl>{}</dl>", shared);
  if (!body.empty()) {
    put(out, "<table class=\"cards\"><thead><tr><th></th>{}</tr></thead><tbody>{}</tbody></table>", head, body);
  }
  std::int64_t broken = 0;
  for (const Shown& s : shown) broken += s.run->broken_lines;
  if (broken > 0) put(out, "<p class=\"hint\">{} unreadable lines of the metrics files were passed over.</p>", format_count(broken));
  return out + "</section>";
}
}  // namespace

std::string render_html(std::string_view title, std::span<const Run> runs, const Comparison& comparison, const PageExtras& extras) {
  const std::vector<Shown> shown = shown_runs(runs, comparison);
  std::vector<std::string> colours;
  for (const Shown& s : shown) colours.push_back(s.colour);
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">";
  put(out, "<title>{}</title><style>{}</style>{}</head>\n<body><main>", escape(title), page_style(), extras.head);
  put(out, "<header><p class=\"eyebrow\">Octet training report</p><h1>{}</h1>", escape(title));
  put(out, "<p class=\"lead\">{}</p></header>\n{}", lead(shown, comparison), extras.top);
  if (shown.empty() && extras.top.empty()) {
    out += "<section><p>No runs.</p></section>";
  } else if (!shown.empty()) {
    for (const std::string& section : {scaling_section(comparison, colours), table_section(shown, comparison),
                                       loss_section(shown), held_out_section(shown, comparison), gap_section(shown, comparison),
                                       speed_section(shown, comparison), health_section(shown), experts_section(shown),
                                       attempts_section(shown), stragglers_section(shown), facts_section(shown)}) {
      out += section;
      out += '\n';
    }
  }
  const std::string version = shown.empty() ? "" : shown.front().run->info.version;
  put(out, "<footer>Octet {}</footer></main></body></html>\n", escape(version));
  return out;
}

void write_report(const std::filesystem::path& directory, std::string_view title, std::span<const Run> runs, const Comparison& comparison) {
  create_output([&] {
    make_folders(directory);
    write_file_atomically(directory / "report.json", render_json(comparison));
    write_file_atomically(directory / "report.html", render_html(title, runs, comparison));
  });
}

}  // namespace octet::report

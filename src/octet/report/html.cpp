#include "octet/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <system_error>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/report/charts.h"
#include "octet/report/health.h"
#include "octet/report/page.h"
#include "octet/report/scaling.h"
#include "octet/report/style.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {
using telemetry::format_compact;
using telemetry::format_count;
using telemetry::format_duration;
using telemetry::format_significant;
using telemetry::kUnknown;
using telemetry::RunInfo;
using telemetry::StepMetrics;

constexpr std::size_t kMaxPoints = 900;
constexpr int kColours = 8;

// A run and how it is shown everywhere. Runs are in the order of the comparison's rows.
struct Shown {
  const Run* run;
  const Row* row;
  std::string colour;
  bool dashed;
};

std::string preferred_colour(const std::string& recipe) {
  static const std::vector<std::string> kRecipes{"bf16", "fp8_delayed", "fp8_current", "fp8_block", "fp8_rowwise", "mxfp8", "fp32"};
  const auto found = std::find(kRecipes.begin(), kRecipes.end(), recipe);
  return found == kRecipes.end() ? "" : fmt::format("c{}", found - kRecipes.begin());
}

// The comparison lists the runs in their order and the repeats last.
std::vector<Shown> shown_runs(std::span<const Run> runs, const Comparison& comparison) {
  std::vector<const Run*> ordered;
  for (const bool repeats : {false, true}) {
    for (const Run& run : runs) {
      if (run.info.repeat_of.empty() != repeats) ordered.push_back(&run);
    }
  }
  require(ordered.size() == comparison.rows.size(), "report: ", ordered.size(), " runs but ", comparison.rows.size(), " rows");
  std::vector<Shown> shown;
  std::set<std::string> taken;
  for (const Run* run : ordered) taken.insert(preferred_colour(run->info.recipe));
  std::set<std::string> used;
  int next = 0;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const Row& row = comparison.rows[i];
    std::string colour = preferred_colour(ordered[i]->info.recipe);
    if (row.is_repeat) {
      const auto original = std::find_if(shown.begin(), shown.end(), [&](const Shown& s) {
        return s.row->summary.name == row.summary.repeat_of && s.row->summary.processes == row.summary.processes;
      });
      if (original != shown.end()) colour = original->colour;
    } else if (colour.empty() || used.count(colour) > 0) {
      for (int tries = 0; tries < kColours; ++tries) {
        colour = fmt::format("c{}", next++ % kColours);
        if (taken.insert(colour).second) break;
      }
    }
    if (colour.empty()) colour = "c0";
    used.insert(colour);
    shown.push_back({ordered[i], &row, colour, row.is_repeat});
  }
  return shown;
}

bool on_gpu(const std::vector<Shown>& shown) {
  return std::any_of(shown.begin(), shown.end(), [](const Shown& s) { return s.run->info.device == "cuda"; });
}
const char* per_process(const std::vector<Shown>& shown) { return on_gpu(shown) ? "tokens/s/GPU" : "tokens/s per process"; }

std::string swatch(const Shown& s) { return fmt::format("<span class=\"swatch {}{}\"></span>", s.colour, s.dashed ? " dashed" : ""); }

std::string legend(const std::vector<Shown>& shown, const std::string& more) {
  std::string out = "<ul class=\"legend\">";
  for (const Shown& s : shown) put(out, "<li>{}{}</li>", swatch(s), escape(s.row->label));
  return out + more + "</ul>";
}

std::vector<Point> points_of(const Run& run, double (*get)(const StepMetrics&)) {
  std::vector<Point> points;
  for (const StepMetrics& line : run.metrics) points.push_back({static_cast<double>(line.step), get(line)});
  return points;
}
double loss_of(const StepMetrics& line) { return line.loss; }
double grad_norm_of(const StepMetrics& line) { return line.grad_norm; }

// `share`: the deviation of the Gaussian window as a share of the run.
std::vector<Point> smooth_line(const std::vector<Point>& points, double share = 0.01) {
  const std::vector<Point> thinned = thin(points, kMaxPoints);
  return smooth(thinned, share * static_cast<double>(thinned.size()));
}

double last_step(const std::vector<Shown>& shown) {
  std::int64_t last = 0;
  for (const Shown& s : shown) last = std::max(last, s.row->summary.steps);
  return static_cast<double>(last);
}
std::string step_label(const std::vector<Shown>& shown) {
  const std::int64_t tokens = shown.empty() ? 0 : shown.front().run->info.tokens_per_step;
  const bool same = std::all_of(shown.begin(), shown.end(), [&](const Shown& s) { return s.run->info.tokens_per_step == tokens; });
  return same && tokens > 0 ? fmt::format("step, {} tokens each", format_count(tokens)) : "step";
}
std::string step_text(double step) { return "step " + format_count(step); }

// The sentences under the title: what a reader wants to know first.
std::string lead(const std::vector<Shown>& shown, const Comparison& comparison) {
  if (comparison.scales) return scaling_lead(comparison);
  std::string out;
  const Row* farthest = nullptr;
  const Row* fastest = nullptr;
  int compared = 0;
  for (const Shown& s : shown) {
    const Row& row = *s.row;
    if (row.is_baseline || row.is_repeat || comparison.baseline.empty()) continue;
    if (!std::isfinite(row.summary.mean_loss) || !std::isfinite(row.summary.final_loss)) {
      put(out, "<strong>{} ends without a finite loss.</strong> ", escape(row.label));
    }
    if (!std::isfinite(row.mean_loss_pct)) continue;
    ++compared;
    if (!farthest || std::abs(row.mean_loss_pct) > std::abs(farthest->mean_loss_pct)) farthest = &row;
    if (std::isfinite(row.faster_pct) && (!fastest || row.faster_pct > fastest->faster_pct)) fastest = &row;
  }
  const std::string base = escape(comparison.baseline);
  if (compared == 1) {
    put(out, "<strong>{} ends {} {} {}</strong> in mean loss over the last tenth. ", escape(farthest->summary.name),
        fmt::format("{:.2f} %", std::abs(farthest->mean_loss_pct)), farthest->mean_loss_pct < 0 ? "below" : "above", base);
  } else if (compared > 1) {
    put(out, "<strong>{} recipes end within {:.2f} % of {}</strong> in mean loss over the last tenth; the farthest is {}. ",
        compared == 2 ? "Both" : fmt::format("All {}", compared), std::abs(farthest->mean_loss_pct), base, escape(farthest->summary.name));
  }
  if (comparison.spread && std::isfinite(comparison.spread->mean_loss_pct)) {
    put(out, "{} itself moves by {:.2f} % when it is trained twice. ", base, comparison.spread->mean_loss_pct);
  }
  if (fastest && fastest->faster_pct > 0) {
    put(out, "<strong>{} is the fastest, {:.0f} % faster than {}.</strong> ", escape(fastest->summary.name), fastest->faster_pct, base);
  }
  if (fastest && !on_gpu(shown)) out += "On a CPU, FP8 is emulated: what this run shows is the loss, not the speed of a GPU.";
  if (out.empty() && shown.size() == 1) {
    const Summary& s = shown.front().row->summary;
    put(out, "{} steps, {} tokens, in {}.", format_count(s.steps), format_compact(static_cast<double>(s.tokens)), format_duration(s.train_time_s));
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
  // Gaps below half a percent are what the recipes are held to; they are no warning.
  const double noise = std::max(band, 0.5);
  const bool initial = has_initial_losses(comparison);
  std::string out = "<section><div class=\"scroll\"><table><thead><tr><th>recipe</th>";
  put(out, "<th>{}{}</th><th>final loss</th><th>mean of the<br>last tenth</th><th>held-out<br>loss</th>{}", per_process(shown),
      compared ? "<br>% faster" : "", initial ? "<th>before<br>step 1</th>" : "");
  if (compared) put(out, "<th class=\"middle\">gap to {}<br>−{:g} % to +{:g} %</th>", escape(comparison.baseline), limit, limit);
  // Where all are alone, nobody waits for others.
  const bool together = std::any_of(shown.begin(), shown.end(), [](const Shown& s) { return s.row->summary.processes > 1; });
  put(out, "<th>peak<br>memory</th>{}{}<th>time</th></tr></thead><tbody>", on_gpu(shown) ? "<th>TFLOPS<br>MFU</th>" : "",
      together ? "<th>exposed<br>communication</th>" : "");
  for (const Shown& s : shown) {
    const Row& row = *s.row;
    const Summary& sum = row.summary;
    put(out, "<tr{}><td class=\"name\">{}{}</td>", row.is_repeat ? " class=\"repeat\"" : "", swatch(s), escape(row.label));
    out += cell(count_or_dash(sum.tokens_per_s_per_process), row.is_repeat ? kUnknown : row.faster_pct, 1, 1, on_gpu(shown) ? 1 : INFINITY);
    out += cell(number(sum.final_loss, 4), row.final_loss_pct, 2, -1, noise);
    out += cell(number(sum.mean_loss, 4), row.mean_loss_pct, 2, -1, noise);
    out += cell(number(sum.eval_loss, 4), row.eval_loss_pct, 2, -1, noise);
    if (initial) out += cell(number(sum.initial_eval_loss, 4), row.initial_eval_loss_pct, 2, -1, noise);
    if (compared) {
      const GapPlot plot{s.colour, row.is_baseline ? 0 : row.mean_loss_pct, row.is_baseline ? kUnknown : row.eval_loss_pct, band, limit};
      put(out, "<td class=\"middle\">{}</td>", draw(plot));
    }
    put(out, "<td>{}</td>", gib_or_dash(sum.memory_peak_gib));
    if (on_gpu(shown)) {
      put(out, "<td>{}<small>{}</small></td>", number(sum.tflops_per_process, 0), std::isfinite(sum.mfu) ? fmt::format("{:.1f} %", 100 * sum.mfu) : "");
    }
    if (together) put(out, "<td>{}</td>", share_or_dash(sum.exposed_pct));
    put(out, "<td>{}</td></tr>", sum.train_time_s > 0 ? format_duration(sum.train_time_s) : "–");
  }
  out += "</tbody></table></div><p class=\"hint\">";
  if (compared) {
    put(out, "Small figures: difference from {}. In the gap, a dot is the mean loss over the last tenth of the steps, a ring the held-out loss. ",
        escape(comparison.baseline));
  }
  if (initial) {
    out += "Before step 1: the held-out loss of the weights that a run goes on from, and how much higher it is than that of the same "
           "weights in BF16. ";
  }
  const std::string spread = spread_sentence(comparison);
  if (!spread.empty()) put(out, "{} That is the shaded band: a gap inside it is noise.", escape(spread));
  return out + "</p></section>";
}

// The range of a chart: all of the lines, and the raw values without the wildest.
std::pair<double, double> value_range(const std::vector<Series>& series, ScaleKind kind) {
  double low = INFINITY, high = -INFINITY;
  std::vector<double> raw;
  const auto usable = [&](double y) { return std::isfinite(y) && (kind == ScaleKind::linear || y > 0); };
  for (const Series& s : series) {
    for (const Point& point : s.line) {
      if (!usable(point.y)) continue;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
    for (const Point& point : s.raw) {
      if (usable(point.y)) raw.push_back(point.y);
    }
  }
  if (!raw.empty()) {
    low = std::min(low, quantile(raw, 0.005));
    high = std::max(high, quantile(raw, 0.995));
  }
  return {low, high};
}

// The last tenth of the same curves, where the recipes differ by less than the width of a line.
std::string loss_close_up(const LineChart& whole) {
  LineChart chart = whole;
  chart.description = "training loss in the last tenth of the steps";
  chart.y_label = "the last tenth";
  chart.y_kind = ScaleKind::linear;
  chart.width = 352;
  for (Series& series : chart.series) {
    series.raw.clear();
    const auto early = [&](const Point& point) { return !(point.x > 0.9 * chart.x_high); };
    std::erase_if(series.line, early);
    std::erase_if(series.marks, early);
    if (series.style == "thick") series.style = "";
  }
  std::tie(chart.y_low, chart.y_high) = value_range(chart.series, chart.y_kind);
  const double margin = 0.06 * (chart.y_high - chart.y_low);
  chart.y_low -= margin;
  chart.y_high += margin;
  for (Series& series : chart.series) {
    std::erase_if(series.marks, [&](const Point& point) { return !(point.y >= chart.y_low && point.y <= chart.y_high); });
  }
  return draw(chart);
}

std::string loss_section(const std::vector<Shown>& shown) {
  LineChart chart{.description = "training loss over the steps", .series = {}, .x_label = step_label(shown), .y_label = "loss, logarithmic",
                  .y_kind = ScaleKind::logarithmic, .y_low = 0, .y_high = 0, .x_high = last_step(shown), .x_text = step_text, .y_text = [](double y) { return number(y, 4); },
                  .width = 700, .height = 400};
  bool evaluated = false;
  for (const Shown& s : shown) {
    const std::vector<Point> loss = points_of(*s.run, loss_of);
    Series series{.name = s.row->label, .colour = s.colour, .style = s.dashed ? "dashed" : s.row->is_baseline ? "thick" : "",
                  .raw = thin(loss, kMaxPoints), .line = smooth_line(loss)};
    if (s.dashed) series.raw.clear();
    for (const StepMetrics& line : s.run->metrics) {
      if (line.eval_loss && !s.dashed) series.marks.push_back({static_cast<double>(line.step), *line.eval_loss});
    }
    if (series.marks.size() > 40) series.marks = thin(series.marks, 40);
    evaluated |= !series.marks.empty();
    chart.series.push_back(std::move(series));
  }
  std::tie(chart.y_low, chart.y_high) = value_range(chart.series, chart.y_kind);
  const std::string more = evaluated ? "<li><span class=\"ring\"></span>held-out</li>" : "";
  return fmt::format("<section><h2>Loss</h2><p class=\"hint\">Smoothed over a hundredth of the run; the faint line is every logged step.</p>{}"
                     "<div class=\"zoom\"><figure>{}</figure><figure>{}</figure></div></section>",
                     legend(shown, more), draw(chart), loss_close_up(chart));
}

// 100 * (loss / baseline's loss - 1) at the steps that both have.
std::vector<Point> gap_points(const Run& run, const Run& baseline) {
  std::vector<Point> points;
  auto base = baseline.metrics.begin();
  for (const StepMetrics& line : run.metrics) {
    while (base != baseline.metrics.end() && base->step < line.step) ++base;
    if (base == baseline.metrics.end()) break;
    if (base->step == line.step) points.push_back({static_cast<double>(line.step), 100 * (line.loss / base->loss - 1)});
  }
  return points;
}

std::string gap_section(const std::vector<Shown>& shown, const Comparison& comparison) {
  const auto compared = [](const Shown& s) { return s.row->baseline && !s.row->is_baseline; };
  if (std::none_of(shown.begin(), shown.end(), compared)) return "";
  LineChart chart{.description = "difference in training loss from the baseline over the steps", .series = {}, .x_label = step_label(shown),
                  .y_label = "% above " + comparison.baseline, .y_low = 0, .y_high = 0, .x_high = last_step(shown),
                  .band = comparison.spread && std::isfinite(comparison.spread->mean_loss_pct) ? comparison.spread->mean_loss_pct : 0,
                  .zero_line = true, .x_text = step_text, .y_text = [](double y) { return percent(y, 3); }, .height = 320};
  std::vector<double> late;
  std::vector<Shown> listed;
  for (const Shown& s : shown) {
    if (!compared(s)) continue;
    const std::vector<Point> gap = gap_points(*s.run, *shown[*s.row->baseline].run);
    chart.series.push_back({.name = s.row->label, .colour = s.colour, .style = s.dashed ? "dashed" : "",
                            .raw = {}, .line = smooth_line(gap, 0.025)});
    const auto& line = chart.series.back().line;
    // The first steps fall so fast that any two runs are far apart there.
    for (std::size_t i = line.size() / 20; i < line.size(); ++i) late.push_back(line[i].y);
    listed.push_back(s);
  }
  chart.y_low = std::min({quantile(late, 0) * 1.15, -0.1, -1.3 * chart.band});
  chart.y_high = std::max({quantile(late, 1) * 1.15, 0.1, 1.3 * chart.band});
  const std::string more = chart.band > 0 ? fmt::format("<li><span class=\"bar\"></span>spread of {}</li>", escape(comparison.baseline)) : "";
  return fmt::format("<section><h2>Distance from {}</h2><p class=\"hint\">The same batch at the same step, so that what the data does to the loss "
                     "cancels; smoothed over a fortieth of the run.</p>{}<figure class=\"scroll\"><div class=\"wide\">{}</div></figure></section>",
                     escape(comparison.baseline), legend(listed, more), draw(chart));
}

std::string speed_section(const std::vector<Shown>& shown) {
  BarChart bars{.description = "throughput by recipe", .bars = {}};
  LineChart norms{.description = "gradient norm over the steps", .series = {}, .x_label = "step", .y_label = "logarithmic",
                  .y_kind = ScaleKind::logarithmic, .y_low = 0, .y_high = 0, .x_high = last_step(shown), .x_text = step_text,
                  .y_text = [](double y) { return format_significant(y, 3); }, .width = 520, .height = 300};
  for (const Shown& s : shown) {
    if (s.row->is_repeat) continue;
    const double speed = s.row->summary.tokens_per_s_per_process;
    bars.bars.push_back({s.row->label, s.colour, speed, count_or_dash(speed), percent(s.row->faster_pct, 1)});
    const std::vector<Point> norm = points_of(*s.run, grad_norm_of);
    norms.series.push_back({.name = s.row->label, .colour = s.colour, .style = "", .raw = {}, .line = smooth_line(norm)});
  }
  std::tie(norms.y_low, norms.y_high) = value_range(norms.series, norms.y_kind);
  return fmt::format("<section class=\"pair\"><div><h2>Throughput</h2><p class=\"hint\">{}, median after the first tenth.</p><figure>{}</figure></div>"
                     "<div><h2>Gradient norm</h2><p class=\"hint\">Global, before clipping, smoothed.</p><figure>{}</figure></div></section>",
                     per_process(shown), draw(bars), draw(norms));
}

std::string worst_cell(const Run& run, HealthMetric metric, const char* unit) {
  const WorstSample worst = worst_sample(run, metric);
  if (worst.tensor.empty()) return "<td>–<small>&nbsp;</small></td>";
  if (worst.value == 0 && metric != HealthMetric::sqnr) return "<td>none<small>&nbsp;</small></td>";
  return fmt::format("<td>{} {}<small>{}, step {}</small></td>", format_significant(worst.value, 3), unit, escape(worst.tensor),
                     format_count(worst.step));
}

std::string health_section(const std::vector<Shown>& shown) {
  std::string rows, sheets;
  for (const Shown& s : shown) {
    if (s.run->health.empty() || s.row->is_repeat) continue;
    const HealthSheet sheet = health_sheet(*s.run);
    const std::string name = escape(s.row->label);
    put(rows, "<tr><td class=\"name\">{}{}</td>{}{}{}</tr>", swatch(s), name, worst_cell(*s.run, HealthMetric::sqnr, "dB"),
        worst_cell(*s.run, HealthMetric::saturated, "%"), worst_cell(*s.run, HealthMetric::flushed, "%"));
    put(sheets, "<details open><summary>{}{}<span>{} linear layers; each strip runs from step {} to {}</span></summary>", swatch(s), name,
        format_count(static_cast<std::int64_t>(sheet.rows.size())), format_count(sheet.first_step), format_count(sheet.last_step));
    put(sheets, "<figure class=\"scroll\"><div class=\"wide\">{}</div></figure></details>", draw(sheet, "FP8 health of " + s.row->label));
  }
  if (rows.empty()) return "";
  return fmt::format("<section><h2>FP8 health</h2><p class=\"hint\">What the casts did to inputs, weights and output gradients of every linear layer. "
                     "Blue strips have a range of their own, written below; the warm ones share theirs, and the warmer the worse.</p>"
                     "<div class=\"scroll\"><table><thead><tr><th>at worst</th><th>signal to noise</th><th>saturated</th><th>flushed to zero</th></tr>"
                     "</thead><tbody>{}</tbody></table></div>{}</section>",
                     rows, sheets);
}

std::string fact_name(std::string_view json_name) {
  std::string name(json_name);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}
std::string fact_text(const std::string& value) { return escape(value); }
std::string fact_text(std::int64_t value) { return value == 0 ? "" : format_count(value); }
std::string fact_text(double value) { return std::isfinite(value) ? format_significant(value, 3) : ""; }

// Facts that all runs share stand once; the others in a table, a row per run.
std::string facts_section(const std::vector<Shown>& shown) {
  struct Fact {
    std::string name;
    std::vector<std::string> values;
  };
  std::vector<Fact> facts;
  for (const Shown& s : shown) {
    std::size_t index = 0;
    telemetry::visit_fields(s.run->info, [&](const telemetry::FieldName& name, const auto& value) {
      if (facts.size() <= index) facts.push_back({fact_name(name.json), {}});
      facts[index++].values.push_back(name.json == std::string_view("seed") ? std::to_string(s.run->info.seed) : fact_text(value));
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
    for (const Fact* fact : different) put(body, "<td class=\"words\">{}</td>", fact->values[i].empty() ? "–" : fact->values[i]);
    body += "</tr>";
  }
  std::string out = "<section><h2>Runs</h2>";
  if (!shared.empty()) put(out, "<dl>{}</dl>", shared);
  if (!body.empty()) {
    put(out, "<div class=\"scroll\"><table><thead><tr><th></th>{}</tr></thead><tbody>{}</tbody></table></div>", head, body);
  }
  std::int64_t broken = 0;
  for (const Shown& s : shown) broken += s.run->broken_lines;
  if (broken > 0) put(out, "<p class=\"hint\">{} unreadable lines of the metrics files were passed over.</p>", format_count(broken));
  return out + "</section>";
}
}  // namespace

std::string render_html(std::string_view title, std::span<const Run> runs, const Comparison& comparison) {
  const std::vector<Shown> shown = shown_runs(runs, comparison);
  std::vector<std::string> colours;
  for (const Shown& s : shown) colours.push_back(s.colour);
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">";
  put(out, "<title>{}</title><style>{}</style></head>\n<body><main>", escape(title), kStyle);
  put(out, "<header><p class=\"eyebrow\">Octet training report</p><h1>{}</h1>", escape(title));
  put(out, "<p class=\"lead\">{}</p></header>\n", lead(shown, comparison));
  if (shown.empty()) {
    out += "<section><p>No runs.</p></section>";
  } else {
    for (const std::string& section : {scaling_section(comparison, colours), table_section(shown, comparison), loss_section(shown), gap_section(shown, comparison), speed_section(shown),
                                       health_section(shown), facts_section(shown)}) {
      out += section;
      out += '\n';
    }
  }
  const std::string version = shown.empty() ? "" : shown.front().run->info.version;
  put(out, "<footer>Octet {}</footer></main></body></html>\n", escape(version));
  return out;
}

void write_report(const std::filesystem::path& directory, std::string_view title, std::span<const Run> runs, const Comparison& comparison) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  demand(!error, ExitCode::internal, directory.string(), ": cannot create: ", error.message());
  write_file_atomically(directory / "report.json", render_json(comparison));
  write_file_atomically(directory / "report.html", render_html(title, runs, comparison));
}

}  // namespace octet::report

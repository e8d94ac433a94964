#include "octet/report/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "octet/report/page.h"
#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

using telemetry::ExpertSample;
using telemetry::format_count;

constexpr std::size_t kMostPictures = 6;  // of mixtures; a page with all of a large model's would be heavy
// Lower bounds of the shades 1 to 8 (CSS classes h1 to h8 of style.h), in multiples of the fair share.
constexpr std::array kLoadBounds = {0.1, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 8.0};
constexpr double kWide = 1000;  // the plane of a picture, which is stretched to the page

std::size_t shade_of(double load) {
  return static_cast<std::size_t>(std::count_if(kLoadBounds.begin(), kLoadBounds.end(), [&](double b) { return load >= b; }));
}

std::string times(double load) { return telemetry::format_significant(load, 2) + "×"; }

void summarise(ExpertSheet& sheet) {
  const std::size_t recent = std::max<std::size_t>(1, sheet.columns / 4);
  for (std::size_t e = 0; e < sheet.experts; ++e) {
    const double* const end = sheet.loads.data() + (e + 1) * sheet.columns;
    sheet.recent.push_back(std::accumulate(end - recent, end, 0.0) / static_cast<double>(recent));
  }
  sheet.fullest = static_cast<std::size_t>(std::max_element(sheet.recent.begin(), sheet.recent.end()) - sheet.recent.begin());
  sheet.emptiest = static_cast<std::size_t>(std::min_element(sheet.recent.begin(), sheet.recent.end()) - sheet.recent.begin());
  sheet.starved = static_cast<std::size_t>(
      std::count_if(sheet.recent.begin(), sheet.recent.end(), [](double load) { return load < telemetry::kStarved; }));
}

ExpertSheet sheet_of(const std::vector<const ExpertSample*>& samples) {
  ExpertSheet sheet{.layer = samples.back()->layer,
                    .experts = samples.back()->chosen.size(),
                    .columns = std::min(samples.size(), kMaxExpertColumns),
                    .first_step = samples.front()->step,
                    .last_step = samples.back()->step};
  sheet.loads.assign(sheet.experts * sheet.columns, 0);
  std::vector<double> counts(sheet.columns);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::vector<std::int64_t>& chosen = samples[i]->chosen;
    const double all = static_cast<double>(std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0}));
    if (chosen.size() != sheet.experts || all <= 0) continue;
    const std::size_t column = i * sheet.columns / samples.size();
    ++counts[column];
    for (std::size_t e = 0; e < sheet.experts; ++e)
      sheet.loads[e * sheet.columns + column] += static_cast<double>(chosen[e]) * static_cast<double>(sheet.experts) / all;
  }
  for (std::size_t i = 0; i < sheet.loads.size(); ++i) sheet.loads[i] /= counts[i % sheet.columns];
  summarise(sheet);
  return sheet;
}

std::string table_of(const std::vector<ExpertSheet>& sheets) {
  std::string rows;
  for (const ExpertSheet& s : sheets) {
    const auto expert = [&](std::size_t e) { return fmt::format("{}<small>expert {}</small>", times(s.recent[e]), e); };
    put(rows, "<tr><td class=\"name\">{}</td>{}{}{}</tr>", escape(s.layer), cell("fullest expert", expert(s.fullest)),
        cell("emptiest expert", expert(s.emptiest)),
        cell("starved", s.starved == 0 ? "none" : fmt::format("{} of {}", s.starved, s.experts)));
  }
  return fmt::format(
      "<table class=\"cards\"><thead><tr><th>mixture</th><th>fullest expert</th><th>emptiest expert</th><th>starved</th></tr>"
      "</thead><tbody>{}</tbody></table>",
      rows);
}

std::string picture_of(const ExpertSheet& s) {
  const double row = std::clamp(160.0 / static_cast<double>(s.experts), 2.0, 14.0);
  const double height = row * static_cast<double>(s.experts), width = kWide / static_cast<double>(s.columns);
  std::array<std::string, kLoadBounds.size() + 1> paths;
  for (std::size_t e = 0; e < s.experts; ++e) {
    for (std::size_t column = 0; column < s.columns; ++column) {
      const double load = s.loads[e * s.columns + column];
      if (!std::isfinite(load)) continue;
      put(paths[shade_of(load)], "M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z", static_cast<double>(column) * width,
          static_cast<double>(e) * row, width, row, width);
    }
  }
  std::string out = fmt::format(
      "<svg class=\"chart\" role=\"img\" aria-label=\"Loads of the experts of {}\" height=\"{:.0f}\" viewBox=\"0 0 {:.0f} "
      "{:.0f}\" "
      "preserveAspectRatio=\"none\">",
      escape(s.layer), height, kWide, height);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!paths[i].empty()) put(out, "<path class=\"h{}\" d=\"{}\"/>", i, paths[i]);
  }
  for (std::size_t e = 0; e < s.experts; ++e) {
    put(out,
        "<rect class=\"hit\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"><title>expert {}: {} of its fair share at the "
        "end</title></rect>",
        static_cast<double>(e) * row, kWide, row, e, times(s.recent[e]));
  }
  return out + "</svg>";
}

std::string legend() {
  std::string out = "<svg class=\"chart\" height=\"26\" role=\"img\" aria-label=\"Shades of the loads\">";
  const double width = 100.0 / static_cast<double>(kLoadBounds.size() + 1);
  for (std::size_t i = 0; i <= kLoadBounds.size(); ++i)
    put(out, "<rect class=\"h{}\" x=\"{:.2f}%\" y=\"2\" width=\"{:.2f}%\" height=\"6\"/>", i, static_cast<double>(i) * width,
        width);
  for (std::size_t i = 0; i < kLoadBounds.size(); ++i) {
    put(out, "<text class=\"fine\" text-anchor=\"middle\" x=\"{:.2f}%\" y=\"22\">{}</text>", static_cast<double>(i + 1) * width,
        times(kLoadBounds[i]));
  }
  return out + "</svg>";
}

}  // namespace

std::vector<ExpertSheet> expert_sheets(const Run& run) {
  std::vector<std::string> order;
  std::unordered_map<std::string, std::vector<const ExpertSample*>> samples;
  for (const ExpertSample& sample : run.experts) {
    if (sample.chosen.empty()) continue;
    std::vector<const ExpertSample*>& of_layer = samples[sample.layer];
    if (of_layer.empty()) order.push_back(sample.layer);
    of_layer.push_back(&sample);
  }
  std::vector<ExpertSheet> sheets;
  for (const std::string& layer : order) sheets.push_back(sheet_of(samples[layer]));
  return sheets;
}

std::string draw_experts(const std::vector<ExpertSheet>& sheets) {
  if (sheets.empty()) return "";
  std::vector<const ExpertSheet*> shown;
  for (const ExpertSheet& sheet : sheets) shown.push_back(&sheet);
  std::stable_sort(shown.begin(), shown.end(),
                   [](const ExpertSheet* a, const ExpertSheet* b) { return a->recent[a->fullest] > b->recent[b->fullest]; });
  if (shown.size() > kMostPictures) shown.resize(kMostPictures);
  std::string out = table_of(sheets);
  if (shown.size() < sheets.size())
    put(out, "<p class=\"hint\">Pictures of the {} mixtures whose loads differ most.</p>", shown.size());
  for (const ExpertSheet* sheet : shown) {
    put(out, "<p class=\"hint\">{}: experts 0 to {} from top to bottom, steps {} to {}</p><figure>{}</figure>",
        escape(sheet->layer), sheet->experts - 1, format_count(sheet->first_step), format_count(sheet->last_step),
        picture_of(*sheet));
  }
  return out + "<figure>" + legend() + "</figure>";
}

}  // namespace octet::report

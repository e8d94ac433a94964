#include "octet/report/style.h"

#include <array>
#include <string_view>

#include "octet/base/require.h"

namespace octet::report {
namespace {

struct Colour {
  const char* name;
  const char* light;
  const char* dark;
};
// c: recipes. h: shades of a health strip with a range of its own. t: shades of a health strip that mean trouble.
constexpr std::array kColours = std::to_array<Colour>({
    {"page", "#fcfbf8", "#131417"}, {"ink", "#1d1c1a", "#eceae5"}, {"soft", "#5f5b54", "#a9a59d"},
    {"faint", "#7d786f", "#8b877f"}, {"rule", "#e5e1d8", "#2c2d31"}, {"grid", "#eeebe4", "#222327"},
    {"track", "#efece5", "#232428"}, {"band", "#e9e5da", "#26282d"}, {"good", "#1b7f5c", "#5cc79f"},
    {"bad", "#b3401f", "#f08a66"}, {"c0", "#34312c", "#dcd8cf"}, {"c1", "#2b6cd9", "#6ea2ff"},
    {"c2", "#d8622a", "#ff9a5e"}, {"c3", "#12886a", "#43c79d"}, {"c4", "#8449cf", "#b68cfa"},
    {"c5", "#c23a79", "#f07fb2"}, {"c6", "#92782b", "#d0b55f"}, {"c7", "#1b8fa8", "#58c5dc"},
    {"h0", "#eff2f6", "#1d232b"}, {"h1", "#dfe6ef", "#222d39"}, {"h2", "#ccd8e6", "#293949"},
    {"h3", "#b4c6da", "#32475c"}, {"h4", "#98b0cb", "#3e5872"}, {"h5", "#7a97b8", "#4d6d8c"},
    {"h6", "#5b7ca1", "#6285a8"}, {"h7", "#3f6087", "#82a3c4"}, {"h8", "#27456a", "#aecae4"},
    {"t0", "#e9eee8", "#1e2623"}, {"t1", "#e3ead0", "#2f3524"}, {"t2", "#efe6b4", "#4a4426"},
    {"t3", "#f5d68f", "#6b5426"}, {"t4", "#f3ba6b", "#8f6428"}, {"t5", "#ea9650", "#b5702d"},
    {"t6", "#d86d3e", "#d67a3a"}, {"t7", "#bb4534", "#ef7d5c"}, {"t8", "#8f2230", "#ff8f8f"},
});

constexpr const char* kPageRules = R"css(* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-font-smoothing: antialiased;
}
main { max-width: 1128px; margin: 0 auto; padding: 64px 24px 72px; }
.eyebrow { margin: 0 0 10px; font-size: 12.5px; letter-spacing: .09em; text-transform: uppercase; color: var(--faint); }
h1 { margin: 0; font-size: 38px; line-height: 1.15; font-weight: 650; letter-spacing: -.022em; overflow-wrap: anywhere; }
.lead { margin: 18px 0 0; max-width: 38em; font-size: 20px; line-height: 1.5; letter-spacing: -.006em; color: var(--soft); }
.lead strong { color: var(--ink); font-weight: 600; }
section { margin-top: 60px; }
h2 { margin: 0 0 4px; font-size: 22px; line-height: 1.25; font-weight: 620; letter-spacing: -.014em; }
h2 + .hint { margin: 0 0 18px; }
.hint { max-width: 46em; font-size: 14.5px; color: var(--soft); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 40px; }
.zoom { display: grid; grid-template-columns: 700fr 352fr; gap: 0 28px; }
table { width: 100%; border-collapse: collapse; font-size: 15px; }
th, td { padding: 11px 0 11px 22px; text-align: right; vertical-align: baseline; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { padding-top: 0; font-size: 13px; line-height: 1.35; font-weight: 500; color: var(--faint); vertical-align: bottom; }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
td.words, th.words { text-align: left; }
td.middle, th.middle { text-align: center; }
td.wrap { white-space: normal; overflow-wrap: anywhere; }
td.lead-number { font-weight: 550; }
td small { display: block; font-size: 13px; line-height: 1.4; color: var(--faint); }
td small.good { color: var(--good); }
td small.bad { color: var(--bad); }
td.name { font-weight: 550; }
tr.repeat td { color: var(--soft); }
tr.repeat td.name { font-weight: 400; }
.swatch { display: inline-block; width: 18px; height: 3px; margin: 0 10px 4px 0; border-radius: 2px; background: currentColor; vertical-align: middle; }
.swatch.dashed { background: repeating-linear-gradient(90deg, currentColor 0 4px, transparent 4px 7px); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 12px; padding: 0; font-size: 14px; list-style: none; color: var(--soft); }
.legend .ring { display: inline-block; width: 9px; height: 9px; margin-right: 8px; border: 1.6px solid var(--faint); border-radius: 50%; }
.legend .bar { display: inline-block; width: 18px; height: 11px; margin: 0 8px -1px 0; background: var(--band); }
figure { margin: 0; break-inside: avoid; }
.plot { padding: 0 16px 0 52px; }
svg.chart { display: block; width: 100%; overflow: visible; }
.sheet { display: grid; grid-template-columns: 116px repeat(5, minmax(0, 1fr)); gap: 0 18px; }
.sheet svg.labels { display: block; width: 116px; overflow: visible; }
.sheet svg.again { display: none; }
svg.gap { display: inline-block; width: 150px; height: 22px; vertical-align: middle; }
svg.gap .grid { stroke: var(--rule); }
.live { margin-top: 30px; }
.live ul { display: grid; gap: 10px; margin: 0 0 10px; padding: 0; list-style: none; }
.live li { display: grid; grid-template-columns: minmax(90px, max-content) minmax(80px, 1fr) auto; gap: 4px 18px; align-items: center; font-size: 15px; }
.live .who { font-weight: 550; overflow-wrap: anywhere; }
.live .where { color: var(--soft); }
.live .meter { height: 8px; border-radius: 4px; background: var(--track); overflow: hidden; }
.live .meter i { display: block; height: 100%; border-radius: 4px; background: var(--good); }
.live .lost { display: none; color: var(--bad); }
.is-lost .live .lost { display: inline; }
details { margin-top: 26px; border-top: 1px solid var(--rule); padding-top: 14px; }
summary { cursor: pointer; font-size: 16px; font-weight: 600; margin-bottom: 16px; }
summary span { font-weight: 400; color: var(--faint); font-size: 14px; margin-left: 10px; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 16px 32px; margin: 18px 0 26px; }
dt { font-size: 13px; color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 64px; padding-top: 14px; border-top: 1px solid var(--rule); font-size: 13px; color: var(--faint); }
@media screen and (max-width: 820px) {
  main { padding: 36px 18px 48px; } h1 { font-size: 30px; } .lead { font-size: 17.5px; } .pair, .zoom { grid-template-columns: minmax(0, 1fr); gap: 40px; }
  svg .odd { display: none; }
  .sheet { grid-template-columns: 116px minmax(0, 1fr); gap: 22px 4px; }
  .sheet svg.again { display: block; }
  .live li { grid-template-columns: minmax(0, 1fr); }
  table.cards, .cards tbody { display: block; } .cards thead { display: none; }
  .cards tr { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); grid-auto-flow: dense; gap: 10px 14px; padding: 14px 0; border-bottom: 1px solid var(--rule); }
  .cards td { display: block; padding: 0; border: 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  .cards td::before { content: attr(data-column); display: block; font-size: 12.5px; line-height: 1.4; font-weight: 400; color: var(--faint); }
  .cards td.name { grid-column: 1 / -1; order: -1; } .cards td.name::before { content: none; }
  .cards td.middle { grid-column: span 2; } .cards svg.gap { display: block; margin: 4px 0 0 -6px; }
}
@media print {
  :root { --page: #fff; }
  main { max-width: none; padding: 0; } section { margin-top: 34px; } body { font-size: 11pt; } h1 { font-size: 26pt; }
  tr, figure, dl { break-inside: avoid; } h2, summary { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

// Elements drawn in a recipe's colour take it from one of the classes c0 to c7.
constexpr const char* kChartRules = R"css(svg text { font-family: inherit; fill: var(--ink); }
svg .tick, svg .label { font-size: 12.5px; fill: var(--faint); }
svg .fine { font-size: 11px; fill: var(--faint); }
svg .layer { font-size: 12px; font-weight: 600; fill: var(--soft); }
svg .name { font-size: 14px; }
svg .sheet-title { font-size: 13px; font-weight: 600; }
svg .value { font-size: 14px; }
svg .note { fill: var(--faint); }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis, svg .notch { stroke: var(--faint); stroke-width: 1; opacity: .6; }
svg .zero { stroke: var(--soft); stroke-width: 1; }
svg .band { fill: var(--band); }
svg .track { fill: var(--track); }
svg .bar { fill: currentColor; }
svg .line { fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linejoin: round; stroke-linecap: round; vector-effect: non-scaling-stroke; }
svg .line.thick { stroke-width: 3.4; opacity: .5; }
svg .line.dashed { stroke-dasharray: 5 5; stroke-width: 1.5; }
svg .raw { fill: none; stroke: currentColor; stroke-width: 1; stroke-linejoin: round; opacity: .16; vector-effect: non-scaling-stroke; }
svg .mark { fill: var(--page); stroke: currentColor; stroke-width: 1.6; }
svg .dot { fill: currentColor; }
svg .empty { fill: var(--track); opacity: .5; }
svg .tip rect, svg .hit { fill: transparent; }
svg .tip line { stroke: var(--soft); stroke-width: 1; opacity: 0; }
svg .tip:hover line { opacity: .55; }
svg .hit:hover { stroke: var(--ink); stroke-width: 1; vector-effect: non-scaling-stroke; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.h0 { fill: var(--h0); } .h1 { fill: var(--h1); } .h2 { fill: var(--h2); } .h3 { fill: var(--h3); } .h4 { fill: var(--h4); }
.h5 { fill: var(--h5); } .h6 { fill: var(--h6); } .h7 { fill: var(--h7); } .h8 { fill: var(--h8); }
.t0 { fill: var(--t0); } .t1 { fill: var(--t1); } .t2 { fill: var(--t2); } .t3 { fill: var(--t3); } .t4 { fill: var(--t4); }
.t5 { fill: var(--t5); } .t6 { fill: var(--t6); } .t7 { fill: var(--t7); } .t8 { fill: var(--t8); }
)css";

std::string variables(Theme theme) {
  std::string text;
  for (const Colour& colour : kColours) text += concat(" --", colour.name, ": ", theme == Theme::light ? colour.light : colour.dark, ";");
  return text;
}

}  // namespace

std::string page_style() {
  return concat("\n:root { color-scheme: light dark;", variables(Theme::light), " }\n@media (prefers-color-scheme: dark) { :root {",
                variables(Theme::dark), " } }\n", kChartRules, kPageRules);
}

std::string chart_style(Theme theme) {
  constexpr std::string_view kOpen = "var(--";
  std::string_view rest = kChartRules;
  std::string style;
  for (std::size_t at; (at = rest.find(kOpen)) != rest.npos;) {
    style.append(rest.substr(0, at));
    rest.remove_prefix(at + kOpen.size());
    const std::size_t end = rest.find(')');
    style += colour_of(theme, std::string(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  return style.append(rest);
}

std::string colour_of(Theme theme, const std::string& name) {
  for (const Colour& colour : kColours) {
    if (colour.name == name) return theme == Theme::light ? colour.light : colour.dark;
  }
  fail(ExitCode::internal, "report: no colour ", name);
}

}  // namespace octet::report

// The looks of report.html: one style sheet for light, dark and paper.
#pragma once

namespace octet::report {

inline constexpr const char* kStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #fcfbf8; --ink: #1d1c1a; --soft: #5f5b54; --faint: #7d786f; --rule: #e5e1d8; --grid: #eeebe4; --track: #efece5;
  --band: #e9e5da; --good: #1b7f5c; --bad: #b3401f;
  --c0: #34312c; --c1: #2b6cd9; --c2: #d8622a; --c3: #12886a; --c4: #8449cf; --c5: #c23a79; --c6: #92782b; --c7: #1b8fa8;
  --h0: #eff2f6; --h1: #dfe6ef; --h2: #ccd8e6; --h3: #b4c6da; --h4: #98b0cb; --h5: #7a97b8; --h6: #5b7ca1; --h7: #3f6087; --h8: #27456a;
  --t0: #e9eee8; --t1: #e3ead0; --t2: #efe6b4; --t3: #f5d68f; --t4: #f3ba6b; --t5: #ea9650; --t6: #d86d3e; --t7: #bb4534; --t8: #8f2230;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131417; --ink: #eceae5; --soft: #a9a59d; --faint: #8b877f; --rule: #2c2d31; --grid: #222327; --track: #232428;
    --band: #26282d; --good: #5cc79f; --bad: #f08a66;
    --c0: #dcd8cf; --c1: #6ea2ff; --c2: #ff9a5e; --c3: #43c79d; --c4: #b68cfa; --c5: #f07fb2; --c6: #d0b55f; --c7: #58c5dc;
    --h0: #1d232b; --h1: #222d39; --h2: #293949; --h3: #32475c; --h4: #3e5872; --h5: #4d6d8c; --h6: #6285a8; --h7: #82a3c4; --h8: #aecae4;
    --t0: #1e2623; --t1: #2f3524; --t2: #4a4426; --t3: #6b5426; --t4: #8f6428; --t5: #b5702d; --t6: #d67a3a; --t7: #ef7d5c; --t8: #ff8f8f;
  }
}
* { box-sizing: border-box; }
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
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 15px; }
th, td { padding: 11px 0 11px 22px; text-align: right; vertical-align: baseline; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { padding-top: 0; font-size: 13px; line-height: 1.35; font-weight: 500; color: var(--faint); vertical-align: bottom; }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
td.words, th.words { text-align: left; }
td.middle, th.middle { text-align: center; }
td.wrap { white-space: normal; overflow-wrap: anywhere; }
td small { display: block; font-size: 13px; line-height: 1.4; color: var(--faint); }
td small.good { color: var(--good); }
td small.bad { color: var(--bad); }
td.name { font-weight: 550; }
tr.repeat td { color: var(--soft); }
tr.repeat td.name { font-weight: 400; }
.swatch { display: inline-block; width: 18px; height: 3px; margin: 0 10px 4px 0; border-radius: 2px; background: var(--c); vertical-align: middle; }
.swatch.dashed { background: repeating-linear-gradient(90deg, var(--c) 0 4px, transparent 4px 7px); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 12px; padding: 0; font-size: 14px; list-style: none; color: var(--soft); }
.legend .ring { display: inline-block; width: 9px; height: 9px; margin-right: 8px; border: 1.6px solid var(--faint); border-radius: 50%; }
.legend .bar { display: inline-block; width: 18px; height: 11px; margin: 0 8px -1px 0; background: var(--band); }
figure { margin: 0; break-inside: avoid; }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
svg.gap { display: inline-block; width: 150px; height: 22px; vertical-align: middle; }
svg text { font-family: inherit; fill: var(--ink); }
svg .tick, svg .label { font-size: 12.5px; fill: var(--faint); }
svg .fine { font-size: 11px; fill: var(--faint); }
svg .layer { font-size: 12px; font-weight: 600; fill: var(--soft); }
svg .name { font-size: 14px; }
svg .sheet-title { font-size: 13px; font-weight: 600; }
svg .value { font-size: 14px; }
svg .note { fill: var(--faint); }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg.gap .grid { stroke: var(--rule); }
svg .axis, svg .notch { stroke: var(--faint); stroke-width: 1; opacity: .6; }
svg .zero { stroke: var(--soft); stroke-width: 1; }
svg .band { fill: var(--band); }
svg .track { fill: var(--track); }
svg .bar { fill: var(--c); }
svg .line { fill: none; stroke: var(--c); stroke-width: 1.7; stroke-linejoin: round; stroke-linecap: round; }
svg .line.thick { stroke-width: 3.4; opacity: .5; }
svg .line.dashed { stroke-dasharray: 5 5; stroke-width: 1.5; }
svg .raw { fill: none; stroke: var(--c); stroke-width: 1; stroke-linejoin: round; opacity: .16; }
svg .mark { fill: var(--page); stroke: var(--c); stroke-width: 1.6; }
svg .dot { fill: var(--c); }
svg .empty { fill: var(--track); opacity: .5; }
svg .tip rect, svg .hit { fill: transparent; }
svg .tip line { stroke: var(--soft); stroke-width: 1; opacity: 0; }
svg .tip:hover line { opacity: .55; }
svg .hit:hover { stroke: var(--ink); stroke-width: 1; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.h0 { fill: var(--h0); } .h1 { fill: var(--h1); } .h2 { fill: var(--h2); } .h3 { fill: var(--h3); } .h4 { fill: var(--h4); }
.h5 { fill: var(--h5); } .h6 { fill: var(--h6); } .h7 { fill: var(--h7); } .h8 { fill: var(--h8); }
.t0 { fill: var(--t0); } .t1 { fill: var(--t1); } .t2 { fill: var(--t2); } .t3 { fill: var(--t3); } .t4 { fill: var(--t4); }
.t5 { fill: var(--t5); } .t6 { fill: var(--t6); } .t7 { fill: var(--t7); } .t8 { fill: var(--t8); }
details { margin-top: 26px; border-top: 1px solid var(--rule); padding-top: 14px; }
summary { cursor: pointer; font-size: 16px; font-weight: 600; margin-bottom: 16px; }
summary span { font-weight: 400; color: var(--faint); font-size: 14px; margin-left: 10px; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 16px 32px; margin: 18px 0 26px; }
dt { font-size: 13px; color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 64px; padding-top: 14px; border-top: 1px solid var(--rule); font-size: 13px; color: var(--faint); }
@media screen and (max-width: 820px) {
  main { padding: 36px 18px 48px; } h1 { font-size: 30px; } .lead { font-size: 17.5px; } .pair, .zoom { grid-template-columns: 1fr; gap: 40px; }
  .wide { min-width: 720px; }
}
@media print {
  :root { --page: #fff; }
  main { max-width: none; padding: 0; } section { margin-top: 34px; } body { font-size: 11pt; } h1 { font-size: 26pt; }
  .scroll { overflow: visible; } tr, figure, dl { break-inside: avoid; } h2, summary { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

}  // namespace octet::report

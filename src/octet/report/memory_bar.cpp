#include "octet/report/memory_bar.h"

#include <algorithm>
#include <numeric>

#include "octet/report/page.h"
#include "octet/report/svg.h"
#include "octet/telemetry/format.h"

namespace octet::report {
namespace {

constexpr const char* kFirstLine = "<!-- drawn by octet: memory of a GPU -->\n";
constexpr const char* kMemoryStyle = R"css(
text { font-family: Inter, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 14px; fill: #1d1c1a; }
.title { font-size: 18px; font-weight: 600; } .soft { fill: #5f5b54; } .fine { font-size: 12.5px; fill: #6a655d; }
.free { fill: #e5e1d8; } .limit { stroke: #1d1c1a; stroke-width: 1.5; } .rule { stroke: #d8d3c8; }
.p0 { fill: #2b6cd9; } .p1 { fill: #d8622a; } .p2 { fill: #12886a; } .p3 { fill: #8449cf; } .p4 { fill: #c23a79; }
.p5 { fill: #92782b; } .p6 { fill: #1b8fa8; } .p7 { fill: #7a756c; } .p8 { fill: #a9a396; }
@media (prefers-color-scheme: dark) {
  text { fill: #eceae5; } .soft { fill: #a9a59d; } .fine { fill: #a09b92; }
  .free { fill: #33353a; } .limit { stroke: #eceae5; } .rule { stroke: #3a3c41; }
  .p0 { fill: #6ea2ff; } .p1 { fill: #ff9a5e; } .p2 { fill: #43c79d; } .p3 { fill: #b68cfa; } .p4 { fill: #f07fb2; }
  .p5 { fill: #d0b55f; } .p6 { fill: #58c5dc; } .p7 { fill: #a9a59d; } .p8 { fill: #75726b; }
}
)css";

double gib(std::size_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

}  // namespace

bool is_memory_bar(std::string_view begin) { return begin.starts_with(kFirstLine); }

std::string draw(const MemoryBar& bar) {
  constexpr int kMemoryColours = 9;
  constexpr double kWidth = 720, kLeft = 20, kRight = 700, kBarHeight = 56, kRow = 26;
  const double bar_top = 74 + 19 * static_cast<double>(bar.lines.size()), first_row = bar_top + kBarHeight + 58;
  std::vector<MemoryPart> parts;
  std::copy_if(bar.parts.begin(), bar.parts.end(), std::back_inserter(parts),
               [](const MemoryPart& part) { return part.bytes > 0; });
  const std::size_t total = std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                                            [](std::size_t sum, const MemoryPart& part) { return sum + part.bytes; });
  const Scale x(ScaleKind::linear, 0, static_cast<double>(std::max(total, bar.gpu_bytes)), kLeft, kRight);
  const auto at = [&](std::size_t bytes) { return x(static_cast<double>(bytes)); };
  const double sum_row = first_row + kRow * static_cast<double>(parts.size());

  std::string out = kFirstLine;
  put(out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "role=\"img\" "
      "aria-label=\"{2}\"><style>{3}</style>\n",
      kWidth, sum_row + 26, escape(bar.title + ": " + telemetry::format_bytes(total)), kMemoryStyle);
  put(out, "<text class=\"title\" x=\"{:.0f}\" y=\"30\">{}</text>\n", kLeft, escape(bar.title));
  for (std::size_t i = 0; i < bar.lines.size(); ++i) {
    put(out, "<text class=\"fine\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", kLeft, 52 + 19 * static_cast<double>(i),
        escape(bar.lines[i]));
  }
  put(out, "<rect class=\"free\" x=\"{:.1f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>\n", kLeft, bar_top,
      at(bar.gpu_bytes) - kLeft, kBarHeight);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = begin + parts[i].bytes;
    put(out,
        "<rect class=\"p{}\" x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\"><title>{}: {} bytes</title></rect>\n",
        i % kMemoryColours, at(begin), bar_top, at(end) - at(begin), kBarHeight, escape(parts[i].name),
        telemetry::format_count(static_cast<std::int64_t>(parts[i].bytes)));
    begin = end;
  }
  put(out, "<line class=\"limit\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\"/>\n", at(bar.gpu_bytes),
      bar_top - 8, bar_top + kBarHeight + 8);
  // Left of the limit, or right of it if the text has no room there.
  constexpr double kLimitText = 150;
  put(out, "<text class=\"fine\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.0f}\">{} of an {}</text>\n",
      at(bar.gpu_bytes) < kLimitText ? "start" : "end", at(bar.gpu_bytes), bar_top - 13, telemetry::format_bytes(bar.gpu_bytes),
      escape(bar.gpu));
  put(out,
      "<text class=\"fine\" text-anchor=\"end\" x=\"590\" y=\"{0:.0f}\">GiB</text>"
      "<text class=\"fine\" text-anchor=\"end\" x=\"690\" y=\"{0:.0f}\">of the GPU</text>\n",
      first_row - 24);
  const auto numbers = [&](double y, std::size_t bytes) {
    put(out,
        "<text text-anchor=\"end\" x=\"590\" y=\"{0:.0f}\">{1:.2f}</text><text class=\"soft\" text-anchor=\"end\" x=\"690\" "
        "y=\"{0:.0f}\">"
        "{2:.1f}%</text>\n",
        y, gib(bytes), 100 * gib(bytes) / gib(bar.gpu_bytes));
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double y = first_row + kRow * static_cast<double>(i);
    put(out,
        "<rect class=\"p{0}\" x=\"{1:.0f}\" y=\"{2:.0f}\" width=\"13\" height=\"13\"/><text x=\"{3:.0f}\" "
        "y=\"{4:.0f}\">{5}</text>"
        "<text class=\"fine\" x=\"190\" y=\"{4:.0f}\">{6}</text>",
        i % kMemoryColours, kLeft, y - 12, kLeft + 22, y, escape(parts[i].name), escape(parts[i].note));
    numbers(y, parts[i].bytes);
  }
  put(out, "<line class=\"rule\" x1=\"{0:.0f}\" x2=\"690\" y1=\"{1:.0f}\" y2=\"{1:.0f}\"/>", kLeft, sum_row - 17);
  put(out, "<text x=\"{:.0f}\" y=\"{:.0f}\">all</text>", kLeft + 22, sum_row + 2);
  put(out, "<text class=\"fine\" x=\"190\" y=\"{:.0f}\">{}</text>", sum_row + 2,
      total <= bar.gpu_bytes ? "fits; " + telemetry::format_bytes(bar.gpu_bytes - total) + " are left"
                             : "does not fit; " + telemetry::format_bytes(total - bar.gpu_bytes) + " too much");
  numbers(sum_row + 2, total);
  return out + "</svg>\n";
}

}  // namespace octet::report

#include "octet/report/lanes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "octet/report/page.h"
#include "octet/report/svg.h"

namespace octet::report {
namespace {

constexpr const char* kLanesFirstLine = "<!-- drawn by octet: what runs when -->\n";
constexpr const char* kLanesStyle = R"css(
text { font-family: Inter, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 14px; fill: #1d1c1a; }
.title { font-size: 18px; font-weight: 600; } .bold { font-weight: 600; } .fine { font-size: 12.5px; fill: #5f5b54; }
.on { font-size: 11px; font-weight: 600; fill: #ffffff; } .group { font-size: 11.5px; fill: #5f5b54; }
.idle { fill: #f0ece4; } .cut { fill: #ffffff; } .rule { stroke: #d8d3c8; fill: none; } .bracket { stroke: #a9a396; fill: none; }
.wait { stroke: #8b857a; stroke-width: 1.1; fill: none; } .met { opacity: 0.35; } .head { fill: #8b857a; }
.t0 { fill: #2b6cd9; } .t1 { fill: #d8622a; } .t2 { fill: #12886a; } .t3 { fill: #8449cf; } .t4 { fill: #7a756c; }
.t5 { fill: #1b8fa8; } .t6 { fill: #a8701a; }
@media (prefers-color-scheme: dark) {
text { fill: #eceae5; } .fine, .group { fill: #a9a59d; } .on { fill: #131417; }
.idle { fill: #26282c; } .cut { fill: #131417; } .rule { stroke: #3a3c41; } .bracket { stroke: #75726b; }
.wait { stroke: #8d8a83; } .head { fill: #8d8a83; }
.t0 { fill: #6ea2ff; } .t1 { fill: #ff9a5e; } .t2 { fill: #43c79d; } .t3 { fill: #b68cfa; } .t4 { fill: #a9a59d; }
.t5 { fill: #58c5dc; } .t6 { fill: #d9b055; }
}
)css";
constexpr std::array<const char*, kTints> kClasses = {"t0", "t1", "t2", "t3", "t4", "t5", "t6"};

constexpr double kEdge = 20, kGlyph = 6.4, kLabelMargin = 6,
                 kTurned = 13;  // kTurned: the least width of a box with a turned label
constexpr double kLaneHeight = 64, kPlainHeight = 30, kBracketHeight = 24, kGap = 30, kPlainGap = 8, kCutWidth = 34;
constexpr double kLeastWidth = 780, kMostWidth = 3200;
constexpr double kArrow = 12;  // the width that an arrow needs to be told from its neighbours

double width_of(const std::string& text) { return kGlyph * static_cast<double>(text.size()); }

// Maps seconds to pixels: one scale for what is shown, and a narrow strip for each cut.
class Clock {
 public:
  Clock(const std::vector<LaneCut>& cuts, double begin, double end, double left, double width)
      : cuts_(cuts), begin_(begin), left_(left) {
    double shown = end - begin;
    for (const LaneCut& cut : cuts) shown -= cut.end - cut.begin;
    scale_ = (width - kCutWidth * static_cast<double>(cuts.size())) / std::max(shown, 1e-12);
  }
  double operator()(double seconds) const {
    double x = left_, at = begin_;
    for (const LaneCut& cut : cuts_) {
      if (seconds <= cut.begin) break;
      x += scale_ * (cut.begin - at);
      if (seconds < cut.end) return x + kCutWidth * (seconds - cut.begin) / (cut.end - cut.begin);
      x += kCutWidth;
      at = cut.end;
    }
    return x + scale_ * (seconds - at);
  }

 private:
  const std::vector<LaneCut>& cuts_;
  double begin_, left_, scale_;
};

double shown_seconds(const Lanes& lanes, double begin, double end) {
  double seconds = end - begin;
  for (const LaneCut& cut : lanes.cuts) seconds -= cut.end - cut.begin;
  return seconds;
}

// Wide enough that two of three boxes have room for their labels, turned if need be.
double width_for_labels(const Lanes& lanes, double seconds) {
  std::vector<double> needed;
  for (const Lane& lane : lanes.lanes) {
    for (const LaneBox& box : lane.boxes) {
      if (box.end > box.begin) needed.push_back(kTurned / (box.end - box.begin));
    }
  }
  const double cuts = kCutWidth * static_cast<double>(lanes.cuts.size());
  return needed.empty() ? kLeastWidth : std::clamp(cuts + seconds * quantile(needed, 0.67), kLeastWidth, kMostWidth);
}

void draw_box(std::string& out, const LaneBox& box, const Clock& at, double top, double height) {
  const double x = at(box.begin), width = at(box.end) - x;
  const char* tint = kClasses[static_cast<std::size_t>(box.tint)];
  if (box.end <= box.begin) {
    put(out, "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"2\" height=\"7\"><title>{}</title></rect>\n", tint, x - 1,
        top + height + 1, escape(box.tip));
    return;
  }
  // A hairline stays between neighbours.
  put(out, "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" rx=\"2\"><title>{}</title></rect>\n",
      tint, x, top, width > 3 ? width - 0.8 : std::max(width, 0.4), height, escape(box.tip));
  if (width >= width_of(box.label) + kLabelMargin) {
    put(out, "<text class=\"on\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\" pointer-events=\"none\">{}</text>\n",
        x + width / 2, top + height / 2 + 4, escape(box.label));
  } else if (width >= kTurned && height >= width_of(box.label) + kLabelMargin) {
    put(out,
        "<text class=\"on\" text-anchor=\"middle\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\" "
        "pointer-events=\"none\">{}</text>\n",
        x + width / 2 + 3.6, top + height / 2, escape(box.label));
  }
}

void draw_bracket(std::string& out, const LaneBox& group, const Clock& at, double y) {
  const double left = at(group.begin) + 1, right = at(group.end) - 2;
  if (right <= left) return;
  put(out, "<path class=\"bracket\" d=\"M{0:.1f} {2:.1f}V{3:.1f}H{1:.1f}V{2:.1f}\"><title>{4}</title></path>\n", left, right, y,
      y - 5, escape(group.tip));
  if (right - left < width_of(group.label)) return;
  put(out, "<text class=\"group\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", (left + right) / 2, y - 9,
      escape(group.label));
}

}  // namespace

bool is_lanes(std::string_view begin) { return begin.starts_with(kLanesFirstLine); }

std::string draw(const Lanes& lanes) {
  double begin = 0, end = 0, left = 0, right = 0;
  bool brackets = false;
  for (const Lane& lane : lanes.lanes) {
    left = std::max(left, 7.6 * static_cast<double>(lane.name.size()));
    right = std::max(right, kGlyph * static_cast<double>(lane.note.size()));
    brackets = brackets || !lane.groups.empty();
    for (const LaneBox& box : lane.boxes) {
      begin = std::min(begin, box.begin);
      end = std::max(end, box.end);
    }
  }
  left += kEdge + 14;
  const double seconds = shown_seconds(lanes, begin, end), plot = width_for_labels(lanes, seconds);
  const double height = brackets ? kLaneHeight : kPlainHeight, gap = brackets ? kGap : kPlainGap;
  const Clock at(lanes.cuts, begin, end, left, plot);
  const double first = 58 + 19 * static_cast<double>(lanes.lines.size());
  std::vector<double> tops;
  double y = first;
  for (const Lane& lane : lanes.lanes) {
    if (!lane.groups.empty()) y += kBracketHeight;
    tops.push_back(y);
    y += height + gap;
  }
  const double bottom = y - gap + (brackets ? 12 : 4), axis = bottom + 18, width = left + plot + 14 + right + kEdge;
  const double picture_height = axis + 46;

  std::string out = kLanesFirstLine;
  put(out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "role=\"img\" "
      "aria-label=\"{2}\"><style>{3}</style>\n<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
      "markerWidth=\"7\" "
      "markerHeight=\"7\" orient=\"auto\"><path class=\"head\" d=\"M0 1L8 4L0 7z\"/></marker></defs>\n",
      width, picture_height, escape(lanes.title), kLanesStyle);
  put(out, "<text class=\"title\" x=\"{:.0f}\" y=\"30\">{}</text>\n", kEdge, escape(lanes.title));
  for (std::size_t i = 0; i < lanes.lines.size(); ++i) {
    put(out, "<text class=\"fine\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", kEdge, 52 + 19 * static_cast<double>(i),
        escape(lanes.lines[i]));
  }
  for (std::size_t i = 0; i < lanes.lanes.size(); ++i) {
    const Lane& lane = lanes.lanes[i];
    put(out, "<text class=\"bold\" text-anchor=\"end\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", left - 12,
        tops[i] + height / 2 + 5, escape(lane.name));
    put(out, "<rect class=\"idle\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\"/>\n", left, tops[i],
        plot, height);
    if (!lane.note.empty())
      put(out, "<text class=\"fine\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left + plot + 12, tops[i] + height / 2 + 4.5,
          escape(lane.note));
  }
  const bool has_room = static_cast<double>(lanes.links.size()) * kArrow <= plot * static_cast<double>(lanes.lanes.size());
  for (const LaneLink& link : lanes.links) {
    if (!has_room) break;
    const bool down = link.from < link.to;
    const double from_x = at(link.from_s), to_x = at(link.to_s);
    const double from_y = tops[link.from] + (down ? height : 0), to_y = tops[link.to] + (down ? 0 : height),
                 bend = (to_y - from_y) / 2;
    put(out,
        "<path class=\"wait{6}\" marker-end=\"url(#head)\" d=\"M{0:.1f} {1:.1f}C{0:.1f} {2:.1f} {3:.1f} {4:.1f} {3:.1f} "
        "{5:.1f}\"/>\n",
        from_x, from_y, from_y + bend, to_x, to_y - bend, to_y, link.held_up ? "" : " met");
  }
  for (std::size_t i = 0; i < lanes.lanes.size(); ++i) {
    for (const LaneBox& box : lanes.lanes[i].boxes) draw_box(out, box, at, tops[i], height);
    for (const LaneBox& group : lanes.lanes[i].groups) draw_bracket(out, group, at, tops[i] - 3);
  }
  for (const LaneCut& cut : lanes.cuts) {
    const double x = at(cut.begin), middle = x + kCutWidth / 2;
    put(out, "<rect class=\"cut\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>\n", x + 2,
        first, kCutWidth - 4, bottom - first, escape(cut.label));
    put(out,
        "<text class=\"group\" text-anchor=\"middle\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\" "
        "pointer-events=\"none\">{}</text>\n",
        middle + 4, (first + bottom) / 2, escape(cut.label));
  }
  const double unit = end < 10 ? 1e-3 : 1;
  const std::vector<double> ticks = nice_ticks(begin / unit, end / unit, static_cast<int>(plot / 95));
  for (const double tick : ticks) {
    const double time = unit * tick;
    const auto hides = [&](const LaneCut& cut) { return cut.begin < time && time < cut.end; };
    if (std::any_of(lanes.cuts.begin(), lanes.cuts.end(), hides)) continue;
    put(out,
        "<path class=\"rule\" d=\"M{0:.1f} {1:.1f}v5\"/><text class=\"fine\" text-anchor=\"middle\" x=\"{0:.1f}\" "
        "y=\"{2:.1f}\">{3} {4}</text>\n",
        at(time), bottom, axis, tick_label(tick, ticks), unit < 1 ? "ms" : "s");
  }
  double x = kEdge;
  for (const auto& [tint, text] : lanes.legend) {
    put(out,
        "<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"13\" height=\"13\" rx=\"2\"/><text class=\"fine\" x=\"{:.0f}\" "
        "y=\"{:.0f}\">{}</text>\n",
        kClasses[static_cast<std::size_t>(tint)], x, axis + 17, x + 20, axis + 28, escape(text));
    x += 44 + 6.6 * static_cast<double>(text.size());
  }
  return out + "</svg>\n";
}

}  // namespace octet::report

#include "octet/report/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace octet::report {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

TEST(Escape, MarkupControlsAndBrokenUtf8) {
  EXPECT_EQ(escape("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(escape("µ – 日本 🎈"), "µ – 日本 🎈");
  EXPECT_EQ(escape(std::string("a\0b\x1b[31m\x7f", 9)), "ab[31m");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(escape("\xff<"), bad + "&lt;");
  EXPECT_EQ(escape("\xC3"), bad);                       // incomplete
  EXPECT_EQ(escape("\xC0\xBC"), bad + bad);             // an overlong '<'
  EXPECT_EQ(escape("\xED\xA0\x80"), bad + bad + bad);   // a surrogate
  EXPECT_EQ(escape("\xF4\x90\x80\x80"), bad + bad + bad + bad);
}

TEST(Ticks, AreRoundAndWithin) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0, 300, 6), (std::vector<double>{0, 50, 100, 150, 200, 250, 300}));
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{{-0.13, 0.31}, {1.8, 1.87}, {1e-9, 3e-9}, {-5e8, 7e8}, {999, 1001}}) {
    const auto ticks = nice_ticks(low, high, 6);
    ASSERT_GE(ticks.size(), 3u) << low << " " << high;
    ASSERT_LE(ticks.size(), 13u) << low << " " << high;
    EXPECT_GE(ticks.front(), low - 1e-9 * (high - low));
    EXPECT_LE(ticks.back(), high + 1e-9 * (high - low));
  }
  EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(kNan, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(0, kInfinity, 5).empty());
}

TEST(Ticks, LabelsTellThemApart) {
  for (const auto& [kind, low, high] : std::vector<std::tuple<ScaleKind, double, double>>{{ScaleKind::logarithmic, 1.7, 6.3},
                                                                                       {ScaleKind::logarithmic, 0.03, 20},
                                                                                       {ScaleKind::logarithmic, 1e-12, 1e9},
                                                                                       {ScaleKind::linear, 1.852, 1.861},
                                                                                       {ScaleKind::linear, 0, 250000},
                                                                                       {ScaleKind::linear, -0.04, 0.02}}) {
    const auto ticks = Scale(kind, low, high, 0, 100).ticks(6);
    ASSERT_GE(ticks.size(), 2u) << low;
    EXPECT_LE(ticks.size(), 14u) << low;
    for (std::size_t i = 1; i < ticks.size(); ++i) {
      EXPECT_LT(ticks[i - 1], ticks[i]);
      EXPECT_NE(tick_label(ticks[i - 1], ticks), tick_label(ticks[i], ticks));
    }
  }
  const std::vector<double> thousands{0, 100000, 200000};
  EXPECT_EQ(tick_label(200000, thousands), "200K");
  const std::vector<double> huge{0, 2.5e29, 5e29};
  EXPECT_EQ(tick_label(2.5e29, huge), "2.5e+29");
}

TEST(Scale, MapsItsEndsAndBearsAnything) {
  const Scale linear(ScaleKind::linear, 2, 4, 100, 0);
  EXPECT_DOUBLE_EQ(linear(2), 100);
  EXPECT_DOUBLE_EQ(linear(3), 50);
  EXPECT_DOUBLE_EQ(linear(4), 0);
  const Scale logarithmic(ScaleKind::logarithmic, 1, 100, 0, 10);
  EXPECT_DOUBLE_EQ(logarithmic(10), 5);
  EXPECT_FALSE(logarithmic.shows(0));
  EXPECT_FALSE(logarithmic.shows(kNan));
  for (const auto kind : {ScaleKind::linear, ScaleKind::logarithmic}) {
    for (const double low : {kNan, -kInfinity, kInfinity, -5.0, 0.0, 3.0, 1e300}) {
      for (const double high : {kNan, -kInfinity, kInfinity, -5.0, 0.0, 3.0, 1e300}) {
        const Scale scale(kind, low, high, 0, 100);
        EXPECT_LT(scale.low(), scale.high()) << low << " " << high;
        EXPECT_TRUE(std::isfinite(scale(1.0))) << low << " " << high;
        EXPECT_LE(scale.ticks(6).size(), 80u) << low << " " << high;
      }
    }
  }
}

TEST(Path, BreaksWhereAValueIsMissing) {
  const Scale x(ScaleKind::linear, 0, 4, 0, 40), y(ScaleKind::linear, 0, 1, 10, 0);
  const std::vector<Point> points{{0, 0}, {1, 1}, {2, kNan}, {3, 0.5}, {4, kInfinity}};
  EXPECT_EQ(path_data(points, x, y), "M0.0 10.0L10.0 0.0M30.0 5.0");
  EXPECT_EQ(path_data({}, x, y), "");
}

TEST(Curves, ThinAndSmoothKeepWhatTheyShould) {
  std::vector<Point> line;
  for (int i = 0; i < 1000; ++i) line.push_back({static_cast<double>(i), 2.0 * i});
  const auto thinned = thin(line, 100);
  ASSERT_EQ(thinned.size(), 100u);
  EXPECT_DOUBLE_EQ(thinned[0].x, 4.5);
  EXPECT_DOUBLE_EQ(thinned[0].y, 9);
  // A symmetric mean does not change a straight line, except near the end, where it takes earlier points only.
  const auto smoothed = smooth(line, 10);
  for (std::size_t i = 0; i < 950; ++i) EXPECT_NEAR(smoothed[i].y, line[i].y, 1e-9) << i;
  // The lowest and the highest of every 20 points stay.
  line[437].y = 5000;
  line[433].y = -5000;
  line[10].y = kNan;
  const auto outer = extremes(line, 100);
  ASSERT_EQ(outer.size(), 100u);
  EXPECT_EQ(outer[0].y, 0);
  EXPECT_EQ(outer[1].y, 38);
  EXPECT_EQ(outer[42].y, -5000);
  EXPECT_EQ(outer[42].x, 433);
  EXPECT_EQ(outer[43].y, 5000);
  EXPECT_EQ(extremes(std::vector<Point>(5, {1, kNan}), 4).size(), 2u) << "a gap for each bin";
  EXPECT_EQ(extremes(line, 1000).size(), 1000u);
  const auto picked = pick(line, 4);
  ASSERT_EQ(picked.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(picked[i].x, static_cast<double>(333 * i));
  std::vector<Point> holes{{0, 1}, {1, kNan}, {2, 1}};
  const auto filled = smooth(holes, 1);
  EXPECT_DOUBLE_EQ(filled[2].y, 1);
  EXPECT_TRUE(std::isnan(filled[1].y));
  EXPECT_TRUE(smooth({}, 3).empty());
  EXPECT_EQ(quantile({3, kNan, 1, 2, kInfinity}, 0.5), 2);
  EXPECT_TRUE(std::isnan(quantile({kNan}, 0.5)));
}

}  // namespace
}  // namespace octet::report

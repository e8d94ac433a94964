#include "octet/report/lanes.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>

namespace octet::report {
namespace {

struct Drawn {
  double x, y, width;
};

// The boxes of a picture by their tips.
std::map<std::string, Drawn> boxes_of(const std::string& svg) {
  const std::regex form(
      "<rect class=\"t\\d\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" [^>]*><title>([^<]*)</title></rect>");
  std::map<std::string, Drawn> boxes;
  for (std::sregex_iterator match(svg.begin(), svg.end(), form), end; match != end; ++match) {
    const bool is_new =
        boxes.emplace((*match)[4], Drawn{std::stod((*match)[1]), std::stod((*match)[2]), std::stod((*match)[3])}).second;
    EXPECT_TRUE(is_new) << (*match)[4];
  }
  return boxes;
}

Lane lane_of(const std::string& name, std::vector<LaneBox> boxes) {
  return {.name = name, .note = "", .boxes = std::move(boxes), .groups = {}};
}

TEST(Lanes, AreToScaleAndOneAboveTheOther) {
  Lanes lanes{
      .title = "a <step>", .lines = {"eight & one"}, .lanes = {}, .links = {}, .cuts = {}, .legend = {{Tint::gather, "gather"}}};
  lanes.lanes = {lane_of("compute", {{.label = "a", .tip = "a", .begin = 0, .end = 0.004},
                                     {.label = "b", .tip = "b", .begin = 0.004, .end = 0.012},
                                     {.label = "c", .tip = "c", .begin = 0.012, .end = 0.012}}),
                 lane_of("params", {{.label = "d", .tip = "d", .begin = 0.002, .end = 0.01}})};
  lanes.links = {{.from = 1, .to = 0, .from_s = 0.01, .to_s = 0.012}};
  const std::string svg = draw(lanes);
  const std::map<std::string, Drawn> boxes = boxes_of(svg);
  ASSERT_EQ(boxes.size(), 4u) << svg;
  const Drawn &a = boxes.at("a"), &b = boxes.at("b"), &c = boxes.at("c"), &d = boxes.at("d");
  // The file has two decimals, and boxes leave 0.8 pixels to the next one.
  const double pixels = (b.x - a.x) / 0.004;
  EXPECT_NEAR(a.width, 0.004 * pixels - 0.8, 0.02);
  EXPECT_NEAR(b.width, 0.008 * pixels - 0.8, 0.05);
  EXPECT_NEAR(d.x - a.x, 0.002 * pixels, 0.05);
  EXPECT_NEAR(c.x + 1, b.x + 0.008 * pixels, 0.05) << "a tick stands where its time is";
  EXPECT_EQ(a.y, b.y);
  EXPECT_GT(d.y, a.y);
  EXPECT_NE(svg.find("a &lt;step&gt;"), std::string::npos);
  EXPECT_NE(svg.find("eight &amp; one"), std::string::npos);
  EXPECT_NE(svg.find("class=\"wait\""), std::string::npos);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find("http", svg.find("xmlns") + 40), std::string::npos) << "needs nothing else";
}

TEST(Lanes, CutsLeaveANarrowStrip) {
  Lanes lanes{.title = "long",
              .lines = {},
              .lanes = {},
              .links = {},
              .cuts = {{.begin = 1, .end = 31, .label = "30 alike"}},
              .legend = {}};
  lanes.lanes = {
      lane_of("compute", {{.label = "a", .tip = "a", .begin = 0, .end = 1}, {.label = "b", .tip = "b", .begin = 31, .end = 32}})};
  const std::string svg = draw(lanes);
  const std::map<std::string, Drawn> boxes = boxes_of(svg);
  const Drawn &a = boxes.at("a"), &b = boxes.at("b");
  EXPECT_NEAR(a.width, b.width, 0.02);
  EXPECT_NEAR(b.x - a.x, a.width + 0.8 + 34, 0.05);
  EXPECT_NE(svg.find(">30 alike</text>"), std::string::npos);
}

// A label stands in its box, upright or turned, or is left to the tip.
TEST(Lanes, LabelsStandWhereTheyHaveRoom) {
  Lanes lanes{.title = "labels", .lines = {}, .lanes = {}, .links = {}, .cuts = {}, .legend = {}};
  Lane lane = lane_of("compute", {{.label = "wide", .tip = "wide", .begin = 0, .end = 1},
                                  {.label = "turned", .tip = "turned", .begin = 1, .end = 1.03},
                                  {.label = "none", .tip = "none", .begin = 1.03, .end = 1.031}});
  lane.groups = {{.label = "block", .tip = "block", .begin = 0, .end = 1.031}};
  lanes.lanes = {lane};
  const std::string svg = draw(lanes);
  EXPECT_TRUE(std::regex_search(svg, std::regex("x=\"[0-9.]+\" y=\"[0-9.]+\" pointer-events=\"none\">wide</text>"))) << svg;
  EXPECT_TRUE(std::regex_search(svg, std::regex("rotate\\(-90\\)\" pointer-events=\"none\">turned</text>"))) << svg;
  EXPECT_EQ(svg.find(">none</text>"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">block</text>"), std::string::npos) << svg;
}

TEST(Lanes, KnowTheirOwnFiles) {
  EXPECT_TRUE(is_lanes(draw({.title = "t", .lines = {}, .lanes = {}, .links = {}, .cuts = {}, .legend = {}})));
  EXPECT_FALSE(is_lanes("<svg xmlns=\"http://www.w3.org/2000/svg\">"));
  EXPECT_FALSE(is_lanes(""));
}

}  // namespace
}  // namespace octet::report

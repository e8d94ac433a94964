#include "octet/report/memory_bar.h"

#include <gtest/gtest.h>

#include <regex>

namespace octet::report {
namespace {

constexpr std::size_t kGib = std::size_t{1} << 30;

struct Segment {
  double x, width;
  std::string name;
  std::size_t bytes;
};

std::vector<Segment> segments_of(const std::string& svg) {
  const std::regex form(
      "<rect class=\"p\\d\" x=\"([0-9.]+)\" [^>]*width=\"([0-9.]+)\"[^>]*><title>([^:]+): ([0-9,]+) bytes</title>");
  std::vector<Segment> segments;
  for (std::sregex_iterator match(svg.begin(), svg.end(), form), end; match != end; ++match) {
    std::string digits = (*match)[4];
    std::erase(digits, ',');
    segments.push_back({std::stod((*match)[1]), std::stod((*match)[2]), (*match)[3], std::stoull(digits)});
  }
  return segments;
}

MemoryBar bar_of(std::vector<MemoryPart> parts) {
  return {.title = "run", .lines = {"a <mesh>"}, .parts = std::move(parts), .gpu = "H100", .gpu_bytes = 80 * kGib};
}

TEST(MemoryBar, SegmentsFollowEachOtherToScale) {
  const std::string svg =
      draw(bar_of({{"weights", "codes & values", 30 * kGib}, {"moments", "", 15 * kGib}, {"state", "", kGib / 2}}));
  const std::vector<Segment> segments = segments_of(svg);
  ASSERT_EQ(segments.size(), 3u) << svg;
  EXPECT_EQ(segments[0].bytes, 30 * kGib);
  EXPECT_EQ(segments[1].name, "moments");
  // The file has two decimals, so each number errs by at most 0.005.
  for (std::size_t i = 0; i + 1 < segments.size(); ++i) EXPECT_NEAR(segments[i].x + segments[i].width, segments[i + 1].x, 0.016);
  EXPECT_NEAR(segments[0].width, 2 * segments[1].width, 0.016);
  EXPECT_NEAR(segments[1].width, 30 * segments[2].width, 0.16);
  EXPECT_NE(svg.find(">30.00</text>"), std::string::npos) << "GiB of the weights";
  EXPECT_NE(svg.find(">45.50</text>"), std::string::npos) << "GiB of all";
  EXPECT_NE(svg.find("fits; 34.5 GiB are left"), std::string::npos);
  EXPECT_NE(svg.find("a &lt;mesh&gt;"), std::string::npos);
  EXPECT_NE(svg.find("codes &amp; values"), std::string::npos);
}

TEST(MemoryBar, LeavesOutWhatTakesNothing) {
  const std::string svg = draw(bar_of({{"weights", "", kGib}, {"master weights", "", 0}}));
  EXPECT_EQ(segments_of(svg).size(), 1u);
  EXPECT_EQ(svg.find("master weights"), std::string::npos);
}

// If the plan does not fit, the bar ends at the right edge, and the mark of the GPU's memory stands within the bar.
TEST(MemoryBar, ShowsWhatDoesNotFit) {
  const std::string svg = draw(bar_of({{"weights", "", 100 * kGib}, {"moments", "", 60 * kGib}}));
  const std::vector<Segment> segments = segments_of(svg);
  ASSERT_EQ(segments.size(), 2u);
  std::smatch mark;
  ASSERT_TRUE(std::regex_search(svg, mark, std::regex("<line class=\"limit\" x1=\"([0-9.]+)\"")));
  EXPECT_NEAR(std::stod(mark[1]), segments[0].x + (segments[1].x + segments[1].width - segments[0].x) / 2, 0.1)
      << "80 of 160 GiB";
  EXPECT_NE(svg.find("does not fit; 80.0 GiB too much"), std::string::npos);
}

// The text stands left of the mark, or right of it near the left edge, where it would be cut off.
TEST(MemoryBar, NamesTheMemoryOfTheGpuWithinThePicture) {
  const auto anchor = [](std::size_t bytes) {
    const std::string svg = draw(bar_of({{"weights", "", bytes}}));
    std::smatch text;
    EXPECT_TRUE(std::regex_search(svg, text, std::regex("text-anchor=\"(\\w+)\" x=\"([0-9.]+)\"[^>]*>80.0 GiB of an H100<")));
    return text[1].str() + " at " + text[2].str();
  };
  EXPECT_EQ(anchor(40 * kGib), "end at 700.0");
  EXPECT_EQ(anchor(160 * kGib), "end at 360.0");
  EXPECT_EQ(anchor(1600 * kGib), "start at 54.0");  // 20 + 680 x 80 / 1600
}

TEST(MemoryBar, KnowsItsOwnFiles) {
  EXPECT_TRUE(is_memory_bar(draw(bar_of({{"weights", "", kGib}}))));
  EXPECT_FALSE(is_memory_bar("<svg xmlns=\"http://www.w3.org/2000/svg\">"));
  EXPECT_FALSE(is_memory_bar(""));
}

}  // namespace
}  // namespace octet::report

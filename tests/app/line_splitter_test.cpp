// Splits text that arrives in pieces into lines.
#include "octet/app/line_splitter.h"

#include <gtest/gtest.h>

#include <vector>

namespace octet::app {
namespace {

using Lines = std::vector<std::string>;

TEST(LineSplitter, LinesAreWholeHoweverTheyArrive) {
  const std::string limit(LineSplitter::kLongest, 'x');
  const std::string text = "a\n\nbc\n" + limit + "\n" + limit + "y\n" + limit + limit + "\nend";
  const Lines expected = {"a\n", "\n", "bc\n", limit + "\n", limit, "y\n", limit, limit + "\n", "end"};
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, text.size()}) {
    LineSplitter splitter;
    Lines lines;
    const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
    for (std::size_t at = 0; at < text.size(); at += piece) splitter.feed(std::string_view(text).substr(at, piece), sink);
    splitter.finish(sink);
    splitter.finish(sink);
    EXPECT_EQ(lines, expected) << "in pieces of " << piece;
  }
}

}  // namespace
}  // namespace octet::app

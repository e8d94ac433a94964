#include "octet/data/split.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "data/files.h"

namespace octet::data {
namespace {

TEST(WindowSplit, PartsShareNothingAndCoverAll) {
  for (const std::int64_t n : {1, 2, 3, 10, 97, 1000}) {
    for (const double held_out : {0.0, 0.02, 0.2, 0.5, 1.0}) {
      const WindowSplit split(n, {1 - held_out, held_out});
      std::set<std::int64_t> windows;
      for (const Part part : {Part::train, Part::held_out}) {
        for (std::int64_t i = 0; i < split.count(part); ++i) windows.insert(split.window(part, i));
      }
      EXPECT_EQ(static_cast<std::int64_t>(windows.size()), n);
      EXPECT_EQ(split.count(Part::train) + split.count(Part::held_out), n);
      EXPECT_EQ(*windows.begin(), 0);
      EXPECT_EQ(*windows.rbegin(), n - 1);
    }
  }
}

TEST(WindowSplit, FollowsTheFractions) {
  EXPECT_EQ(WindowSplit(1000, {0.98, 0.02}).count(Part::held_out), 20);
  EXPECT_EQ(WindowSplit(1000, {0.8, 0.2}).count(Part::held_out), 200);
  EXPECT_EQ(WindowSplit(1000, {1, 0}).count(Part::held_out), 0);
  EXPECT_EQ(WindowSplit(1000, {0, 1}).count(Part::train), 0);
  // Each part gets at least one window if possible. The only window of a tiny corpus goes to training.
  EXPECT_EQ(WindowSplit(5, {0.98, 0.02}).count(Part::held_out), 1);
  EXPECT_EQ(WindowSplit(2, {0.02, 0.98}).count(Part::train), 1);
  EXPECT_EQ(WindowSplit(1, {0.5, 0.5}).count(Part::train), 1);
}

TEST(WindowSplit, HoldsOutFromEverywhere) {
  const WindowSplit split(10000, {0.9, 0.1});
  std::array<int, 10> tenths{};
  for (std::int64_t i = 0; i < split.count(Part::held_out); ++i)
    ++tenths[static_cast<std::size_t>(split.window(Part::held_out, i) / 1000)];
  for (const int count : tenths) EXPECT_NEAR(count, 100, 60);  // six sigma of a binomial
}

TEST(WindowSplit, IsTheSameForEver) {
  // If these numbers changed, held-out text would move into the training of resumed runs.
  const WindowSplit split(1000, {0.98, 0.02});
  std::vector<std::int64_t> first;
  for (std::int64_t i = 0; i < 6; ++i) first.push_back(split.window(Part::held_out, i));
  EXPECT_EQ(first, (std::vector<std::int64_t>{142, 557, 518, 667, 276, 832}));
}

TEST(WindowSplit, RefusesFractionsThatMakeNoSense) {
  using Fractions = std::array<double, 2>;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const Fractions& fractions : {Fractions{0.9, 0.2}, {-0.1, 1.1}, {0.5, 0.4}, {nan, 0.5}, {infinity, 0.0}}) {
    EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { WindowSplit(10, fractions); }), "data.split"));
  }
  EXPECT_NO_THROW(WindowSplit(10, {0.7, 0.3}));
}

// Documents of 20 to 60 tokens. The tokens of a document are its number modulo 256, so a token tells where it is
// from.
std::vector<std::string> numbered_documents(int count) {
  std::vector<std::string> documents;
  for (int d = 0; d < count; ++d) documents.emplace_back(static_cast<std::size_t>(20 + d * 7 % 41), static_cast<char>(d));
  return documents;
}

std::set<std::int32_t> tokens_of(const Split& split, Part part, std::int64_t seq_len) {
  std::set<std::int32_t> tokens;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(seq_len)), targets(inputs), starts;
  for (std::int64_t i = 0; i < split.count(part); ++i) {
    split.read(part, i, 256, {inputs, targets}, starts, 0);
    tokens.insert(inputs.begin(), inputs.end());
    tokens.insert(targets.begin(), targets.end());
  }
  return tokens;
}

TEST(Split, NoDocumentIsInBothParts) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", numbered_documents(250));
  const Corpus corpus(folder / "c");
  const Split split(corpus, 16, {0.9, 0.1}, SplitBy::documents);
  EXPECT_TRUE(split.by_documents());
  const std::set<std::int32_t> train = tokens_of(split, Part::train, 16), held_out = tokens_of(split, Part::held_out, 16);
  std::vector<std::int32_t> both;
  std::set_intersection(train.begin(), train.end(), held_out.begin(), held_out.end(), std::back_inserter(both));
  EXPECT_EQ(both, std::vector<std::int32_t>());
  // Nothing is lost but what is after the last whole window of each part, less than a document here.
  EXPECT_GE(train.size() + held_out.size(), 248u);
  const double share = static_cast<double>(split.count(Part::held_out)) /
                       static_cast<double>(split.count(Part::train) + split.count(Part::held_out));
  EXPECT_NEAR(share, 0.1, 0.01);

  // By windows, documents are in both.
  const Split windows(corpus, 16, {0.9, 0.1}, SplitBy::windows);
  EXPECT_FALSE(windows.by_documents());
  const std::set<std::int32_t> cut_train = tokens_of(windows, Part::train, 16), cut_held = tokens_of(windows, Part::held_out, 16);
  both.clear();
  std::set_intersection(cut_train.begin(), cut_train.end(), cut_held.begin(), cut_held.end(), std::back_inserter(both));
  EXPECT_GT(both.size(), 10u);
}

TEST(Split, HoldsOutTheSameDocumentsForEver) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", numbered_documents(250));
  const Corpus corpus(folder / "c");
  const std::set<std::int32_t> held_out = tokens_of(Split(corpus, 16, {0.97, 0.03}, SplitBy::documents), Part::held_out, 16);
  // The same documents with another length of sequences, and those that a run of another version held out.
  EXPECT_EQ(tokens_of(Split(corpus, 15, {0.97, 0.03}, SplitBy::documents), Part::held_out, 15), held_out);
  EXPECT_EQ(held_out, (std::set<std::int32_t>{22, 34, 41, 52, 70, 79, 94, 100}));
}

TEST(Split, FewDocumentsAreHeldOutAsWindows) {
  const TemporaryFolder folder;
  const auto by_documents = [&](const char* name, const std::vector<std::string>& documents) {
    write_corpus(folder / name, documents);
    const Corpus corpus(folder / name);
    const Split split(corpus, 16, {0.9, 0.1}, SplitBy::documents);
    EXPECT_GE(split.count(Part::train), 1) << name;
    EXPECT_GE(split.count(Part::held_out), 1) << name;
    return split.by_documents();
  };
  EXPECT_FALSE(by_documents("one", {std::string(1000, 'a')}));
  EXPECT_FALSE(by_documents("two", {std::string(1000, 'a'), std::string(1000, 'b')}));
  EXPECT_TRUE(by_documents("long-and-short", {std::string(1000, 'a'), std::string(100, 'b')}));
  EXPECT_FALSE(by_documents("empty", {std::string(1000, 'a'), "", ""}));
}

}  // namespace
}  // namespace octet::data

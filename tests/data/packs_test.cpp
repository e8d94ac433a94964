#include "octet/data/packs.h"

#include <cmath>
#include <numeric>
#include <random>

#include "data/files.h"
#include "octet/data/windows.h"

namespace octet::data {
namespace {

// Documents of these numbers of inputs, one behind the other.
std::vector<StreamRange> ranges_of(const std::vector<std::int64_t>& lengths) {
  std::vector<StreamRange> ranges;
  std::int64_t at = 0;
  for (const std::int64_t length : lengths) {
    ranges.push_back({at, at + length});
    at += length + 1;
  }
  return ranges;
}

// The lengths in each sequence.
std::vector<std::vector<std::int64_t>> lengths_in(const Packs& packs) {
  std::vector<std::vector<std::int64_t>> result;
  for (std::int64_t s = 0; s < packs.count(); ++s) {
    result.emplace_back();
    for (const StreamRange& part : packs.sequence(s)) result.back().push_back(part.last - part.first);
  }
  return result;
}

TEST(Packs, TheFullestSequenceWithRoomTakesADocument) {
  using Lengths = std::vector<std::vector<std::int64_t>>;
  // 7 and 6 begin sequences with room for 3 and 4. The 4 fits only beside the 6, the 3 beside the 7, and the 2 begins a third.
  EXPECT_EQ(lengths_in(Packs(ranges_of({3, 6, 2, 7, 4}), 10)), (Lengths{{7, 3}, {6, 4}, {2}}));
  // 3 and 1 leave room in two sequences; the last 1 goes where less is left.
  EXPECT_EQ(lengths_in(Packs(ranges_of({8, 9, 1}), 10)), (Lengths{{9, 1}, {8}}));
  // 23 inputs are 10, 10 and 3.
  const Packs split(ranges_of({23, 7}), 10);
  EXPECT_EQ(lengths_in(split), (Lengths{{10}, {10}, {7, 3}}));
  EXPECT_EQ(split.split_documents(), 1);
  EXPECT_EQ(split.documents(), 2);
  EXPECT_EQ(split.tokens(), 30);
}

// The lengths of conversations spread over orders of magnitude. The issue asks for sequences that are 98% full.
TEST(Packs, SequencesAreFullAndHoldEveryTokenOnce) {
  for (const double spread : {0.3, 0.8, 1.5}) {
    for (const std::int64_t seq_len : {512, 2048}) {
      if (spread < 0.5 && seq_len < 1000) continue;  // most are a little longer than half a sequence: no packing fills it
      std::mt19937 random(7);
      std::lognormal_distribution<double> length(std::log(250.0), spread);
      std::vector<std::int64_t> lengths;
      for (int i = 0; i < 4000; ++i) lengths.push_back(1 + static_cast<std::int64_t>(length(random)));
      const std::vector<StreamRange> documents = ranges_of(lengths);
      const Packs packs(documents, seq_len);
      std::vector<int> seen(static_cast<std::size_t>(documents.back().last), 0);
      for (std::int64_t s = 0; s < packs.count(); ++s) {
        std::int64_t used = 0;
        for (const StreamRange& part : packs.sequence(s)) {
          used += part.last - part.first;
          for (std::int64_t t = part.first; t < part.last; ++t) ++seen[static_cast<std::size_t>(t)];
        }
        ASSERT_LE(used, seq_len);
      }
      for (const StreamRange& document : documents) {
        for (std::int64_t t = document.first; t < document.last; ++t) ASSERT_EQ(seen[static_cast<std::size_t>(t)], 1) << t;
      }
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}), packs.tokens());
      EXPECT_GT(static_cast<double>(packs.tokens()), 0.98 * static_cast<double>(packs.count() * seq_len))
          << spread << " " << seq_len;
    }
  }
}

TEST(Packs, WindowsReadThem) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"abc", "defgh", "i", "", "jklm"});
  const Corpus corpus(folder / "c");
  const Windows windows(Stream(corpus), 6, Packing::documents);
  ASSERT_EQ(windows.count(), 2);  // defg + ab, jkl + three places of padding; nothing is predicted in "i"
  std::vector<std::int32_t> tokens(6), targets(6), starts;
  windows.read(0, 256, {tokens, targets}, starts, 100);
  EXPECT_EQ(tokens, ids_of("defgab"));
  EXPECT_EQ(targets, ids_of("efghbc"));
  EXPECT_EQ(starts, (std::vector<std::int32_t>{100, 104}));
  starts.clear();
  windows.read(1, 256, {tokens, targets}, starts, 0);
  EXPECT_EQ(tokens, ids_of("jkljkl"));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{'k', 'l', 'm', kNoTarget, kNoTarget, kNoTarget}));
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 3}));

  const Windows wide(Stream(corpus), 13, Packing::documents);  // nine places of documents; padding begins again with them
  tokens.resize(13);
  targets.resize(13);
  starts.clear();
  wide.read(0, 256, {tokens, targets}, starts, 0);
  EXPECT_EQ(tokens, ids_of("defgjklabdefg"));
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 4, 7, 9}));
  const Windows wider(Stream(corpus), 24, Packing::documents);
  tokens.resize(24);
  targets.resize(24);
  wider.read(0, 256, {tokens, targets}, starts, 0);
  EXPECT_EQ(tokens, ids_of("defgjklabdefgjklabdefgjk"));
}

TEST(Packs, ACorpusWithoutAPredictionIsRefused) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"a", "", "b"});
  const Corpus corpus(folder / "c");
  try {
    Windows(Stream(corpus), 6, Packing::documents);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_NE(std::string(error.what()).find("c.bin: no document has two tokens"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace octet::data

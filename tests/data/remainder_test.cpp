// The rest of an epoch after seq_len or the seed has changed in its middle. In the corpora of these tests each token is its own
// position, so that a test can count how often each position is seen.
#include <map>
#include <numeric>

#include "data/files.h"
#include "octet/data/dataset.h"

namespace octet::data {
namespace {

constexpr std::int64_t kFirst = 1'000'000;  // of the second corpus, whose tokens are its positions plus this number

class Numbers : public Tokenizer {
 public:
  std::string name() const override { return "numbers"; }
  std::string hash() const override { return "numbers"; }
  std::int32_t vocab_size() const override { return 2 * kFirst; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  void encode(std::string_view, std::vector<std::int32_t>&) const override {}
  std::vector<std::size_t> encode_counting(std::string_view, std::span<const std::size_t>,
                                           std::vector<std::int32_t>&) const override {
    return {};
  }
  void decode(std::span<const std::int32_t>, std::string&) const override {}
  std::size_t cut(std::string_view text) const override { return text.size(); }
};

// Writes documents of these lengths.
void write_positions(const std::filesystem::path& prefix, const std::vector<int>& lengths, std::int64_t first = 0) {
  CorpusWriter writer(prefix, Numbers());
  for (const int length : lengths) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(first));
    first += length;
    writer.append(ids);
    writer.end_document();
  }
  writer.finish();
}

DatasetOptions options(const TemporaryFolder& folder, std::int64_t seq_len, std::uint64_t seed = 3) {
  return {.sources = {{.path = folder / "a"}}, .seq_len = seq_len, .seed = seed, .split = {1, 0}, .vocab_size = 2 * kFirst};
}

using Seen = std::map<std::int32_t, int>;  // how often each token was an input

// Reads samples [first, last). Each target must be the token after its input in the corpus, except at gaps[token], the last token
// before text that is held out. Each place of the text must begin like a document.
void read(const Dataset& dataset, std::int64_t first, std::int64_t last, Seen& seen,
          const std::map<std::int32_t, std::int32_t>& gaps = {}) {
  const auto length = static_cast<std::size_t>(dataset.seq_len());
  std::vector<std::int32_t> tokens(length), targets(length), starts;
  for (std::int64_t p = first; p < last; ++p) {
    starts.clear();
    dataset.train_sample(p, {tokens, targets}, starts, 100);
    ASSERT_TRUE(std::is_sorted(starts.begin(), starts.end()) && starts.front() == 100) << "sample " << p;
    for (std::size_t i = 0; i < length; ++i) {
      ++seen[tokens[i]];
      const auto gap = gaps.find(tokens[i]);
      ASSERT_EQ(targets[i], gap == gaps.end() ? tokens[i] + 1 : gap->second) << "sample " << p << ", token " << i;
      if (i > 0 && tokens[i] != targets[i - 1]) {
        ASSERT_TRUE(std::binary_search(starts.begin(), starts.end(), 100 + static_cast<std::int32_t>(i))) << "sample " << p;
      }
    }
  }
}

// How many of the tokens [first, last) were seen so often.
std::map<int, std::int64_t> counts(const Seen& seen, std::int64_t first, std::int64_t last) {
  std::map<int, std::int64_t> result;
  for (std::int64_t t = first; t < last; ++t) {
    const auto found = seen.find(static_cast<std::int32_t>(t));
    ++result[found == seen.end() ? 0 : found->second];
  }
  return result;
}

TEST(Remainder, AnEpochInTwoLengthsSeesEachTokenOnce) {
  const TemporaryFolder folder;
  constexpr std::int64_t kTokens = 10'007;
  write_positions(folder / "a", {4'000, 3, 6'004});
  for (const auto& [before, now] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{16, 64}, {64, 16}, {48, 32}, {32, 33}, {32, 32}}) {
    for (const std::int64_t samples : {1, 37, 150}) {
      const Dataset old(options(folder, before));
      Dataset dataset(options(folder, now, now == before ? 4 : 3));
      dataset.continue_after(std::vector<Stretch>{{before, 3, samples}});
      Seen seen;
      read(old, 0, samples, seen);
      EXPECT_EQ(dataset.samples_left(), (kTokens - 1 - samples * before) / now);
      read(dataset, 0, dataset.samples_left(), seen);
      const auto count = counts(seen, 0, kTokens);
      EXPECT_EQ(count.rbegin()->first, 1) << "no token twice; " << before << " -> " << now << " after " << samples;
      // The last token is only a target. Less than a window of tokens is left over.
      EXPECT_LE(count.at(0), now) << before << " -> " << now << " after " << samples;
      // The next epoch is a whole one.
      Seen next;
      read(dataset, dataset.samples_left(), dataset.samples_left() + dataset.samples_per_epoch(), next);
      EXPECT_EQ(counts(next, 0, kTokens).rbegin()->first, 1);
      EXPECT_EQ(counts(next, 0, kTokens)[0], kTokens - dataset.samples_per_epoch() * now);
    }
  }
}

// Packed documents are packed again. Every token but the last of a document is an input once.
TEST(Remainder, PackedDocumentsAreSeenOnce) {
  const TemporaryFolder folder;
  std::vector<int> lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(1 + i * 37 % 61);
  write_positions(folder / "a", lengths);
  const auto packed = [&](std::int64_t seq_len, std::uint64_t seed) {
    DatasetOptions result = options(folder, seq_len, seed);
    result.packing = Packing::documents;
    return result;
  };
  // Counts the inputs that are no padding.
  const auto count = [](const Dataset& dataset, std::int64_t first, std::int64_t last, Seen& seen) {
    const auto length = static_cast<std::size_t>(dataset.seq_len());
    std::vector<std::int32_t> tokens(length), targets(length), starts;
    for (std::int64_t p = first; p < last; ++p) {
      dataset.train_sample(p, {tokens, targets}, starts);
      for (std::size_t i = 0; i < length; ++i) {
        if (targets[i] == kNoTarget) continue;
        ++seen[tokens[i]];
        ASSERT_EQ(targets[i], tokens[i] + 1);
      }
    }
  };
  const std::vector<Stretch> stretches = {{100, 3, 30}, {40, 3, 25}, {100, 8, 9}};
  Seen seen;
  std::vector<Stretch> before;
  for (const Stretch& stretch : stretches) {
    Dataset dataset(packed(stretch.seq_len, stretch.seed));
    dataset.continue_after(before);
    count(dataset, 0, stretch.samples, seen);
    before.push_back(stretch);
  }
  Dataset dataset(packed(70, 3));
  dataset.continue_after(before);
  EXPECT_GT(dataset.samples_left(), 0);
  const auto check = [&](int times) {
    std::int32_t at = 0;
    for (const int length : lengths) {
      for (int i = 0; i + 1 < length; ++i) ASSERT_EQ(seen[at + i], times) << at + i;
      at += length;
    }
  };
  count(dataset, 0, dataset.samples_left(), seen);
  check(1);
  count(dataset, dataset.samples_left(), dataset.samples_left() + dataset.samples_per_epoch(), seen);
  check(2);
}

TEST(Remainder, ChangesFollowEachOther) {
  const TemporaryFolder folder;
  constexpr std::int64_t kTokens = 9'000;
  write_positions(folder / "a", {kTokens});
  const std::vector<Stretch> stretches = {{32, 3, 60}, {80, 3, 20}, {80, 5, 11}, {16, 5, 90}, {48, 6, 0}};
  Seen seen;
  std::vector<Stretch> before;
  for (const Stretch& stretch : stretches) {
    Dataset dataset(options(folder, stretch.seq_len, stretch.seed));
    dataset.continue_after(before);
    read(dataset, 0, stretch.samples, seen);
    before.push_back(stretch);
  }
  Dataset dataset(options(folder, 24, 7));
  dataset.continue_after(before);
  read(dataset, 0, dataset.samples_left(), seen);
  const auto count = counts(seen, 0, kTokens);
  EXPECT_EQ(count.rbegin()->first, 1);
  EXPECT_LE(count.at(0), 24);
  // Into the next epoch, which changes again: every token once more.
  before.push_back({24, 7, dataset.samples_left() + 100});
  read(dataset, dataset.samples_left(), dataset.samples_left() + 100, seen);
  Dataset last(options(folder, 40, 7));
  last.continue_after(before);
  read(last, 0, last.samples_left(), seen);
  const auto both = counts(seen, 0, kTokens);
  EXPECT_EQ(both.rbegin()->first, 2);
  EXPECT_GE(both.at(2), kTokens - 24 - 40);
}

TEST(Remainder, EachSourceOfAMixtureHasItsOwn) {
  const TemporaryFolder folder;
  write_positions(folder / "a", {5'001});
  write_positions(folder / "b", {3'001}, kFirst);
  const auto mixed = [&](std::int64_t seq_len) {
    DatasetOptions result = options(folder, seq_len);
    result.sources = {{.path = folder / "a", .weight = 3}, {.path = folder / "b", .weight = 1}};
    return result;
  };
  const Dataset old(mixed(20));
  Dataset dataset(mixed(50));
  // 300 of 400 samples are of the first source, which has 250 windows, and 100 of the second, which has 150.
  dataset.continue_after(std::vector<Stretch>{{20, 3, 400}});
  EXPECT_EQ(dataset.samples_left(), (5'000 - 50 * 20) / 50 + (3'000 - 100 * 20) / 50);
  Seen seen;
  read(old, 0, 400, seen);
  EXPECT_EQ(counts(seen, 0, 5'001), (std::map<int, std::int64_t>{{0, 1}, {1, 4'000}, {2, 1'000}}));
  EXPECT_EQ(counts(seen, kFirst, kFirst + 3'001), (std::map<int, std::int64_t>{{0, 1'001}, {1, 2'000}}));
  // The first source has 80 windows left. The second has 20, which 80 samples draw.
  read(dataset, 0, 80, seen);
  EXPECT_EQ(counts(seen, kFirst, kFirst + 3'001), (std::map<int, std::int64_t>{{0, 1}, {1, 3'000}}));
  EXPECT_EQ(counts(seen, 0, 5'001), (std::map<int, std::int64_t>{{0, 1}, {1, 1'000}, {2, 4'000}}));
}

TEST(Remainder, HeldOutDocumentsStayHeldOut) {
  const TemporaryFolder folder;
  std::vector<int> lengths;
  for (int d = 0; d < 60; ++d) lengths.push_back(80 + 7 * (d % 11));
  write_positions(folder / "a", lengths);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  DatasetOptions before = options(folder, 16), now = options(folder, 40);
  before.split = now.split = {0.8, 0.2};
  const Dataset old(before);
  Dataset dataset(now);
  dataset.continue_after(std::vector<Stretch>{{16, 3, 111}});
  // The held-out documents are those of which a held-out sample has more than the first token.
  std::vector<bool> held(lengths.size(), false);
  std::vector<std::int32_t> row(16), targets(16), starts, document_of(static_cast<std::size_t>(tokens));
  for (std::size_t d = 0, t = 0; d < lengths.size(); ++d) {
    for (int i = 0; i < lengths[d]; ++i) document_of[t++] = static_cast<std::int32_t>(d);
  }
  for (std::int64_t i = 0; i < old.held_out_samples(); ++i) {
    old.held_out_sample(i, old.held_out_samples(), {row, targets}, starts);
    for (const std::int32_t token : row) held[static_cast<std::size_t>(document_of[static_cast<std::size_t>(token)])] = true;
  }
  std::map<std::int32_t, std::int32_t>
      gaps;  // the token after the last one of a document is the first of the next training document
  std::int64_t train_tokens = 0;
  std::int32_t last = -1;
  for (std::int32_t t = 0; t < tokens; ++t) {
    if (held[static_cast<std::size_t>(document_of[static_cast<std::size_t>(t)])]) continue;
    if (last >= 0 && t != last + 1) gaps[last] = t;
    last = t;
    ++train_tokens;
  }
  Seen seen;
  read(old, 0, 111, seen, gaps);
  read(dataset, 0, dataset.samples_left(), seen, gaps);
  for (const auto& [token, times] : seen) {
    EXPECT_FALSE(held[static_cast<std::size_t>(document_of[static_cast<std::size_t>(token)])]) << token;
    EXPECT_EQ(times, 1) << token;
  }
  EXPECT_LE(train_tokens - static_cast<std::int64_t>(seen.size()), 40);
}

TEST(Remainder, HeldOutWindowsBindTheSequenceLength) {
  const TemporaryFolder folder;
  write_positions(folder / "a", {2'001});
  DatasetOptions before = options(folder, 20), now = options(folder, 40);
  before.split = now.split = {0.9, 0.1};
  Dataset dataset(now);
  EXPECT_TRUE(contains(error_of(ExitCode::config,
                                [&] {
                                  dataset.continue_after(std::vector<Stretch>{{20, 3, 11}});
                                }),
                       "a: windows of this corpus are held out, not documents. With seq_len 40 in the place of 20"));
  // Another seed divides nothing.
  const Dataset old(before);
  before.seed = 4;
  Dataset seeded(before);
  seeded.continue_after(std::vector<Stretch>{{20, 3, 11}});
  EXPECT_EQ(seeded.samples_left(), 90 - 11);
  Seen seen, held_out;
  read(old, 0, 11, seen);
  read(seeded, 0, seeded.samples_left(), seen);
  EXPECT_EQ(counts(seen, 0, 2'001), (std::map<int, std::int64_t>{{0, 2'001 - 90 * 20}, {1, 90 * 20}}));
}

}  // namespace
}  // namespace octet::data

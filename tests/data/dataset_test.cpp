#include "octet/data/dataset.h"

#include <map>
#include <set>

#include "data/files.h"

namespace octet::data {
namespace {

struct Sample {
  std::vector<std::int32_t> tokens, targets, document_starts;
  bool operator==(const Sample& other) const {
    return tokens == other.tokens && targets == other.targets && document_starts == other.document_starts;
  }
  bool operator<(const Sample& other) const { return tokens < other.tokens; }
};

// Reads sample i. An evaluation of held-out text has `samples` of them; 0 means all.
Sample sample(const Dataset& dataset, Part part, std::int64_t i, std::int64_t samples = 0) {
  Sample result;
  result.tokens.resize(static_cast<std::size_t>(dataset.seq_len()));
  result.targets.resize(static_cast<std::size_t>(dataset.seq_len()));
  const Row row = {result.tokens, result.targets};
  if (part == Part::train) {
    dataset.train_sample(i, row, result.document_starts);
  } else {
    dataset.held_out_sample(i, samples > 0 ? samples : dataset.held_out_samples(), row, result.document_starts);
  }
  return result;
}

// Writes a corpus of n * 4 + 1 tokens. No two of its windows of 4 tokens are equal.
void write_counting(const std::filesystem::path& prefix, int n, char mark) {
  std::string text;
  for (int i = 0; i < n; ++i) text += {mark, static_cast<char>(i / 100), static_cast<char>(i % 100), mark};
  write_corpus(prefix, {text + mark});
}

DatasetOptions options(const TemporaryFolder& folder, const std::vector<std::pair<std::string, double>>& sources) {
  DatasetOptions result;
  for (const auto& [name, weight] : sources) result.sources.push_back({folder / name, weight});
  result.seq_len = 4;
  result.seed = 9;
  result.split = {0.8, 0.2};
  result.vocab_size = 256;
  return result;
}

TEST(Dataset, AnEpochSeesEveryTrainingWindowOnceAndNoOther) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 100, 'a');
  const Dataset dataset(options(folder, {{"a", 1.0}}));
  EXPECT_EQ(dataset.samples_per_epoch(), 80);
  EXPECT_EQ(dataset.held_out_samples(), 20);
  std::set<Sample> held_out, first, second;
  std::vector<Sample> first_order, second_order;
  for (std::int64_t i = 0; i < 20; ++i) held_out.insert(sample(dataset, Part::held_out, i));
  for (std::int64_t p = 0; p < 80; ++p) {
    first_order.push_back(sample(dataset, Part::train, p));
    second_order.push_back(sample(dataset, Part::train, 80 + p));
  }
  first.insert(first_order.begin(), first_order.end());
  second.insert(second_order.begin(), second_order.end());
  EXPECT_EQ(held_out.size(), 20u);
  EXPECT_EQ(first.size(), 80u);
  EXPECT_TRUE(first == second);
  EXPECT_FALSE(first_order == second_order);
  for (const Sample& one : held_out) EXPECT_EQ(first.count(one), 0u);
}

TEST(Dataset, TheSeedOrdersAndDoesNotSplit) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 100, 'a');
  DatasetOptions one = options(folder, {{"a", 1.0}}), other = one;
  other.seed = 10;
  const Dataset a(one), again(one), b(other);
  int same = 0;
  for (std::int64_t p = 0; p < 80; ++p) {
    EXPECT_TRUE(sample(a, Part::train, p) == sample(again, Part::train, p));
    same += sample(a, Part::train, p) == sample(b, Part::train, p) ? 1 : 0;
  }
  EXPECT_LT(same, 10);
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_TRUE(sample(a, Part::held_out, i) == sample(b, Part::held_out, i));
}

TEST(Dataset, MixesByWeight) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 200, 'a');
  write_counting(folder / "b", 10, 'b');
  write_counting(folder / "c", 50, 'c');
  const Dataset dataset(options(folder, {{"a", 6}, {"b", 3}, {"c", 1}}));
  EXPECT_EQ(dataset.samples_per_epoch(), 160 + 8 + 40);
  std::map<std::int32_t, int> train, held_out;
  std::map<Sample, int> times;
  for (std::int64_t p = 0; p < 1000; ++p) {
    const Sample one = sample(dataset, Part::train, p);
    ++train[one.tokens[0]];
    ++times[one];
  }
  EXPECT_NEAR(train['a'], 600, 1);
  EXPECT_NEAR(train['b'], 300, 1);
  EXPECT_NEAR(train['c'], 100, 1);
  // Each source has its own epochs. 300 draws from 8 windows take each window 37 or 38 times.
  for (const auto& [one, count] : times) {
    if (one.tokens[0] != 'b') continue;
    EXPECT_TRUE(count == 37 || count == 38) << count;
  }
  for (std::int64_t i = 0; i < 20; ++i) ++held_out[sample(dataset, Part::held_out, i, 20).tokens[0]];
  EXPECT_NEAR(held_out['a'], 12, 1);
  EXPECT_NEAR(held_out['b'], 6, 1);
  EXPECT_NEAR(held_out['c'], 2, 1);
}

// Counts how often each corpus gives a sample. A corpus is known by its mark.
std::map<std::int32_t, int> marks(const Dataset& dataset, Part part, std::int64_t samples) {
  std::map<std::int32_t, int> result;
  for (std::int64_t i = 0; i < samples; ++i) ++result[sample(dataset, part, i, samples).tokens[0]];
  return result;
}

TEST(Dataset, ASourceForValidationIsHeldOutWholeAndNothingElseIs) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 100, 'a');
  write_counting(folder / "v", 30, 'v');
  write_counting(folder / "w", 60, 'w');
  DatasetOptions named = options(folder, {{"v", 1.0}, {"a", 5.0}, {"w", 3.0}});
  named.sources[0].use = named.sources[2].use = Use::validation;
  const Dataset dataset(named);
  EXPECT_EQ(dataset.samples_per_epoch(), 100);
  EXPECT_EQ(dataset.held_out_samples(), 90);
  std::set<Sample> seen;
  for (std::int64_t p = 0; p < 100; ++p) seen.insert(sample(dataset, Part::train, p));
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(marks(dataset, Part::train, 300), (std::map<std::int32_t, int>{{'a', 300}}));
  // Weights are compared only with those of sources of the same part, so these two are drawn 1 to 3.
  const auto held_out = marks(dataset, Part::held_out, 40);
  EXPECT_EQ(held_out, (std::map<std::int32_t, int>{{'v', 10}, {'w', 30}}));
  // All held-out text is each window once, whatever the weights.
  std::set<Sample> all;
  for (std::int64_t i = 0; i < 90; ++i) all.insert(sample(dataset, Part::held_out, i));
  EXPECT_EQ(all.size(), 90u);
  EXPECT_EQ(marks(dataset, Part::held_out, 90), (std::map<std::int32_t, int>{{'v', 30}, {'w', 60}}));
}

TEST(Dataset, ASourceForTrainingGivesNothingUp) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 100, 'a');
  write_counting(folder / "b", 50, 'b');
  DatasetOptions named = options(folder, {{"a", 1.0}, {"b", 1.0}});
  named.sources[1].use = Use::train;
  const Dataset dataset(named);
  EXPECT_EQ(dataset.samples_per_epoch(), 80 + 50);
  EXPECT_EQ(marks(dataset, Part::held_out, dataset.held_out_samples()), (std::map<std::int32_t, int>{{'a', 20}}));
}

TEST(Dataset, ASourceForValidationLeavesTheOrderOfTheOthersAlone) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 100, 'a');
  write_counting(folder / "v", 30, 'v');
  DatasetOptions whole = options(folder, {{"a", 1.0}}), named = options(folder, {{"a", 1.0}, {"v", 1.0}});
  whole.split = {1, 0};
  named.sources[1].use = Use::validation;
  const Dataset expected(whole), dataset(named);
  for (std::int64_t p = 0; p < 200; ++p) EXPECT_TRUE(sample(dataset, Part::train, p) == sample(expected, Part::train, p)) << p;
}

TEST(Dataset, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 20, 'a');
  write_corpus(folder / "tiny", {"abc"});
  EXPECT_TRUE(contains(error_of(ExitCode::data,
                                [&] {
                                  Dataset(options(folder, {{"a", 1}, {"tiny", 1}}));
                                }),
                       "tiny.bin: 3 tokens found, 5 needed"));
  EXPECT_TRUE(contains(error_of(ExitCode::data,
                                [&] {
                                  Dataset(options(folder, {{"a", 1}, {"none", 1}}));
                                }),
                       "none: no corpus here"));
  error_of(ExitCode::config, [&] { Dataset(options(folder, {})); });
  error_of(ExitCode::config, [&] { Dataset(options(folder, {{"a", 0}})); });

  CorpusWriter letters(folder / "letters", LetterTokenizer());
  letters.append(std::vector<std::int32_t>(100, 7));
  letters.end_document();
  letters.finish();
  const std::string message = error_of(ExitCode::data, [&] { Dataset(options(folder, {{"a", 1}, {"letters", 1}})); });
  EXPECT_TRUE(contains(message, "letters.json: prepared with tokenizer letters"));
}

TEST(Dataset, NamesATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  write_corpus(folder / "a", {"0123", std::string("45") + "\xFA" + "789abcdef"});
  std::filesystem::remove(folder / "a.json");
  DatasetOptions small = options(folder, {{"a", 1}});
  small.vocab_size = 250;
  small.split = {1, 0};
  const Dataset dataset(small);
  const std::string message = error_of(ExitCode::data, [&] {
    for (std::int64_t p = 0; p < dataset.samples_per_epoch(); ++p) sample(dataset, Part::train, p);
  });
  EXPECT_EQ(message, (folder / "a.bin").string() +
                         ": token 250 at position 6 (document 1) is outside the vocabulary of 250; "
                         "prepare the corpus with the model's tokenizer and without tokens that the model lacks, or give "
                         "--model.vocab_size=251 if the model's weights start at random");
}

// Before the first sample: a corpus says which token is its largest.
TEST(Dataset, RefusesACorpusWithATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  write_corpus(folder / "a", {"0123", std::string("45") + "\xFA" + "789abcdef"});
  DatasetOptions small = options(folder, {{"a", 1}});
  small.vocab_size = 251;
  Dataset fits{small};
  small.vocab_size = 250;
  EXPECT_EQ(
      error_of(ExitCode::data, [&] { Dataset{small}; }),
      (folder / "a.json").string() +
          ": the corpus has token 250, which is outside the model's vocabulary of 250; prepare the corpus with the model's "
          "tokenizer and without tokens that the model lacks, or give --model.vocab_size=256 if the model's weights start at "
          "random");
}

}  // namespace
}  // namespace octet::data

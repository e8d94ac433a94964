#include "octet/data/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace octet::data {
namespace {

// A vocabulary over "abcd" in which each token joins two random others.
struct Merging {
  BpeModel model;
  std::vector<std::string> texts;  // by id

  Merging(std::uint32_t seed, int merges) {
    std::mt19937 random(seed);
    model.byte_ids.fill(0);
    std::map<std::string, std::int32_t> ids;
    const auto add = [&](const std::string& text) {
      const auto [found, fresh] = ids.emplace(text, static_cast<std::int32_t>(texts.size()));
      if (fresh) {
        texts.push_back(text);
        model.vocabulary.emplace_back(text, found->second);
      }
      return found->second;
    };
    for (const char c : {'a', 'b', 'c', 'd'}) model.byte_ids[static_cast<unsigned char>(c)] = add(std::string(1, c));
    for (int rank = 0; rank < merges; ++rank) {
      const auto left = static_cast<std::int32_t>(random() % texts.size()),
                 right = static_cast<std::int32_t>(random() % texts.size());
      const std::string joined = texts[static_cast<std::size_t>(left)] + texts[static_cast<std::size_t>(right)];
      // Some merges share a rank, as SentencePiece's scores do.
      model.merges.push_back({left, right, rank - rank % 3, add(joined)});
    }
  }

  // Encodes by the definition: applies the merge of the lowest rank, and the first of several, until none is left.
  std::vector<std::int32_t> expected(const std::string& word) const {
    std::map<std::pair<std::int32_t, std::int32_t>, const BpeMerge*> merges;
    for (const BpeMerge& merge : model.merges) merges[{merge.left, merge.right}] = &merge;
    std::vector<std::int32_t> ids;
    for (const char c : word) ids.push_back(model.byte_ids[static_cast<unsigned char>(c)]);
    while (true) {
      const BpeMerge* best = nullptr;
      std::size_t place = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = merges.find({ids[i], ids[i + 1]});
        if (found == merges.end() || (best != nullptr && best->rank <= found->second->rank)) continue;
        best = found->second;
        place = i;
      }
      if (best == nullptr) return ids;
      ids[place] = best->result;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
  }
};

std::string random_word(std::mt19937& random, std::size_t size) {
  std::string word;
  while (word.size() < size) word.append(1 + random() % 3, "abcd"[random() % 4]);
  word.resize(size);
  return word;
}

std::vector<std::int32_t> encode(const Bpe& bpe, std::string_view word) {
  Bpe::Scratch scratch;
  std::vector<std::int32_t> ids = {-7};
  bpe.encode(word, scratch, ids);
  EXPECT_EQ(ids.front(), -7);  // encode() appends
  ids.erase(ids.begin());
  return ids;
}

TEST(Bpe, JoinsTheLowestRankThenTheLeftmost) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Merging sample(seed, 60);
    const Bpe bpe(sample.model);
    std::mt19937 random(seed + 100);
    for (std::size_t size = 1; size < 140; ++size) {  // short and long words take different paths
      const std::string word = random_word(random, size);
      ASSERT_EQ(encode(bpe, word), sample.expected(word)) << word;
    }
  }
}

TEST(Bpe, AWordMayBeCutWhereNoMergeJoins) {
  int cuts = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Merging sample(seed, 6);
    const Bpe bpe(sample.model);
    std::mt19937 random(seed);
    const std::string word = random_word(random, 60);
    for (std::size_t at = 1; at < word.size(); ++at) {
      if (bpe.joins(word[at - 1], word[at])) continue;
      ++cuts;
      std::vector<std::int32_t> ids = encode(bpe, word.substr(0, at));
      const std::vector<std::int32_t> rest = encode(bpe, word.substr(at));
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(ids, sample.expected(word)) << word << " at " << at;
    }
  }
  EXPECT_GT(cuts, 100);
}

TEST(Bpe, WholeWordsComeBeforeMerges) {
  BpeModel model;
  model.byte_ids.fill(9);
  model.byte_ids['a'] = 0;
  model.byte_ids['b'] = 1;
  model.vocabulary = {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}};
  model.merges = {{0, 1, 0, 2}};
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(encode(Bpe(model), "aba"), (Ids{2, 0}));
  model.whole_words = true;
  EXPECT_EQ(encode(Bpe(model), "aba"), (Ids{3}));
  EXPECT_EQ(encode(Bpe(model), "abab"), (Ids{2, 2}));
  EXPECT_EQ(encode(Bpe(model), "ax"), (Ids{0, 9}));
}

TEST(Bpe, OfTwoMergesOfAPairTheLaterCounts) {
  BpeModel model;
  model.byte_ids['a'] = 0;
  model.byte_ids['b'] = 1;
  model.vocabulary = {{"a", 0}, {"b", 1}, {"ab", 2}, {"ba", 3}};
  model.merges = {{0, 1, 0, 2}, {1, 0, 1, 3}, {0, 1, 2, 2}};
  EXPECT_EQ(encode(Bpe(model), "aba"), (std::vector<std::int32_t>{0, 3}));
}

TEST(Bpe, CharactersWithoutATokenAreTheirBytes) {
  BpeModel model;
  model.symbols = BpeModel::Symbols::characters;
  for (std::size_t byte = 0; byte < 256; ++byte) model.byte_ids[byte] = static_cast<std::int32_t>(1000 + byte);
  model.vocabulary = {{"é", 1}, {"a", 2}, {"aé", 3}};
  model.merges = {{2, 1, 0, 3}};
  EXPECT_EQ(encode(Bpe(model), "aéñé"), (std::vector<std::int32_t>{3, 1000 + 0xC3, 1000 + 0xB1, 1}));
}

}  // namespace
}  // namespace octet::data

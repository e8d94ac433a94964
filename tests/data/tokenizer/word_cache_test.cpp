#include "octet/data/tokenizer/word_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace octet::data {
namespace {

TEST(WordCache, GivesWhatWasPutThereOrNothing) {
  WordCache cache;
  std::mt19937 random(3);
  std::map<std::string, std::vector<std::int32_t>> known;
  int found = 0;
  for (int i = 0; i < 300'000; ++i) {  // more words than the cache has room for, and many similar ones
    std::string word(1 + random() % 24, 'a');
    word[random() % word.size()] = static_cast<char>('a' + random() % 200);
    word[random() % word.size()] = static_cast<char>('a' + random() % 26);
    std::vector<std::int32_t>& ids = known[word];
    if (ids.empty()) {
      for (std::size_t k = 1 + random() % 10; k > 0; --k) ids.push_back(static_cast<std::int32_t>(random() % 1000));
    }
    const auto there = cache.find(word);
    if (there.empty()) {
      cache.insert(word, ids);
      const bool fits = word.size() <= WordCache::kLongestWord && ids.size() <= WordCache::kMostIds;
      ASSERT_EQ(!cache.find(word).empty(), fits);
    } else {
      ++found;
      ASSERT_TRUE(std::equal(there.begin(), there.end(), ids.begin(), ids.end())) << word;
    }
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace octet::data

#include "octet/data/document_set.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "octet/base/rng.h"

namespace octet::data {
namespace {

TEST(DocumentSet, AgreesWithASetOfTheLibrary) {
  DocumentSet documents;
  std::set<std::pair<std::uint64_t, std::uint64_t>> expected;
  const Rng rng(3, RngStream::test);
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const auto words = rng.words(i);
    // Half of the checksums have few different values, so that some occur again and many collide.
    const bool few = i % 2 == 0;
    const Checksum128 sum = {few ? words[0] % 5 : words[0], few ? words[1] % 400 : (std::uint64_t{words[2]} << 32 | words[1])};
    ASSERT_EQ(documents.insert(sum), expected.insert({sum.high, sum.low}).second) << i;
  }
  EXPECT_EQ(documents.size(), static_cast<std::int64_t>(expected.size()));
  EXPECT_FALSE(documents.insert({0, 0}));  // has certainly been drawn above, in 100,000 draws of 2,000 values
}

}  // namespace
}  // namespace octet::data

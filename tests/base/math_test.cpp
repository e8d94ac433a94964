#include "octet/base/math.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

TEST(Math, CeilDivAndRoundUp) {
  for (std::int64_t a = 0; a < 100; ++a) {
    for (std::int64_t b = 1; b < 20; ++b) {
      const std::int64_t q = ceil_div(a, b);
      ASSERT_GE(q * b, a);
      ASSERT_LT((q - 1) * b, a);
      ASSERT_EQ(round_up(a, b), q * b);
    }
  }
}

}  // namespace
}  // namespace octet

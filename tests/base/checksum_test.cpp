#include "octet/base/checksum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace octet {
namespace {

// The published test vector of XXH3-64 for no bytes and seed 0.
TEST(Checksum, IsXxh3) {
  EXPECT_EQ(checksum({}), 0x2D06800538D394C2u);
  RunningChecksum sum;
  EXPECT_EQ(sum.value(), 0x2D06800538D394C2u);
  const std::string text(100'000, 'x');
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  for (std::size_t i = 0; i < bytes.size(); i += 777) sum.update(bytes.subspan(i, std::min<std::size_t>(777, bytes.size() - i)));
  EXPECT_EQ(sum.value(), checksum(bytes));
  sum.reset();
  EXPECT_EQ(sum.value(), 0x2D06800538D394C2u);
}

}  // namespace
}  // namespace octet

#include "octet/base/checksum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace octet {
namespace {

// 0x2D06... is the published test vector of XXH3-64 for no bytes and seed 0.
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

// 0x99AA..., 0x6001... is the published test vector of XXH3-128 for no bytes and seed 0. A copy of a running sum continues
// independently.
TEST(Checksum, WideAndCopied) {
  RunningChecksum sum;
  EXPECT_EQ(sum.wide(), (Checksum128{0x99AA06D3014798D8u, 0x6001C324468D497Fu}));
  sum.update(std::string(1000, 'x'));
  RunningChecksum copy = sum;
  sum.update("a");
  copy.update("b");
  RunningChecksum whole;
  whole.update(std::string(1000, 'x') + "b");
  EXPECT_EQ(copy.wide(), whole.wide());
  EXPECT_EQ(copy.hex(), whole.hex());
  EXPECT_NE(sum.wide(), whole.wide());
  sum = copy;
  EXPECT_EQ(sum.wide(), whole.wide());
}

}  // namespace
}  // namespace octet

#include "octet/telemetry/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace octet::telemetry {
namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Format, CountsWithTheirNouns) {
  EXPECT_EQ(format_count(0, "step"), "0 steps");
  EXPECT_EQ(format_count(1, "step"), "1 step");
  EXPECT_EQ(format_count(1200, "step"), "1,200 steps");
  EXPECT_EQ(format_count(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(format_count(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(format_count(3, "process"), "3 processes");
}

TEST(Format, CountsHaveThousandsSeparators) {
  EXPECT_EQ(format_count(std::int64_t{0}), "0");
  EXPECT_EQ(format_count(std::int64_t{999}), "999");
  EXPECT_EQ(format_count(std::int64_t{1000}), "1,000");
  EXPECT_EQ(format_count(std::int64_t{-1000}), "-1,000");
  EXPECT_EQ(format_count(std::int64_t{-100}), "-100");
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(format_count(17011.6), "17,012");
  EXPECT_EQ(format_count(-0.2), "0");
  EXPECT_EQ(format_count(kInf), "inf");
  EXPECT_EQ(format_count(std::nan("")), "nan");
}

TEST(Format, ReadsBytesAsPeopleWriteThem) {
  const std::vector<std::pair<std::string, std::int64_t>> sizes = {
      {"0", 0},           {"512", 512},           {"512B", 512},       {"35kb", 35'000},
      {"35KiB", 35'840},  {"1.5 MB", 1'500'000},  {"2g", 2'000'000'000}, {"4GiB", std::int64_t{4} << 30},
      {"1TiB", std::int64_t{1} << 40}, {"-1", -1}};
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(parse_bytes(text), bytes) << text;
  for (const char* text : {"", "x", "5QQ", "5XB", "GB", "1GBB", "1 2", "1  GB", "1e3", "nan", "inf", "9223372036854775808", "8388608TiB", "+1"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

TEST(Format, CompactCountsAndBytes) {
  EXPECT_EQ(format_compact(312), "312");
  EXPECT_EQ(format_compact(999.6), "1.00 K");
  EXPECT_EQ(format_compact(8.03e9), "8.03 B");
  EXPECT_EQ(format_gib(61.2), "61.2 GiB");
  EXPECT_EQ(format_gib(0.000881), "924 KiB");  // 0.000881 x 1,048,576 = 923.8
  EXPECT_EQ(format_gib(NAN), "?");
  EXPECT_EQ(format_gib(-1), "?");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{512} << 20), "512 MiB");
  EXPECT_EQ(format_bytes(static_cast<std::uint64_t>(61.2 * 0x1p30)), "61.2 GiB");
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.42), "0.4s");
  EXPECT_EQ(format_duration(9.96), "10s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(192), "3m12s");
  EXPECT_EQ(format_duration(3599.6), "1h00m");
  EXPECT_EQ(format_duration(3840), "1h04m");
  EXPECT_EQ(format_duration(51 * 3600), "2d03h");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(kInf), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

TEST(Format, SignificantDigits) {
  EXPECT_EQ(format_significant(874.6, 3), "875");
  EXPECT_EQ(format_significant(61.23, 3), "61.2");
  EXPECT_EQ(format_significant(9.996, 3), "10.0");
  EXPECT_EQ(format_significant(0.04128, 2), "0.041");
  EXPECT_EQ(format_significant(12345, 2), "12345");
  EXPECT_EQ(format_significant(-2.5e-7, 2), "-2.5e-07");
  EXPECT_EQ(format_significant(0, 3), "0.00");
  EXPECT_EQ(format_significant(kInf, 3), "inf");
}

}  // namespace
}  // namespace octet::telemetry

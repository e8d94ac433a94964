// Runs the bench commands as a user would.
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "support/program.h"

namespace octet {
namespace {

using octet::testing::refused;
using octet::testing::run_program;

TEST(Bench, TimesCollectivesOnTheCpu) {
  const octet::testing::TemporaryFolder folder;
  const octet::testing::ProgramResult result = run_program("bench comm --device cpu -n 3 --json comm.json", folder.path());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("collectives of 3 ranks over Gloo"), std::string::npos) << result.out;
  const Json rows = json_of(read_file(folder.path() / "comm.json"));
  ASSERT_EQ(rows.size(), 16u);
  for (const Json& row : rows) {
    const std::string name = row["name"];
    EXPECT_NE(result.out.find(name), std::string::npos) << name;
    EXPECT_EQ(name.find("  "), std::string::npos) << name << ": padding belongs to the table";
    // A rank sends two thirds of the larger tensor, and twice as much in an all_reduce. Thirds are rounded to whole elements.
    const double mib = std::stod(name.substr(name.find(' '))), times = name.rfind("all_reduce", 0) == 0 ? 2 : 1;
    EXPECT_NEAR(row["rate"].get<double>() * 1e9 * row["seconds"].get<double>(), times * mib * 0x1p20 * 2 / 3, 16) << name;
  }
}

// The speed depends on the machine. Octet must deliver batches to 8 ranks and leave nothing behind.
TEST(Bench, FeedsEightRanks) {
  const octet::testing::TemporaryFolder folder;
  const octet::testing::ProgramResult result = run_program("bench loader --json loader.json", folder.path());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("at that speed a rank waits "), std::string::npos) << result.out;
  const Json rows = json_of(read_file(folder.path() / "loader.json"));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["ceiling"], 160000.0);
  EXPECT_NEAR(rows[0]["rate"].get<double>() * rows[0]["seconds"].get<double>(), 8 * 8192, 1e-3);
}

TEST(Bench, RefusesGroupsThatCannotBe) {
  EXPECT_TRUE(refused(run_program("bench comm --device cpu -n 1"), 2, "--ranks: `1` must be at least 2 and at most 64"));
  EXPECT_TRUE(refused(run_program("bench comm --device cuda -n 64"), 2, "GPUs"));
  EXPECT_TRUE(refused(run_program("bench comm --device tpu"), 2, "`tpu` must be one of auto | cpu | cuda"));
}

}  // namespace
}  // namespace octet

#include "octet/plan/memory_table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace octet::plan {
namespace {

TEST(MemoryTable, HasALineForEachCategoryTheTotalAndTheSnapshot) {
  std::array<std::size_t, kMemoryCategories> bytes{};
  bytes[static_cast<std::size_t>(MemoryCategory::weights)] = 1234567;
  bytes[static_cast<std::size_t>(MemoryCategory::state)] = 3;
  bytes[static_cast<std::size_t>(MemoryCategory::gradients)] = std::size_t{5} << 40;
  const std::string table = memory_table(bytes, 77);
  std::istringstream lines(table);
  std::vector<std::string> names, amounts;
  for (std::string line; std::getline(lines, line);) {
    std::string name = line.substr(2, 15);
    name.erase(name.find_last_not_of(' ') + 1);
    std::istringstream words(line.substr(17));
    std::string amount, unit;
    words >> amount >> unit;
    EXPECT_EQ(unit, "bytes") << line;
    EXPECT_EQ(line.size(), table.find('\n')) << "columns line up: " << line;
    names.push_back(name);
    amounts.push_back(amount);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"weights", "master weights", "moments", "gradients", "activations", "workspace",
                                             "state", "total", "snapshot (host)"}));
  EXPECT_EQ(amounts,
            (std::vector<std::string>{"1,234,567", "0", "0", "5,497,558,138,880", "0", "0", "3", "5,497,559,373,450", "77"}));
  EXPECT_EQ(memory_table(bytes), table.substr(0, table.find("  snapshot")));
}

}  // namespace
}  // namespace octet::plan

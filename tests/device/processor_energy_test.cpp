#include "octet/device/cpu/processor_energy.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/folder.h"

namespace octet {
namespace {

// A folder like /sys/class/powercap.
class Powercap {
 public:
  void set(const std::string& zone, const std::string& file, const std::string& value) const {
    std::filesystem::create_directories(folder_.path() / zone);
    std::ofstream(folder_.path() / zone / file) << value << "\n";
  }
  void add(const std::string& zone, const std::string& name, const std::string& energy) const {
    set(zone, "name", name);
    set(zone, "max_energy_range_uj", "1000000000");
    set(zone, "energy_uj", energy);
  }
  std::filesystem::path path() const { return folder_.path(); }

 private:
  testing::TemporaryFolder folder_;
};

TEST(ProcessorEnergy, AddsUpProcessorsAndNotTheirParts) {
  const Powercap powercap;
  powercap.add("intel-rapl:0", "package-0", "5000000");
  powercap.add("intel-rapl:0:0", "dram", "1000000");
  powercap.add("intel-rapl:1", "package-1", "999000000");
  powercap.add("intel-rapl:2", "psys", "0");
  ProcessorEnergy energy(powercap.path());
  powercap.set("intel-rapl:0", "energy_uj", "7500000");
  powercap.set("intel-rapl:0:0", "energy_uj", "9000000");
  powercap.set("intel-rapl:1", "energy_uj", "500000");  // beyond its range, from zero again: 1.5 J
  powercap.set("intel-rapl:2", "energy_uj", "9000000");
  EXPECT_NEAR(energy.take_joules().value_or(-1), 4.0, 1e-9);
  EXPECT_NEAR(energy.take_joules().value_or(-1), 0.0, 1e-9);
}

TEST(ProcessorEnergy, SaysNothingWithoutEveryCounter) {
  EXPECT_FALSE(ProcessorEnergy("/nowhere").take_joules());
  const Powercap powercap;
  powercap.add("intel-rapl:0", "package-0", "5000000");
  powercap.add("intel-rapl:1", "package-1", "");
  EXPECT_FALSE(ProcessorEnergy(powercap.path()).take_joules());
}

}  // namespace
}  // namespace octet

#include <filesystem>

#include "octet/app/doctor.h"
#include "octet/device/cpu/instruction_set.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

// g++ gives only its number.
std::string compiler() {
  const std::string version = __VERSION__;
  return version[0] >= '0' && version[0] <= '9' ? "g++ " + version : version;
}

}  // namespace

std::vector<Fact> build_facts() {
  const std::string name = train::build_name();
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const std::string build = name + ", " + compiler() + ", " + instruction_set_of_build();
  return {{.name = "octet", .label = "octet", .value = train::version(), .text = train::version_text()},
          {.name = "build.commit", .value = train::commit()},
          {.name = "build.name", .label = "build", .value = name, .text = build},
          {.name = "build.compiler", .value = compiler()},
          {.name = "build.simd", .value = instruction_set_of_build()},
          {.name = "build.program", .label = "program", .value = program, .text = error ? "not known" : program}};
}

}  // namespace octet::app

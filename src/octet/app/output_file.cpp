#include "octet/app/output_file.h"

#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/checkpoint/safetensors.h"

namespace octet::app {

void demand_own_file(std::string_view option, const std::filesystem::path& output, std::span<const std::filesystem::path> others) {
  if (output.empty()) return;
  const std::filesystem::path file = true_path(output);
  for (const std::filesystem::path& other : others) {
    if (other.empty()) continue;
    const std::filesystem::path used = true_path(other);
    demand(file != used && (file.parent_path() != used || !path_exists(file)), ExitCode::config, option, "=", output.string(),
           ": the command would overwrite this file of ", other.string(), "; give another name");
  }
  if (!path_exists(output)) return;
  try {
    checkpoint::SafetensorsFile::open(output);
  } catch (const Error& error) {
    fail(ExitCode::config, option, "=", output.string(), ": the file there is not in safetensors format (", error.what(),
         "); give another name, or remove it first");
  }
}

}  // namespace octet::app

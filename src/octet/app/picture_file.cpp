#include "octet/app/picture_file.h"

#include <fstream>
#include <string>

#include "octet/base/require.h"

namespace octet::app {

void check_picture_name(const std::filesystem::path& path) {
  demand(path.extension() == ".svg", ExitCode::config, "--picture=", path.string(), ": the name must end in .svg");
}

void check_picture(const std::filesystem::path& path, bool (*is_ours)(std::string_view begin), std::string_view command) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  demand(!error, ExitCode::config, "--picture: cannot look at ", path.string(), ": ", error.message());
  demand(status.type() == std::filesystem::file_type::regular, ExitCode::config, "--picture: ", path.string(),
         " is not a regular file");
  std::string begin(256, '\0');
  std::ifstream file(path, std::ios::binary);
  demand(file.is_open(), ExitCode::config, "--picture: cannot read ", path.string(), ", which is there");
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  demand(is_ours(begin), ExitCode::config, "--picture: ", path.string(), " exists and is not a picture of `", command,
         "`; give another name, or remove it first");
}

}  // namespace octet::app

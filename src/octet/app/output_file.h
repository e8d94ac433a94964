// Checks where `--output` may write.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

namespace octet::app {

// For a command that writes safetensors. Throws Error{config} if `output` is the file of another option, or lies in the folder
// of another option and exists there, because the command would destroy a file that it reads or has just written. Also throws
// if `output` exists and is not safetensors, so it is not an earlier output. An empty path stands for an option that was not
// given.
void demand_own_file(std::string_view option, const std::filesystem::path& output, std::span<const std::filesystem::path> others);

}  // namespace octet::app

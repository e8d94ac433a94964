// Where `--output` may write.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

namespace octet::app {

// Throws Error{config} if `output` is the file of another option, or exists in the folder of another option: the command would destroy
// what it reads or has just written. An empty path is an option that was not given.
void demand_own_file(std::string_view option, const std::filesystem::path& output, std::span<const std::filesystem::path> others);

}  // namespace octet::app

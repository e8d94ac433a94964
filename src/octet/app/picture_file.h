// Checks where `--picture` may write.
#pragma once

#include <filesystem>
#include <string_view>

namespace octet::app {

// Throws Error{config} unless the name ends in .svg.
void check_picture_name(const std::filesystem::path& path);

// Throws Error{config} if a file exists that is not such a picture. `is_ours` recognises one by its first 256 bytes.
void check_picture(const std::filesystem::path& path, bool (*is_ours)(std::string_view begin), std::string_view command);

}  // namespace octet::app

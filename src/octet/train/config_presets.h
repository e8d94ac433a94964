// The files of configs/, built into the program so that a preset's name works in any directory. CMake writes their list.
#pragma once

#include <span>
#include <string_view>

namespace octet::train {

struct Preset {
  std::string_view name;  // of the file, without .toml
  std::string_view toml;
};
std::span<const Preset> presets();

}  // namespace octet::train

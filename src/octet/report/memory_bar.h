// Draws the contents of a GPU's memory as a stacked bar: a complete SVG file for light and dark pages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octet::report {

struct MemoryPart {
  std::string name;  // "moments"
  std::string note;  // the contents, in a few words
  std::size_t bytes = 0;
};

struct MemoryBar {
  std::string title;
  std::vector<std::string> lines;  // below the title, each of at most 100 characters
  std::vector<MemoryPart> parts;   // only the first nine have different colours; parts without bytes are left out
  std::string gpu;                 // "H100"
  std::size_t gpu_bytes = 0;       // memory of the GPU
};

// Draws a bar of all parts, to scale with the GPU's memory, and a line for each part with its bytes, its share of the GPU's memory and its
// note. Each segment of the bar has a tooltip with its bytes, "moments: 8,030,261,248 bytes".
std::string draw(const MemoryBar& bar);

// Whether a file was made by draw(). `begin` holds its first 64 bytes or more.
bool is_memory_bar(std::string_view begin);

}  // namespace octet::report

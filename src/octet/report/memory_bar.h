// What fills a GPU's memory, as a stacked bar: an SVG file of its own, for light and dark pages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace octet::report {

struct MemoryPart {
  std::string name;  // "moments"
  std::string note;  // what it holds, in a few words
  std::size_t bytes = 0;
};

struct MemoryBar {
  std::string title;
  std::vector<std::string> lines;  // below the title, each of at most 100 characters
  std::vector<MemoryPart> parts;   // at most nine have a colour of their own; parts without bytes are left out
  std::string gpu;                 // "H100"
  std::size_t gpu_bytes = 0;       // what it has
};

// A bar of all parts to scale against what the GPU has, and a line for each part: its bytes, share of the GPU, and what it holds.
// Each segment of the bar carries its bytes as a tooltip, "moments: 8,030,261,248 bytes".
std::string draw(const MemoryBar& bar);

// Whether a file that begins with `begin`, 64 bytes or more, is one that draw() made.
bool is_memory_bar(std::string_view begin);

}  // namespace octet::report

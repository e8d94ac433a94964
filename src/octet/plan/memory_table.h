// Prints a memory plan.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "octet/device/buffer.h"

namespace octet::plan {

// A line for each category with exact and rounded bytes, and a line with the total.
std::string memory_table(const std::array<std::size_t, kMemoryCategories>& bytes);

}  // namespace octet::plan

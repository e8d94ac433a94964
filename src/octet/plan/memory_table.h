// Prints a memory plan.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "octet/device/buffer.h"

namespace octet::plan {

// A line for each category with exact and rounded bytes, and a line with the total. A last line has the host memory of a run's
// snapshot, which the total does not include; there is none if `snapshot` is 0.
std::string memory_table(const std::array<std::size_t, kMemoryCategories>& bytes, std::size_t snapshot = 0);

}  // namespace octet::plan

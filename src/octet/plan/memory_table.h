// The memory plan in words.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "octet/device/buffer.h"

namespace octet::plan {

// A line per category with bytes and GiB, and the total.
std::string memory_table(const std::array<std::size_t, kMemoryCategories>& bytes);

}  // namespace octet::plan

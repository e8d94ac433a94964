// Mapped files that become shorter, or whose disk fails, while they are read: the system then sends SIGBUS where it cannot bring a
// page. Without this the program would die without a word.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>

namespace octet {

// From now on a SIGBUS in these bytes ends the program with code 76 and a sentence that names the file. At most a thousand ranges
// are watched at a time; further ones are not.
void watch_mapping(const void* data, std::size_t size, const std::filesystem::path& path);
// To be called before the memory is unmapped.
void forget_mapping(const void* data);
// From now on the flag is set before such an end. It must live as long as the program.
void tell_bus_errors(std::atomic<bool>& flag);

}  // namespace octet

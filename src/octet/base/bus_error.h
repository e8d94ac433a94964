// Reports SIGBUS. The system sends this signal to a program that reads a mapped file which has become shorter or whose disk
// fails. Without this handler the program would die without a message.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>

namespace octet {

// From now on, a SIGBUS in these bytes ends the program with code 76 and a sentence that names the file. At most a thousand
// ranges are watched at a time; later ones are not.
void watch_mapping(const void* data, std::size_t size, const std::filesystem::path& path);
// Call this before the memory is unmapped.
void forget_mapping(const void* data);
// From now on, `flag` is set to true before a SIGBUS ends the program. `flag` must live as long as the program.
void tell_bus_errors(std::atomic<bool>& flag);

}  // namespace octet

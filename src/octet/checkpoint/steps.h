// The folders of checkpoints: checkpoints/step-00001000/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace octet::checkpoint {

struct StepDirectory {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// "step-00001000"
std::string step_name(std::int64_t step);

// The checkpoints of a root by name, highest step first; nothing is opened. None when the root does not exist.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// A name beside `step_directory` that no reader takes for a checkpoint, for what this process is writing or deleting.
std::filesystem::path unfinished_name(const std::filesystem::path& step_directory);

// Added to an unfinished name: what it replaces.
constexpr const char* kReplaced = ".old";

// Removes the unfinished names that this process or processes that no longer run have left in `root`.
void remove_unfinished(const std::filesystem::path& root);

// Renames a checkpoint away, then deletes it: a kill in between leaves no half checkpoint under a valid name.
void discard_checkpoint(const std::filesystem::path& step_directory);

}  // namespace octet::checkpoint

// The directories of checkpoints, such as checkpoints/step-00001000/.
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

// Lists the checkpoints in `root`, highest step first. Looks only at names and opens no file. Returns an empty list if `root`
// does not exist. Throws SystemError with ExitCode::data if `root` cannot be listed or is a link that leads nowhere: that is
// never an empty list.
std::vector<StepDirectory> find_checkpoints(const std::filesystem::path& root);

// Returns a new name, in the folder of `step_directory`, for a directory that is being written or deleted. Readers do not treat
// it as a checkpoint.
std::filesystem::path unfinished_name(const std::filesystem::path& step_directory);

// The suffix that an unfinished name gets when an older checkpoint of the same step is moved out of the way.
constexpr const char* kReplaced = ".old";

// Gives checkpoints that were moved out of the way their names back, if nothing has taken their place. The caller holds the
// lock of the run folder. A directory that cannot be renamed stays, with a warning. Throws like find_checkpoints().
void put_back_replaced(const std::filesystem::path& root);

// Deletes the directories with unfinished names in `root`, except checkpoints whose place is empty. The caller holds the lock
// of the run folder, so all of them were left by runs that have ended. A directory that cannot be deleted stays, with a
// warning.
void remove_unfinished(const std::filesystem::path& root);

// Renames a checkpoint to an unfinished name and then deletes it, so that a kill in between does not leave an incomplete checkpoint under
// a valid name.
void discard_checkpoint(const std::filesystem::path& step_directory);

// Moves a damaged checkpoint to root/damaged/, where no reader takes it for a checkpoint, and returns its new path. Throws
// Error{internal} if that fails.
std::filesystem::path move_to_damaged(const std::filesystem::path& step_directory);

}  // namespace octet::checkpoint

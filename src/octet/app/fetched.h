// What commands read that may be given as an s3:// URL. Copies show their progress.
#pragma once

#include <filesystem>
#include <string>

#include "octet/app/commands.h"
#include "octet/train/fetch.h"

namespace octet::app {

// train::ShowCopy, on stderr. A supervisor sees that the copy moves.
storage::CopyProgress show_copy(const std::string& label);

// The configuration, with copies of what it names.
train::Config load_run(const RunFile& run, train::Fetch what = train::Fetch::everything);

// The path of a model directory or adapter, or of its copy.
std::filesystem::path fetched_folder(const std::filesystem::path& path, train::Fetch what = train::Fetch::everything);
// The same where it may also be a checkpoint, or the checkpoint.remote of a run.
std::filesystem::path fetched_checkpoint(const std::filesystem::path& path);

}  // namespace octet::app

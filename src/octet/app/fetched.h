// Fetches inputs of commands that may be given as an s3:// URL, and shows the progress of the copies.
#pragma once

#include <filesystem>
#include <string>

#include "octet/app/commands.h"
#include "octet/train/fetch.h"

namespace octet::app {

// Is a train::ShowCopy that prints to stderr. It also shows a supervisor that the copy makes progress.
storage::CopyProgress show_copy(const std::string& label);

// Returns the configuration, with copies of the inputs that it names.
train::Config load_run(const RunFile& run, train::Fetch what = train::Fetch::everything);

// Returns the path of a model directory or adapter, or of its copy.
std::filesystem::path fetched_folder(const std::filesystem::path& path, train::Fetch what = train::Fetch::everything);
// Does the same if the path may also be a checkpoint, or the checkpoint.remote of a run.
std::filesystem::path fetched_checkpoint(const std::filesystem::path& path);

}  // namespace octet::app

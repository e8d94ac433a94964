// Questions about names in the file system. "Cannot tell" is never "no": if the system cannot answer, for example because a
// folder may not be searched (EACCES) or a disk fails (EIO), these functions throw SystemError with ExitCode::data, "PATH:
// REASON".
#pragma once

#include <filesystem>
#include <vector>

namespace octet {

// Whether a file or folder with this name exists. Links are followed, so a dangling link counts as absent.
bool path_exists(const std::filesystem::path& path);
// Whether a regular file, or a folder, with this name exists. Links are followed.
bool is_file(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
// Throws SystemError if this name is a link whose target does not exist. The target may be on a file system that is not
// mounted, so the caller must not treat it as absent.
void demand_not_lost(const std::filesystem::path& path);

// The paths of everything in a folder, sorted. Also throws if the folder does not exist.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

// Returns the absolute path without links and dots, as far as it exists. All names of a folder give the same path.
std::filesystem::path true_path(const std::filesystem::path& path);

// Makes the folder and those above it that are missing. Throws Error{internal} "PATH: cannot create: REASON", or says that PATH
// is a link that leads nowhere.
void make_folders(const std::filesystem::path& folder);

// Removes a file, or a folder with everything in it. Does nothing if there is none. Throws Error{internal} "PATH: cannot remove:
// REASON".
void remove_tree(const std::filesystem::path& path);

// The folder for temporary files: TMPDIR, or else /tmp. Throws Error{config} "TMPDIR=PATH: not a folder; ..." if there is none.
std::filesystem::path temporary_folder();

}  // namespace octet

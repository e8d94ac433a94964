// Moves and copies files and folders, also from one file system to another.
#pragma once

#include <filesystem>
#include <functional>

namespace octet {

// Copies a file, or a folder with everything in it, to `to`, which must not exist. Links are followed. When it returns, the copy
// survives a loss of power. `copied` is called after each piece. Throws SystemError.
void copy_tree(const std::filesystem::path& from, const std::filesystem::path& to, const std::function<void()>& copied = {});

// Moves the file or folder `from` into `folder`. Does nothing if it does not exist. A link moves as a link to the same target.
// Between two file systems, `from` is copied, and removed when its copy is complete. Throws SystemError.
void move_into(const std::filesystem::path& folder, const std::filesystem::path& from, const std::function<void()>& copied = {});

}  // namespace octet

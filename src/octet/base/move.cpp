#include "octet/base/move.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/system_call.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

void copy_file(const fs::path& from, const fs::path& to, const std::function<void()>& copied) {
  const FileReader file(from);
  FileWriter copy(to);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::size_t at = 0; at < file.size(); at += piece.size()) {
    piece.resize(std::min(piece.size(), file.size() - at));
    file.read_at(at, piece);
    copy.write(piece);
    if (copied) copied();
  }
  copy.finish();
}

// Moves a link. A relative target becomes absolute, because it is relative to the link's old folder.
void move_link(const fs::path& to, const fs::path& from) {
  std::error_code error;
  const fs::path target = fs::read_symlink(from, error);
  if (!error) fs::create_symlink(true_path(from.parent_path()) / target, to, error);
  if (error) throw SystemError(ExitCode::internal, concat(to.string(), ": cannot create: ", error.message()), error.value());
  sync_directory(to.parent_path());
  remove_tree(from);
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    fail_errno(ExitCode::internal, from, "cannot be moved to " + to.parent_path().string());
  }
}

}  // namespace

void copy_tree(const fs::path& from, const fs::path& to, const std::function<void()>& copied) {
  if (!is_folder(from)) return copy_file(from, to, copied);
  make_folders(to);
  for (const fs::path& path : entries_of(from)) copy_tree(path, to / path.filename(), copied);
  sync_directory(to);
}

void move_into(const fs::path& folder, const fs::path& from, const std::function<void()>& copied) {
  const fs::path to = folder / from.filename();
  if (std::error_code ignored; fs::is_symlink(from, ignored)) return move_link(to, from);  // its target may be gone
  if (!path_exists(from)) return;
  if (std::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno != EXDEV) fail_errno(ExitCode::internal, from, "cannot be moved to " + folder.string());
  const fs::path copy = fs::path(to).concat(".tmp-copy"), old = fs::path(from).concat(".tmp-moved");
  copy_tree(from, copy, copied);
  rename_or_fail(copy, to);
  sync_directory(folder);
  remove_tree(old);           // left by a move that was killed
  rename_or_fail(from, old);  // so that a kill during the deletion leaves no incomplete tree under the name `from`
  remove_tree(old);
}

}  // namespace octet

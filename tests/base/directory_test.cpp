#include "octet/base/directory.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "support/folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

TEST(Directory, TellsFilesFromFoldersAndFromNothing) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("file", "text");
  fs::create_symlink("nowhere", folder / "dangling");
  fs::create_symlink("file", folder / "link");
  for (const fs::path& there : {file, folder / "link"}) {
    EXPECT_TRUE(path_exists(there));
    EXPECT_TRUE(is_file(there));
    EXPECT_FALSE(is_folder(there));
  }
  EXPECT_TRUE(path_exists(folder.path()));
  EXPECT_TRUE(is_folder(folder.path()));
  EXPECT_FALSE(is_file(folder.path()));
  for (const fs::path& absent : {folder / "nothing", folder / "dangling", file / "below", folder / std::string(5000, 'x')}) {
    EXPECT_FALSE(path_exists(absent) || is_file(absent) || is_folder(absent)) << absent;
  }
}

TEST(Directory, NamesOfOneFolderHaveOneTruePath) {
  const TemporaryFolder folder;
  folder.write("a/file", "");
  fs::create_symlink("a", folder / "link");
  const fs::path expected = true_path(folder / "a");
  EXPECT_EQ(true_path(folder / "link"), expected);
  EXPECT_EQ(true_path(folder / "link/../link/."), expected);
  EXPECT_EQ(true_path(folder / "link/absent"), expected / "absent");
  EXPECT_TRUE(expected.is_absolute());
}

TEST(Directory, RemovesTreesAndSaysWhichCannotBeRemoved) {
  const TemporaryFolder folder;
  folder.write("a/b/file", "text");
  remove_tree(folder / "a");
  EXPECT_FALSE(path_exists(folder / "a"));
  remove_tree(folder / "a");  // nothing is there
  fs::create_symlink("loop", folder / "loop");
  try {
    remove_tree(folder / "loop/file");
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    EXPECT_EQ(error.what(), (folder / "loop/file").string() + ": cannot remove: Too many levels of symbolic links");
  }
}

TEST(Directory, TemporaryFilesNeedAFolder) {
  const TemporaryFolder folder;
  folder.write("file", "");
  const char* const named = std::getenv("TMPDIR");
  const std::string before = named ? named : "";
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  EXPECT_EQ(temporary_folder(), folder.path());
  for (const fs::path& wrong : {folder / "file", folder / "absent"}) {
    ::setenv("TMPDIR", wrong.c_str(), 1);
    try {
      temporary_folder();
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::config);
      EXPECT_EQ(error.what(), "TMPDIR=" + wrong.string() + ": not a folder; set TMPDIR to a folder for temporary files");
    }
  }
  ::unsetenv("TMPDIR");
  EXPECT_EQ(temporary_folder(), "/tmp");
  if (named) ::setenv("TMPDIR", before.c_str(), 1);
}

TEST(Directory, WhatCannotBeLookedAtIsAnError) {
  const TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THROW(true_path(folder / "loop"), SystemError);
  for (const auto& question : {path_exists, is_file, is_folder}) {
    try {
      question(folder / "loop");
      FAIL();
    } catch (const SystemError& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_EQ(error.number(), ELOOP);
      EXPECT_FALSE(error.not_there() || error.may_pass());
      EXPECT_EQ(error.what(), (folder / "loop").string() + ": Too many levels of symbolic links");
    }
  }
}

TEST(Directory, ListsEverythingInOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"b", "a/below", ".hidden"}) folder.write(name, "");
  EXPECT_EQ(entries_of(folder.path()), (std::vector<fs::path>{folder / ".hidden", folder / "a", folder / "b"}));
  try {
    entries_of(folder / "absent");
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_TRUE(error.not_there());
    EXPECT_EQ(error.what(), (folder / "absent").string() + ": cannot list: No such file or directory");
  }
}

}  // namespace
}  // namespace octet

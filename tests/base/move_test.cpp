#include "octet/base/move.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "octet/base/file.h"
#include "support/folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::names_in;
using testing::TemporaryFolder;

dev_t device_of(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_dev : 0;
}

TEST(Move, ARelativeLinkKeepsItsTarget) {
  const TemporaryFolder folder;
  folder.write("disk/deep/file", "text");
  fs::create_directories(folder / "from");
  fs::create_directories(folder / "a/b/to");
  fs::create_directory_symlink("../disk/deep", folder / "from/link");
  move_into(folder / "a/b/to", folder / "from/link");
  EXPECT_TRUE(fs::is_symlink(folder / "a/b/to/link"));
  EXPECT_EQ(read_file(folder / "a/b/to/link/file"), "text");
  EXPECT_TRUE(names_in(folder / "from").empty());
  EXPECT_EQ(names_in(folder / "disk"), std::vector<std::string>{"deep"});
}

// What it leads to may be on a file system that is not mounted.
TEST(Move, ALinkThatLeadsNowhereIsMoved) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "to");
  fs::create_symlink("/nowhere/at/all", folder / "link");
  move_into(folder / "to", folder / "link");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"to"});
  EXPECT_EQ(fs::read_symlink(folder / "to/link"), "/nowhere/at/all");
}

TEST(Move, WhatIsNotThereIsNotMoved) {
  const TemporaryFolder folder;
  move_into(folder.path(), folder / "absent");
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(Move, AlsoToAnotherFileSystem) {
  const TemporaryFolder folder;
  const fs::path other = "/dev/shm";
  if (device_of(other) == 0 || device_of(other) == device_of(folder.path())) GTEST_SKIP() << "one file system";
  const fs::path to = other / folder.path().filename();
  fs::create_directories(to);
  const std::string large((std::size_t{3} << 20) + 5, 'x');
  folder.write("tree/a/large", large);
  folder.write("tree/b", "b");
  folder.write("file", "file");
  folder.write("tree.tmp-moved/left", "by a move that was killed");
  int pieces = 0;
  move_into(to, folder / "tree", [&] { ++pieces; });
  move_into(to, folder / "file");
  EXPECT_TRUE(names_in(folder.path()).empty());
  EXPECT_EQ(names_in(to), (std::vector<std::string>{"file", "tree"}));
  EXPECT_EQ(read_file(to / "tree/a/large"), large);
  EXPECT_EQ(read_file(to / "tree/b"), "b");
  EXPECT_EQ(read_file(to / "file"), "file");
  EXPECT_EQ(pieces, 5);
  fs::remove_all(to);
}

}  // namespace
}  // namespace octet

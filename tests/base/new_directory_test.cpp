#include "octet/base/new_directory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/folder.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

std::pair<ExitCode, std::string> error_of(const fs::path& path) {
  try {
    const NewDirectory made(path);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ExitCode::done, ""};
}

TEST(NewDirectory, AppearsWhenItIsComplete) {
  const TemporaryFolder folder;
  for (const char* name : {"a/b", "c/"}) {
    NewDirectory made(folder / name);
    write_file_atomically(made.path() / "file", "text");
    EXPECT_FALSE(fs::exists(folder / name));
    made.finish();
    EXPECT_EQ(read_file(folder.path() / name / "file"), "text");
    EXPECT_FALSE(fs::exists(made.path()));
  }
  fs::create_directory(folder / "empty");
  NewDirectory made(folder / "empty");
  write_file_atomically(made.path() / "file", "text");
  made.finish();
  EXPECT_TRUE(fs::exists(folder / "empty/file"));
}

TEST(NewDirectory, RefusesAnEmptyFolderThatItCannotReplace) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "empty");
  fs::create_directory_symlink(folder / "empty", folder / "link");
  for (const char* name : {"empty/.", "link"}) {
    const auto [code, text] = error_of(folder / name);
    EXPECT_EQ(code, ExitCode::config);
    EXPECT_NE(text.find(": exists already, and this empty folder cannot be replaced ("), std::string::npos) << text;
  }
  EXPECT_TRUE(fs::exists(folder / "empty"));
  EXPECT_EQ(error_of(folder / "empty").first, ExitCode::done);
}

TEST(NewDirectory, LeavesNothingWhenItIsNotFinished) {
  const TemporaryFolder folder;
  {
    const NewDirectory made(folder / "a");
    write_file_atomically(made.path() / "file", "text");
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(NewDirectory, RemovesWhatAKillHasLeftAndNothingThatIsBeingWritten) {
  const TemporaryFolder folder;
  const NewDirectory living(folder / "a");
  const auto make_elsewhere = [&](bool killed) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto made = std::make_unique<NewDirectory>(folder / "a");
      write_file_atomically(made->path() / "file", "text");
      if (!killed) made.reset();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  };
  folder.write("a.tmp-mine/file", "text");
  folder.write("a.tmp-0123456789abcdef-1-2/file", "of another machine");
  std::vector<std::string> expected = {"a.tmp-0123456789abcdef-1-2", "a.tmp-mine", living.path().filename().string()};
  std::sort(expected.begin(), expected.end());
  make_elsewhere(true);
  EXPECT_EQ(testing::names_in(folder.path()).size(), 4u);
  make_elsewhere(false);
  EXPECT_EQ(testing::names_in(folder.path()), expected);
}

TEST(NewDirectory, NeedsAName) { EXPECT_EQ(error_of("").first, ExitCode::config); }

TEST(NewDirectory, TakesNobodysPlace) {
  const TemporaryFolder folder;
  folder.write("full/file", "text");
  folder.write("plain", "text");
  fs::create_symlink(folder / "nowhere", folder / "link");
  for (const char* name : {"full", "full/", "plain", "link"}) {
    EXPECT_EQ(error_of(folder / name).first, ExitCode::config) << name;
  }
  EXPECT_EQ(error_of(folder / "full").second, (folder / "full").string() + ": exists already; remove it or give another name");
  EXPECT_EQ(error_of(folder / "plain/below").first, ExitCode::config) << "another path helps";

  NewDirectory made(folder / "late");
  folder.write("late/file", "theirs");
  try {
    made.finish();
    ADD_FAILURE() << "it took their place";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_EQ(error.what(), (folder / "late").string() + ": exists already; remove it or give another name");
  }
  EXPECT_EQ(read_file(folder / "late/file"), "theirs");
}

}  // namespace
}  // namespace octet

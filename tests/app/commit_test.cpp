// What cmake/write_commit.cmake writes for a git checkout and for other folders.
#include <gtest/gtest.h>

#include <cstdlib>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/train/version.h"
#include "support/folder.h"
#include "support/paths.h"

namespace octet {
namespace {

using testing::TemporaryFolder;
using testing::write_text;

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

TEST(Commit, IsThatOfTheCheckout) {
  if (!run("cmake --version") || !run("git --version")) GTEST_SKIP() << "no cmake or no git";
  const TemporaryFolder folder;
  const std::filesystem::path source = folder / "source", output = folder / "commit.cpp";
  std::filesystem::create_directories(source / "inner");
  const auto written = [&](const std::filesystem::path& from, const std::string& named = "") {
    EXPECT_TRUE(run(concat("cmake -D OUTPUT=", output.string(), " -D SOURCE=", from.string(), " -D OCTET_COMMIT=", named, " -P '",
                           testing::source_dir(), "/cmake/write_commit.cmake'")));
    const std::string text = read_file(output);
    const std::size_t begin = text.find("= \"") + 3;
    return text.substr(begin, text.find('"', begin) - begin);
  };
  EXPECT_EQ(written(source), "unknown");
  EXPECT_EQ(written(source, "1.2.3"), "1.2.3");

  const std::string git = "cd " + source.string() + " && git -c user.name=x -c user.email=x@x ";
  write_text(source / "file", "one");
  ASSERT_TRUE(run(git + "init") && run(git + "add file") && run(git + "commit -m one"));
  ASSERT_TRUE(run(git + "rev-parse HEAD") && std::system((git + "rev-parse HEAD >../head").c_str()) == 0);
  const std::string head = read_file(folder / "head").substr(0, 12);
  EXPECT_EQ(written(source), head);
  const auto time = std::filesystem::last_write_time(output);
  EXPECT_EQ(written(source), head);
  EXPECT_EQ(std::filesystem::last_write_time(output), time) << "the same commit compiles the source again";
  write_text(source / "new", "not tracked");
  EXPECT_EQ(written(source), head);
  write_text(source / "file", "two");
  EXPECT_EQ(written(source), head + "+changes");
  EXPECT_EQ(written(source / "inner"), "unknown") << "sources that were unpacked inside another project's checkout";
}

// `./run-tests --changed` compares the checksums that tools/testing.sh takes. A new commit must not change them; new code must.
TEST(Commit, IsNotInTheChecksumOfAProgram) {
  if (!run("cmake --version") || !run("c++ --version") || !run("objcopy --version")) GTEST_SKIP() << "no cmake, c++ or objcopy";
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "build");
  folder.write("octet/train/version.h", "namespace octet::train { const char* commit(); }\n");
  const std::string source = testing::source_dir(), here = "cd " + folder.path().string() + " && ";
  const auto sum_of = [&](const std::string& name, const std::string& commit, int result) {
    write_text(folder / "main.cpp", concat("#include \"octet/train/version.h\"\n"
                                           "int main() { return octet::train::commit()[0] == ",
                                           result, "; }\n"));
    EXPECT_TRUE(run(concat(here, "cmake -D OUTPUT=commit.cpp -D SOURCE=. -D OCTET_COMMIT=", commit, " -P '", source,
                           "/cmake/write_commit.cmake' && c++ -std=c++17 -I . commit.cpp main.cpp -o ", name)));
    EXPECT_EQ(std::system(concat(here, "bash -c 'source \"", source, "/tools/testing.sh\"; image ", name, "' >sum").c_str()), 0);
    return read_file(folder / "sum");
  };
  const std::string sum = sum_of("first", "0123456789ab", 65);
  EXPECT_EQ(sum.size(), 68u) << sum;  // 64 digits, "  -" and a line feed
  EXPECT_EQ(sum_of("second", "ba9876543210+changes", 65), sum);
  EXPECT_NE(read_file(folder / "first"), read_file(folder / "second"));
  EXPECT_NE(sum_of("third", "0123456789ab", 66), sum);
}

TEST(Commit, IsInTheVersion) { EXPECT_EQ(train::version_text(), concat(train::version(), " (commit ", train::commit(), ")")); }

// The wheel, too, takes its version from CMakeLists.txt (tools/wheel.sh).
TEST(Version, IsThatOfTheProject) {
  const std::string project = read_file(std::string(testing::source_dir()) + "/CMakeLists.txt");
  EXPECT_NE(project.find(concat("\nproject(octet VERSION ", train::version(), " LANGUAGES")), std::string::npos)
      << train::version();
}

}  // namespace
}  // namespace octet

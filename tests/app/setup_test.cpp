// What a newcomer reads if ./quickstart, ./run-tests or CMake cannot work on a machine. The folder's name has a blank and an
// umlaut.
#include <gtest/gtest.h>

#include <cstdlib>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/folder.h"
#include "support/paths.h"
#include "support/program.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using testing::says;
using testing::TemporaryFolder;
using testing::write_text;

class Setup : public ::testing::Test {
 protected:
  // Copies the scripts to a machine of Debian on which everything is installed and there is no network.
  void SetUp() override {
    fs::create_directories(root_ / "tools");
    fs::create_directories(root_ / "bin");
    for (const char* file : {"quickstart", "run-tests", "tools/packages.sh", "tools/testing.sh"}) {
      fs::copy_file(fs::path(testing::source_dir()) / file, root_ / file);
    }
    machine_has("dpkg-query", "echo installed");
    machine_has("apt-get", "echo 'E: Failed to fetch http://deb.debian.org'; exit 100");
    machine_has("sudo", "exit 1");
    machine_has("id", "echo 0");
    machine_has("df", "echo; echo x 9000000 1000 8999000 1% /");
  }
  void machine_has(const std::string& program, const std::string& body) {
    write_text(root_ / "bin" / program, concat("#!/bin/sh\n", body, "\n"));
    fs::permissions(root_ / "bin" / program, fs::perms::owner_all);
  }
  // Runs a script, which must end with code 1, and returns what it says.
  std::string run(const std::string& script) {
    const std::string command =
        concat("cd '", root_.string(), "' && PATH=\"$PWD/bin:$PATH\" ./", script, " </dev/null >said 2>&1");
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
    return read_file(root_ / "said");
  }

  TemporaryFolder folder_;
  fs::path root_ = folder_ / "Pfad mit ä";
};

TEST_F(Setup, WithoutPermissionToWrite) {
  write_text(root_ / "build", "in the way of the folder");
  EXPECT_TRUE(says(run("quickstart"), "\nquickstart: cannot write to " + root_.string() + "/build. Run this in a copy"));
  const std::string said = run("run-tests");
  EXPECT_TRUE(says(said, "run-tests: cannot write to " + root_.string() + "/build. Run this in a copy"));
  EXPECT_TRUE(says(said, "\n0 passed, 1 failed\n"));
}

TEST_F(Setup, WithoutRoom) {
  machine_has("df", "echo; echo x 9000000 8999000 1024 99% /");
  EXPECT_TRUE(says(run("quickstart"),
                   "quickstart: the disk of " + root_.string() + " is nearly full: 1 MB free, about 300 MB are needed. Make"));
}

TEST_F(Setup, WithoutNetworkOrRights) {
  machine_has("dpkg-query", "exit 1");
  EXPECT_TRUE(
      says(run("quickstart"), "quickstart: cannot fetch the package lists. Check the network. Needed packages: g++ cmake "));
  machine_has("id", "echo 1000");
  EXPECT_TRUE(says(run("quickstart"),
                   "quickstart: packages are missing, and sudo needs a password. Run: sudo apt-get install g++ cmake "));
}

TEST_F(Setup, WithAnOldCompiler) {
  const auto configure = [&](const char* compiler, const char* version) {
    std::system(concat("cmake -D CMAKE_CXX_COMPILER=c++ -D CMAKE_CXX_COMPILER_ID=", compiler, " -D CMAKE_CXX_COMPILER_VERSION=",
                       version, " -P '", testing::source_dir(), "/cmake/compiler.cmake' >'", (root_ / "said").string(), "' 2>&1")
                    .c_str());
    return read_file(root_ / "said");
  };
  EXPECT_EQ(configure("GNU", "12.2.0"), "");
  EXPECT_EQ(configure("Clang", "14.0.6"), "");
  EXPECT_TRUE(says(configure("GNU", "10.2.1"), "c++ is GNU 10.2.1, which is too old for Octet."));
  EXPECT_TRUE(says(configure("Clang", "12.0.1"), "c++ is Clang 12.0.1, which is too old for Octet."));
}

}  // namespace
}  // namespace octet

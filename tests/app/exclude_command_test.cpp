#include "octet/app/exclude_command.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <thread>

#include "octet/base/descriptor.h"
#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/folder.h"

namespace octet::app {
namespace {

using Sentences = std::vector<std::string>;

// Waits for a failure.
Sentences failures_of(ExcludeCommand& command) {
  Sentences failures;
  for (int tries = 0; tries < 2000 && failures.empty(); ++tries) {
    failures = command.failures();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return failures;
}

TEST(ExcludeCommand, TellsTheCommandAndReportsItsFailure) {
  const testing::TemporaryFolder folder;
  ExcludeCommand command(concat("cat >", (folder / "input").string(), "; echo \"$OCTET_NODE|$OCTET_CODE|$OCTET_REASON\" >",
                                (folder / "said").string(), "; exit 3"));
  EXPECT_EQ(command.failures(), Sentences());
  command.start("node7", 137, "rank 5 \"$(crashed)\"");
  EXPECT_EQ(failures_of(command), Sentences{"--on-exclude ended with code 3"});
  EXPECT_EQ(read_file(folder / "said"), "node7|137|rank 5 \"$(crashed)\"\n");
  EXPECT_EQ(read_file(folder / "input"), "");
  EXPECT_EQ(command.failures(), Sentences());
}

// It may run on for long, and must not keep the snapshots of a supervisor that has ended.
TEST(ExcludeCommand, InheritsNoDescriptors) {
  const Descriptor memory(::memfd_create("inherited", 0));
  ASSERT_TRUE(memory.open());
  const std::string link = concat("/proc/self/fd/", memory.get());
  ExcludeCommand command(concat("test ! -e ", link, " && exit 5"));
  command.start("a", 1, "");
  EXPECT_EQ(failures_of(command), Sentences{"--on-exclude ended with code 5"});
}

TEST(ExcludeCommand, MayBeKilledOrMissing) {
  ExcludeCommand killed("kill -9 $$");
  killed.start("a", 1, "");
  EXPECT_EQ(failures_of(killed), Sentences{"--on-exclude was killed by signal 9"});
  ExcludeCommand missing("/nowhere/command 2>/dev/null");
  missing.start("a", 1, "");
  EXPECT_EQ(failures_of(missing), Sentences{"--on-exclude ended with code 127"});
  ExcludeCommand none("");
  none.start("a", 1, "");
  EXPECT_EQ(none.failures(), Sentences());
}

}  // namespace
}  // namespace octet::app

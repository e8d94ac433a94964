#include "octet/app/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "octet/base/descriptor.h"
#include "octet/base/file.h"
#include "support/folder.h"

namespace octet::app {
namespace {

// Files of this process may have so many bytes, as if a disk were full then.
class MostBytes {
 public:
  explicit MostBytes(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~MostBytes() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  MostBytes(const MostBytes&) = delete;
  MostBytes& operator=(const MostBytes&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

// Only what had no room is missing, and the output says how much.
TEST(LastingOutput, GoesOnWhenThereIsRoomAgain) {
  const testing::TemporaryFolder folder;
  const Descriptor file(::open((folder / "log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  LastingOutput output(file.get());
  EXPECT_EQ(output.write("step 1\n"), 0);
  {
    const MostBytes few(10);
    EXPECT_EQ(output.write("step 2\n"), EFBIG);
    EXPECT_EQ(output.write("step 3\n"), EFBIG);
    EXPECT_TRUE(output.lost());
  }
  EXPECT_EQ(output.write("step 4\n"), 0);
  EXPECT_FALSE(output.lost());
  EXPECT_EQ(output.write("step 5\n"), 0);
  EXPECT_EQ(read_file(folder / "log"),
            "step 1\nste\noctet: 11 bytes of this output are missing here: File too large\nstep 4\nstep 5\n");
}

// Nothing is lost where nobody reads.
TEST(LastingOutput, EndsWithItsReader) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor writer(ends[1]);
  Descriptor(ends[0]).close();
  void (*const handler)(int) = std::signal(SIGPIPE, SIG_IGN);
  LastingOutput output(writer.get());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(output.write("step 1\n"), EPIPE);
  EXPECT_FALSE(output.lost());
  std::signal(SIGPIPE, handler);
}

}  // namespace
}  // namespace octet::app

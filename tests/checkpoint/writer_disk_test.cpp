// A disk that fails while a checkpoint takes the place of an older one of its step. This program's own renameat2() and fsync() stand
// before those of the C library.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <vector>

#include "checkpoint/files.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/writer.h"
#include "support/errors.h"
#include "support/folder.h"

namespace {
// The first exchange succeeds and makes all later fsync() and renameat2() fail.
std::atomic<bool> disk_breaks_after_exchange{false}, disk_is_broken{false};
}  // namespace

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (disk_is_broken) return errno = EIO, -1;
  const auto result = static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (disk_breaks_after_exchange) disk_is_broken = true;
  return result;
}

extern "C" int fsync(int file) {
  if (disk_is_broken) return errno = EIO, -1;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace octet::checkpoint {
namespace {

using testing::contains;
using testing::error_of;
using testing::TemporaryFolder;

TEST(WriterDisk, AnExchangeThatCannotBeUndoneLosesNeitherCheckpoint) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({4}))};
  std::string said;
  {
    Writer writer({.root = folder.path(), .mode = WriteMode::now});
    writer.save(3, memory.stream(), entries, {{"value", 7}});
    disk_breaks_after_exchange = true;
    said = error_of(ExitCode::internal, [&] { writer.save(3, memory.stream(), entries, {{"value", 8}}); });
    disk_breaks_after_exchange = disk_is_broken = false;
  }
  std::vector<int> values;
  std::filesystem::path older;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    values.push_back(Reader::open(entry.path()).meta().at("value"));
    if (values.back() == 7) older = entry.path();
  }
  std::sort(values.begin(), values.end());
  EXPECT_EQ(values, (std::vector<int>{7, 8}));
  EXPECT_TRUE(contains(said, "cannot flush this folder to disk: Input/output error")) << said;
  EXPECT_TRUE(contains(said, "the older checkpoint of this step is " + older.string())) << said;
}

}  // namespace
}  // namespace octet::checkpoint

// Moves 150 MB through a server in Python.
#include <algorithm>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/storage/local_copy.h"
#include "support/folder.h"
#include "support/s3_server.h"

namespace octet::storage {
namespace {

namespace fs = std::filesystem;
using testing::S3Server;
using testing::TemporaryFolder;

using LongCopyTest = testing::S3Test;

TEST_F(LongCopyTest, GoesOnWhereItWasInterrupted) {
  const CopySet set = {.url = parse_object_url("s3://bucket/models/tiny"), .names = {"config.json", "weights"}};
  const S3Server server;
  const TemporaryFolder cache;
  ObjectStore store(0.2);
  std::string large(150 << 20, '\0');  // blocks of 64, 64 and 22 MiB
  for (std::size_t i = 0; i < large.size(); i += 1009) large[i] = static_cast<char>(i >> 10);
  store.put_text(set.url.below("config.json"), "{}");
  store.put_text(set.url.below("weights"), large);
  // The service fails behind the first two blocks.
  const auto fail = [&](std::int64_t done, std::int64_t) {
    if (done >= 2 + (128 << 20)) server.control("fail?count=100000&kind=503");
  };
  EXPECT_THROW(local_copy(store, set, cache.path(), fail), StoreError);
  server.control("fail?count=0&kind=");
  for (const fs::path& path : entries_of(cache / "s3" / "bucket" / "models"))
    EXPECT_TRUE(path.string().ends_with(".part")) << path;  // nobody takes it for a copy
  server.requests();
  const fs::path copy = local_copy(store, set, cache.path());
  EXPECT_EQ(read_file(copy / "weights"), large);
  const std::vector<std::string> requests = server.requests();
  const auto gets = std::count_if(requests.begin(), requests.end(), [](const std::string& r) { return r.starts_with("GET"); });
  EXPECT_EQ(gets, 6);  // 86 MiB in pieces of 16: the first block is not asked for again, and config.json neither
}

}  // namespace
}  // namespace octet::storage

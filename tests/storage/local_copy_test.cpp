#include "octet/storage/local_copy.h"

#include <algorithm>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/s3_server.h"

namespace octet::storage {
namespace {

namespace fs = std::filesystem;
using testing::S3Server;
using testing::TemporaryFolder;

class LocalCopyTest : public testing::S3Test {
 protected:
  static std::ptrdiff_t gets(const S3Server& server) {
    const std::vector<std::string> requests = server.requests();
    return std::count_if(requests.begin(), requests.end(), [](const std::string& r) { return r.starts_with("GET"); });
  }
  const CopySet set_ = {.url = parse_object_url("s3://bucket/models/tiny"), .names = {"config.json", "weights"}};
};

TEST_F(LocalCopyTest, IsMadeOnceAndAgainWhenAnObjectChanges) {
  const S3Server server("bucket other");
  const TemporaryFolder cache;
  ObjectStore store(5);
  const std::string weights(200'000, 'w');
  store.put_text(set_.url.below("config.json"), "{}");
  store.put_text(set_.url.below("weights"), weights);
  std::int64_t done = 0, total = 0;
  const fs::path copy = local_copy(store, set_, cache.path(), [&](std::int64_t d, std::int64_t t) { done = d, total = t; });
  EXPECT_EQ(copy.parent_path(), cache / "s3" / "bucket" / "models");
  EXPECT_TRUE(copy.filename().string().starts_with("tiny@"));
  EXPECT_EQ(read_file(copy / "config.json"), "{}");
  EXPECT_EQ(read_file(copy / "weights"), weights);
  EXPECT_EQ(testing::names_in(copy), (std::vector<std::string>{"config.json", "weights"}));
  EXPECT_EQ(testing::names_in(copy.parent_path()), (std::vector<std::string>{copy.filename().string()}));
  EXPECT_EQ(done, 200'002);
  EXPECT_EQ(total, 200'002);

  server.requests();
  EXPECT_EQ(local_copy(store, set_, cache.path()), copy);
  EXPECT_EQ(gets(server), 0);  // only asks whether the objects are the same

  // The same object again, with other bytes of the same size.
  testing::overwrite_object("bucket", "models/tiny/config.json", "[]");
  const fs::path second = local_copy(store, set_, cache.path());
  EXPECT_NE(second, copy);
  EXPECT_EQ(read_file(second / "config.json"), "[]");
  EXPECT_EQ(read_file(copy / "config.json"), "{}");  // may be in use
}

TEST_F(LocalCopyTest, KeepsTheFoldersOfObjects) {
  const S3Server server;
  const TemporaryFolder cache;
  ObjectStore store(5);
  CopySet set = set_;
  set.names = {"a", "a.part", "b/c/d", "b/e"};  // a copy of "a" has the second name while it is made
  for (const std::string& name : set.names) store.put_text(set.url.below(name), "text of " + name);
  std::int64_t done = 0;
  const fs::path copy = local_copy(store, set, cache.path(), [&](std::int64_t bytes, std::int64_t) { done = bytes; });
  for (const std::string& name : set.names) EXPECT_EQ(read_file(copy / name), "text of " + name);
  EXPECT_EQ(done, 47);
  EXPECT_EQ(testing::names_in(copy), (std::vector<std::string>{"a", "a.part", "b"}));
}

TEST_F(LocalCopyTest, IsNeverHalfUsed) {
  const S3Server server;
  const TemporaryFolder cache;
  ObjectStore store(1);
  store.put_text(set_.url.below("config.json"), "{}");
  const std::string missing = testing::error_of(ExitCode::data, [&] { local_copy(store, set_, cache.path()); });
  EXPECT_EQ(missing, "s3://bucket/models/tiny/weights: no such object");
  store.put_text(set_.url.below("weights"), "1234");
  const fs::path copy = local_copy(store, set_, cache.path());
  testing::write_text(copy / "weights", "123");
  const std::string shorter = testing::error_of(ExitCode::data, [&] { local_copy(store, set_, cache.path()); });
  EXPECT_NE(shorter.find("not as long as s3://bucket/models/tiny/weights. Remove " + copy.string()), std::string::npos)
      << shorter;
}

}  // namespace
}  // namespace octet::storage

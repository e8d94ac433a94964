#include "octet/checkpoint/remote.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/checkpoint/reader.h"
#include "support/folder.h"
#include "support/s3_server.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::S3Server;
using testing::TemporaryFolder;

// The files of a "checkpoint" whose manifest is only looked at when it is fetched.
class RemoteTest : public testing::S3Test {
 protected:
  fs::path make(std::int64_t step, const std::string& content) const {
    const fs::path path = folder_ / (std::to_string(step) + content);
    make_folders(path);
    testing::write_text(path / "rank-00000.safetensors", content);
    testing::write_text(path / "rank-00001.safetensors", content + content);
    testing::write_text(path / "manifest.json", "manifest of " + content);
    return path;
  }
  std::vector<std::pair<std::int64_t, bool>> found() const {
    storage::ObjectStore store(2);
    std::vector<std::pair<std::int64_t, bool>> result;
    for (const RemoteCheckpoint& checkpoint : remote_checkpoints(store, url_))
      result.emplace_back(checkpoint.step, checkpoint.abandoned);
    return result;
  }
  using Found = std::vector<std::pair<std::int64_t, bool>>;

  const TemporaryFolder folder_;
  const storage::ObjectUrl url_ = storage::parse_object_url("s3://bucket/run");
};

TEST_F(RemoteTest, AManifestMakesACheckpoint) {
  const S3Server server;
  storage::ObjectStore store(2);
  send_checkpoint(store, url_, 8, make(8, "a"));
  store.put_text(url_.below("step-00000009-0123456789abcdef/rank-00000.safetensors"), "x");
  store.put_text(url_.below("step-00000010-0123/manifest.json"), "x");                // not a sum
  store.put_text(url_.below("step-00000010-0123456789abcdef/x/manifest.json"), "x");  // in a folder below
  store.put_text(url_.below("manifest.json"), "x");
  EXPECT_EQ(found(), (Found{{8, false}}));
  EXPECT_EQ(remote_checkpoints(store, url_)[0].files.size(), 3u);
  // Sent again, nothing is written.
  server.requests();
  send_checkpoint(store, url_, 8, make(8, "a"));
  for (const std::string& request : server.requests()) EXPECT_TRUE(request.starts_with("HEAD")) << request;
}

TEST_F(RemoteTest, FilesThatBelongToACheckpointGoAlong) {
  const S3Server server;
  storage::ObjectStore store(2);
  const fs::path checkpoint = make(8, "a"), beside = folder_ / "tokenizer";
  make_folders(beside);
  testing::write_text(beside / "tokenizer.json", "first");
  send_checkpoint(store, url_, 8, checkpoint, {}, beside);
  testing::write_text(beside / "tokenizer.json", "another one");
  send_checkpoint(store, url_, 8, checkpoint, {}, beside);  // it is there, and stays
  const std::string name = remote_checkpoints(store, url_).at(0).name;
  EXPECT_EQ(store.get_all(url_.below(name).below("tokenizer.json")), "first");
}

TEST_F(RemoteTest, AbandonedCheckpointsStayAndAreMarked) {
  const S3Server server;
  RemoteCopies copies({.url = url_, .retry_s = 2}, std::nullopt);
  for (const std::int64_t step : {4, 8}) {
    copies.copy(step, make(step, "a"));
    EXPECT_EQ(copies.wait(), "");
  }
  copies.abandon({.after = 4, .last = 8});
  copies.copy(6, make(6, "b"));
  EXPECT_EQ(copies.wait(), "");
  EXPECT_EQ(found(), (Found{{8, true}, {6, false}, {4, false}}));
  // The same bits are reached again. Their old name is abandoned.
  copies.copy(8, make(8, "a"));
  EXPECT_EQ(copies.wait(), "");
  EXPECT_EQ(found(), (Found{{8, false}, {8, true}, {6, false}, {4, false}}));
}

// If a process ends before it has marked the checkpoints, the next one still knows which they are.
TEST_F(RemoteTest, WhatIsToBeMarkedIsRemembered) {
  const S3Server server;
  std::vector<std::string> told;
  const RemoteOptions options{.url = url_, .retry_s = 0.1, .again_s = 0.1, .remember = [&](const auto& steps) {
                                told.push_back(steps ? concat(steps->after, " to ", steps->last) : "nothing");
                              }};
  {
    RemoteCopies copies(options, std::nullopt);
    copies.copy(8, make(8, "a"));
    EXPECT_EQ(copies.wait(), "");
    EXPECT_TRUE(told.empty());
    server.control("fail?count=1000000&kind=503&method=PUT&path=abandoned");
    copies.abandon({.after = 6, .last = 8});
    copies.abandon({.after = 4, .last = 7});
    EXPECT_NE(copies.wait(), "");
  }
  EXPECT_EQ(told, (std::vector<std::string>{"6 to 8", "4 to 8"}));
  server.control("fail?count=0&kind=");
  RemoteCopies copies(options, std::nullopt);
  copies.abandon({.after = 4, .last = 8});
  EXPECT_EQ(copies.wait(), "");
  EXPECT_EQ(told.back(), "nothing");
  EXPECT_EQ(found(), (Found{{8, true}}));
}

TEST_F(RemoteTest, ACheckpointAfterARollbackIsSentAgain) {
  const S3Server server;
  RemoteCopies copies({.url = url_, .retry_s = 0.1}, std::nullopt);
  copies.copy(8, make(8, "a"));
  EXPECT_EQ(copies.wait(), "");
  server.control("fail?count=1000000&kind=503");
  copies.abandon({.after = 4, .last = 8});
  copies.copy(8, make(8, "b"));
  EXPECT_NE(copies.wait(), "");
  server.control("fail?count=0&kind=");
  while (!copies.wait().empty()) {
  }
  Found both = found();  // written within a second, so in any order
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, (Found{{8, false}, {8, true}}));
}

// The run goes back to step 4 twice, the second time while a checkpoint from between is sent.
TEST_F(RemoteTest, ARollbackToTheSameStepMarksWhatIsSentMeanwhile) {
  const S3Server server;
  server.control("fail?count=1000000&kind=503");
  RemoteCopies copies({.url = url_, .retry_s = 0.1}, std::nullopt);
  copies.abandon({.after = 4, .last = 8});
  copies.copy(8, make(8, "a"));
  EXPECT_NE(copies.wait(), "");
  server.control("fail?count=1&kind=slow&method=PUT&path=rank-00001");
  std::thread waiter([&] {
    while (!copies.wait().empty()) {
    }
  });
  while (server.control("log").find("rank-00001") == std::string::npos) ::usleep(10'000);
  copies.abandon({.after = 4, .last = 8});
  waiter.join();
  EXPECT_EQ(copies.wait(), "");
  EXPECT_EQ(found(), (Found{{8, true}}));
}

TEST_F(RemoteTest, WhatIsSentIsInUseAndOneWaits) {
  const S3Server server;
  server.control("fail?count=1000000&kind=hang&path=rank-00001");
  RemoteCopies copies({.url = url_, .retry_s = 0.5}, std::nullopt);
  copies.copy(1, make(1, "a"));
  while (server.control("log").find("rank-00001") == std::string::npos) ::usleep(10'000);
  copies.copy(2, make(2, "b"));
  copies.copy(3, make(3, "c"));
  EXPECT_TRUE(copies.uses(1));
  EXPECT_FALSE(copies.uses(2));  // gave way
  EXPECT_TRUE(copies.uses(3));
  server.control("fail?count=0&kind=");
  while (!copies.wait().empty()) {
  }
  EXPECT_FALSE(copies.uses(1));
  EXPECT_FALSE(copies.uses(3));
  EXPECT_EQ(found().front(), std::pair(std::int64_t{3}, false));
}

TEST_F(RemoteTest, AFailureIsToldAndTriedAgain) {
  const S3Server server;
  server.control("fail?count=1000000&kind=503&method=POST");
  std::atomic<std::int64_t> copied = 0;
  RemoteCopies copies({.url = url_, .retry_s = 0.1, .again_s = 0.1, .copied = [&](std::int64_t step) { copied = step; }},
                      std::nullopt);
  copies.copy(5, make(5, "a"));
  EXPECT_NE(copies.wait().find("s3://bucket/run/step-00000005-"), std::string::npos);
  EXPECT_TRUE(copies.uses(5));
  EXPECT_EQ(copied, 0);
  EXPECT_TRUE(found().empty());
  server.control("fail?count=0&kind=");
  while (copied == 0) ::usleep(10'000);  // without anybody asking for it
  EXPECT_EQ(copies.wait(), "");
  EXPECT_EQ(found(), (Found{{5, false}}));
}

TEST_F(RemoteTest, WhatIsFetchedIsCheckedFirst) {
  const S3Server server;
  storage::ObjectStore store(2);
  send_checkpoint(store, url_, 8, make(8, "no manifest"));
  const fs::path root = folder_ / "root";
  fs::create_directories(root / "fetching-step-00000004-0123456789abcdef");  // a fetch of an older one was interrupted
  EXPECT_THROW(fetch_checkpoint(store, url_, remote_checkpoints(store, url_)[0], root), Damaged);
  EXPECT_TRUE(find_checkpoints(root).empty());
  EXPECT_FALSE(fs::exists(root / "fetching-step-00000004-0123456789abcdef"));
}

}  // namespace
}  // namespace octet::checkpoint

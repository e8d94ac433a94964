#include "octet/storage/object_store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "octet/base/clock.h"
#include "octet/base/file.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/s3_server.h"

namespace octet::storage {
namespace {

using testing::S3Server;
using testing::S3Test;
using testing::TemporaryFolder;

std::string url_error(std::string_view text) {
  return testing::error_of(ExitCode::config, [&] { parse_object_url(text); });
}

TEST(ObjectUrl, HasABucketAndAKey) {
  const ObjectUrl url = parse_object_url("s3://my-bucket/models/tiny/");
  EXPECT_EQ(url.bucket, "my-bucket");
  EXPECT_EQ(url.key, "models/tiny");
  EXPECT_EQ(url.text(), "s3://my-bucket/models/tiny");
  EXPECT_EQ(url.below("config.json").text(), "s3://my-bucket/models/tiny/config.json");
  EXPECT_EQ(parse_object_url("s3://bucket").below("x").key, "x");
  EXPECT_NE(url_error("s3://").find("the name of a bucket"), std::string::npos);
  EXPECT_NE(url_error("s3://Bucket/x").find("the name of a bucket"), std::string::npos);
  EXPECT_NE(url_error("s3://bucket/a//b").find("an empty part"), std::string::npos);
  EXPECT_NE(url_error("s3://bucket/../b").find("`..`"), std::string::npos);
  EXPECT_NE(url_error("s3://bucket/a?versionId=1").find("`?`"), std::string::npos);
  EXPECT_NE(url_error("gs://bucket/a").find("must be s3://BUCKET/PREFIX"), std::string::npos);
}

TEST(ObjectUrl, DoesNotRepeatCredentials) {
  const std::string error = url_error("s3://AKIAKEY:secret@bucket/x");
  EXPECT_NE(error.find("credentials do not belong in a URL"), std::string::npos);
  EXPECT_EQ(error.find("AKIAKEY"), std::string::npos);
  EXPECT_EQ(error.find("secret@"), std::string::npos);
}

std::string bytes_of(std::size_t count) {
  std::string text(count, '\0');
  std::uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

using ObjectStoreTest = S3Test;

TEST_F(ObjectStoreTest, PutsFindsListsAndGetsRanges) {
  const S3Server server;
  const TemporaryFolder folder;
  ObjectStore store(5);
  const ObjectUrl root = parse_object_url("s3://bucket/run");
  EXPECT_FALSE(store.find(root.below("none")).has_value());
  EXPECT_TRUE(store.list(root).empty());

  const std::string large = bytes_of((20 << 20) + 7);  // three parts
  const auto path = folder.write("large", large);
  std::int64_t told = 0;
  EXPECT_TRUE(store.put_file(root.below("deep/large"), path, [&](std::int64_t sent) { told = sent; }));
  EXPECT_EQ(told, static_cast<std::int64_t>(large.size()));
  EXPECT_TRUE(store.put_text(root.below("small"), "hello"));
  EXPECT_TRUE(store.put_text(root.below("empty"), ""));
  EXPECT_TRUE(store.put_text(parse_object_url("s3://bucket/runner/other"), "x"));  // not below run/

  const auto found = store.find(root.below("deep/large"));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->bytes, large.size());
  EXPECT_FALSE(found->tag.empty());
  std::string range(1000, '\0');
  const std::size_t offset = (8 << 20) - 500;
  store.get(root.below("deep/large"), large.size(), offset, std::as_writable_bytes(std::span(range)));
  EXPECT_EQ(range, large.substr(offset, 1000));
  EXPECT_EQ(store.get_all(root.below("deep/large")), large);
  EXPECT_EQ(store.get_all(root.below("empty")), "");

  const std::vector<ListedObject> all = store.list(root);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "deep/large");
  EXPECT_EQ(all[0].bytes, large.size());
  EXPECT_GT(all[0].written_ns, 1'500'000'000'000'000'000);
  EXPECT_EQ(all[1].name, "empty");
  EXPECT_EQ(all[2].name, "small");
}

TEST_F(ObjectStoreTest, NeverOverwrites) {
  const S3Server server;
  ObjectStore store(5);
  const ObjectUrl url = parse_object_url("s3://bucket/a");
  EXPECT_TRUE(store.put_text(url, "first"));
  EXPECT_FALSE(store.put_text(url, "second"));
  EXPECT_EQ(store.get_all(url), "first");
}

StoreError::Fault fault_of(const std::function<void()>& act, std::string& message) {
  try {
    act();
  } catch (const StoreError& error) {
    message = error.what();
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(message.find("octet-secret"), std::string::npos) << message;
    return error.fault();
  }
  ADD_FAILURE() << "no StoreError";
  return StoreError::Fault::refused;
}

TEST_F(ObjectStoreTest, NoSuchObjectIsNotNoAnswer) {
  const S3Server server;
  ObjectStore store(0.5);
  std::string message;
  // A bucket that is not there is no empty folder.
  EXPECT_EQ(fault_of([&] { store.list(parse_object_url("s3://no-such-bucket/x")); }, message), StoreError::Fault::refused);
  EXPECT_NE(message.find("NO_SUCH_BUCKET"), std::string::npos) << message;
  EXPECT_EQ(fault_of([&] { store.get_all(parse_object_url("s3://bucket/none")); }, message), StoreError::Fault::refused);
  EXPECT_EQ(message, "s3://bucket/none: no such object");

  // A service that is busy for longer than it is asked.
  server.control("fail?count=100000&kind=503");
  const ObjectUrl url = parse_object_url("s3://bucket/x");
  EXPECT_EQ(fault_of([&] { store.find(url); }, message), StoreError::Fault::no_answer);
  EXPECT_NE(message.find("s3://bucket/x: no answer (AWS_ENDPOINT_URL=http://127.0.0.1:"), std::string::npos) << message;
  EXPECT_EQ(fault_of([&] { store.list(url); }, message), StoreError::Fault::no_answer);
  EXPECT_EQ(fault_of([&] { store.put_text(url, "x"); }, message), StoreError::Fault::no_answer);
}

TEST_F(ObjectStoreTest, FailuresThatPassAreTriedAgain) {
  const S3Server server;
  ObjectStore store(20);
  const ObjectUrl url = parse_object_url("s3://bucket/x");
  const std::string bytes = bytes_of(12 << 20);
  for (const std::string kind : {"503", "close"}) {
    server.control("fail?count=3&kind=" + kind);
    EXPECT_TRUE(store.put_text(url.below(kind), bytes)) << kind;  // fails at find()
    server.control("fail?count=2&method=PUT&kind=" + kind);
    EXPECT_TRUE(store.put_text(url.below(kind + "-part"), bytes)) << kind;
    server.control("fail?count=2&method=GET&kind=" + kind);
    EXPECT_EQ(store.list(url).size(), kind == "503" ? 2u : 4u) << kind;
  }
  server.control("fail?count=2&method=GET&kind=cut");
  EXPECT_EQ(store.get_all(url.below("503-part")), bytes);
  EXPECT_EQ(store.get_all(url.below("close-part")), bytes);
}

TEST_F(ObjectStoreTest, AnUploadThatFailsLeavesNoObject) {
  const S3Server server;
  ObjectStore store(0.3);
  const ObjectUrl url = parse_object_url("s3://bucket/x");
  const std::string bytes = bytes_of(12 << 20);
  server.control("fail?count=100000&method=PUT&kind=close");
  std::string message;
  EXPECT_EQ(fault_of([&] { store.put_text(url, bytes); }, message), StoreError::Fault::no_answer);
  server.control("fail?count=0&kind=");
  EXPECT_FALSE(store.find(url).has_value());
  EXPECT_TRUE(store.put_text(url, bytes));
  EXPECT_EQ(store.get_all(url), bytes);
  // A source that cannot be read is its own error.
  const TemporaryFolder folder;
  EXPECT_THROW(store.put_file(url.below("file"), folder / "none"), Error);
  EXPECT_FALSE(store.find(url.below("file")).has_value());
}

TEST_F(ObjectStoreTest, WrongCredentialsAreRefusedAtOnceAndNotShown) {
  const S3Server server;
  ObjectStore store(60);
  server.control("auth");
  const Clock::time_point start = Clock::now();
  std::string message;
  const ObjectUrl url = parse_object_url("s3://bucket/x");
  EXPECT_EQ(fault_of([&] { store.find(url); }, message), StoreError::Fault::refused);
  EXPECT_NE(message.find("ACCESS_DENIED"), std::string::npos) << message;
  EXPECT_NE(message.find("credentials are those of AWS_ACCESS_KEY_ID"), std::string::npos) << message;
  EXPECT_EQ(fault_of([&] { store.list(url); }, message), StoreError::Fault::refused);
  EXPECT_EQ(message.find("AKIAOCTETTEST"), std::string::npos) << message;
  EXPECT_LT(seconds_since(start), 30);  // far less than retry_s: nothing was tried again
}

TEST_F(ObjectStoreTest, APortThatAnswersNothingIsNoAnswer) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  testing::use_s3(concat("http://127.0.0.1:", ntohs(address.sin_port)));
  std::string message;
  {
    ObjectStore store(1);
    EXPECT_EQ(fault_of([&] { store.find(parse_object_url("s3://bucket/x")); }, message), StoreError::Fault::no_answer);
    EXPECT_NE(message.find("NETWORK_CONNECTION"), std::string::npos) << message;  // nobody listens
  }
  ASSERT_EQ(::listen(fd, 64), 0);  // somebody listens and says nothing
  {
    ObjectStore store(1);
    const Clock::time_point start = Clock::now();
    EXPECT_EQ(fault_of([&] { store.find(parse_object_url("s3://bucket/x")); }, message), StoreError::Fault::no_answer);
    EXPECT_LT(seconds_since(start), 60);
  }
  ::close(fd);
}

}  // namespace
}  // namespace octet::storage

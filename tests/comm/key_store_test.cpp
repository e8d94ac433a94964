#include "octet/comm/key_store.h"

#include <gtest/gtest.h>

#include "octet/base/require.h"

namespace octet::comm {
namespace {

class Store : public ::testing::Test {
 protected:
  // Serves a request and returns what rank 0's thread would say of a rank that is dropped, or "".
  std::string serve(int rank, Frame frame) {
    try {
      store_.serve(rank, std::move(frame), Clock::now());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer);
      return error.what();
    }
    return "";
  }
  std::string set(int rank, const std::string& key, const std::string& value, std::uint64_t reads = 0) {
    return serve(rank, {Message::set, reads, 0, key, value});
  }
  std::string ask(int rank, Message kind, const std::string& key, const std::string& value = "") {
    return serve(rank, {kind, 7, 60000, key, value});
  }

  std::vector<std::string> answers_;
  KeyStore store_{3,
                  [this](int rank, const Frame& frame) { answers_.push_back(concat(rank, " ", frame.value)); },
                  {.keys = 4, .bytes = 1000, .requests = 3}};
};

TEST_F(Store, KeepsKeysWithinTheirNumber) {
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_EQ(set(1, key, "x"), "");
  EXPECT_EQ(set(1, "e", "x"), "has set more than 4 keys");
  EXPECT_EQ(set(1, "a", "again"), "");
  EXPECT_EQ(set(2, "e", "x"), "");
  EXPECT_EQ(set(2, "a", "mine"), "") << "a key counts for the rank that set it last";
  EXPECT_EQ(set(1, "f", "x"), "");
  EXPECT_EQ(set(1, "g", "x"), "has set more than 4 keys");
  EXPECT_EQ(store_.keys(), 6u);
}

TEST_F(Store, KeepsBytesWithinTheirNumber) {
  EXPECT_EQ(set(1, "a", std::string(999, 'x')), "");
  EXPECT_EQ(set(1, "b", ""), "has stored more than 1000 bytes");
  EXPECT_EQ(set(1, "a", std::string(1000, 'x')), "has stored more than 1000 bytes");
  EXPECT_EQ(ask(1, Message::get, "b"), "has stored more than 1000 bytes") << "requests that wait count";
  EXPECT_EQ(set(1, "a", ""), "");
  EXPECT_EQ(set(1, "b", std::string(998, 'x')), "");
  EXPECT_EQ(set(2, "c", std::string(999, 'x')), "");
}

TEST_F(Store, KeepsOpenRequestsWithinTheirNumber) {
  EXPECT_EQ(ask(1, Message::get, "a"), "");
  EXPECT_EQ(ask(1, Message::get, "a"), "");
  EXPECT_EQ(ask(1, Message::meet, "barrier", "v"), "");
  EXPECT_EQ(ask(1, Message::get, "b"), "has more than 3 open requests");
  EXPECT_EQ(ask(1, Message::meet, "another", "v"), "has more than 3 open requests");
  set(0, "a", "x");  // ends two of them
  EXPECT_EQ(answers_, (std::vector<std::string>{"1 x", "1 x"}));
  EXPECT_EQ(ask(1, Message::get, "b"), "");
  EXPECT_EQ(ask(1, Message::get, "b"), "");
  EXPECT_EQ(ask(1, Message::get, "b"), "has more than 3 open requests");
  for (const int rank : {0, 2}) EXPECT_EQ(ask(rank, Message::meet, "barrier", "v"), "");
  EXPECT_EQ(ask(1, Message::get, "b"), "");
  store_.expire(Clock::now() + seconds(61));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(1, Message::get, "b"), "");
  store_.lose(2, "closed its connection");
  EXPECT_EQ(ask(1, Message::get, "b"), "") << "refused at once, so it does not wait";
}

TEST_F(Store, AKeyGoesAfterItsReads) {
  set(0, "a", "x", 2);
  ask(1, Message::get, "a");
  EXPECT_EQ(store_.keys(), 1u);
  ask(2, Message::get, "a");
  EXPECT_EQ(store_.keys(), 0u);
  ask(1, Message::get, "b");
  ask(2, Message::get, "b");
  set(0, "b", "y", 2);  // both wait already
  EXPECT_EQ(store_.keys(), 0u);
  for (int i = 0; i < 100; ++i) {  // many more than the quota, one after the other
    EXPECT_EQ(set(0, concat("key ", i), std::string(500, 'x'), 1), "");
    EXPECT_EQ(ask(1, Message::get, concat("key ", i)), "");
  }
  EXPECT_EQ(store_.keys(), 0u);
}

}  // namespace
}  // namespace octet::comm

#include "octet/app/http_request.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace octet::app {
namespace {

HttpRequest parse(const std::string& first, const std::string& fields = "Host: localhost\r\n") {
  return parse_http_request(first + "\r\n" + fields + "\r\n");
}

TEST(HttpRequest, ReadsWhatABrowserSends) {
  const HttpRequest request =
      parse("GET /watch.js?v=1 HTTP/1.1",
            "Host: 127.0.0.1:8808\r\nUser-Agent: Some Browser/1.0 (X11)\r\nAccept: */*\r\nif-NONE-match:  \"abc\" \r\n");
  EXPECT_EQ(request.refused, 0);
  EXPECT_FALSE(request.head);
  EXPECT_EQ(request.path, "/watch.js");
  EXPECT_EQ(request.if_none_match, "\"abc\"");
  EXPECT_TRUE(parse("HEAD / HTTP/1.0").head);
  EXPECT_EQ(parse_http_request("GET / HTTP/1.1\nHost: localhost\n\n").refused, 0) << "lines that end in LF alone";
}

TEST(HttpRequest, KnowsWhereTheHeadEnds) {
  EXPECT_EQ(http_head_length("GET / HTTP/1.1\r\nHost: a\r\n"), std::nullopt);
  EXPECT_EQ(http_head_length("GET / HTTP/1.1\r\nHost: a\r\n\r\nbody"), 27u);
  EXPECT_EQ(http_head_length("GET / HTTP/1.1\n\n"), 16u);
  EXPECT_EQ(http_head_length(""), std::nullopt);
  EXPECT_EQ(http_head_length("\r\n"), std::nullopt);
}

// A page of another site can make its own name resolve to this machine. Its requests then carry that name and must be refused.
TEST(HttpRequest, OnlyNamesOfTheLoopbackAreHosts) {
  for (const char* ours : {"127.0.0.1", "127.0.0.1:8808", "localhost", "LocalHost:9000", "[::1]", "[::1]:1"}) {
    EXPECT_EQ(parse("GET / HTTP/1.1", std::string("Host: ") + ours + "\r\n").refused, 0) << ours;
  }
  for (const char* other :
       {"example.com", "127.0.0.1.example.com", "localhost.example.com", "127.0.0.2", "127.0.0.1:x", "127.0.0.1:123456",
        "localhost@example.com", "localhost:80:80", "10.0.0.1", "", ":8808", "user@localhost", "localhost."}) {
    EXPECT_EQ(parse("GET / HTTP/1.1", std::string("Host: ") + other + "\r\n").refused, 403) << other;
  }
  EXPECT_EQ(parse("GET / HTTP/1.1", "").refused, 400) << "none";
  EXPECT_EQ(parse("GET / HTTP/1.1", "Host: localhost\r\nHost: example.com\r\n").refused, 400) << "two";
}

TEST(HttpRequest, RefusesTheRest) {
  const std::vector<std::pair<std::string, int>> cases{{"POST / HTTP/1.1", 405},
                                                       {"DELETE / HTTP/1.1", 405},
                                                       {"BREW / HTTP/1.1", 405},
                                                       {"GET / HTTP/2.0", 505},
                                                       {"GET / HTTP/1.2", 505},
                                                       {"GET / HTTQ/1.1", 400},
                                                       {"GET /", 400},
                                                       {"GET", 400},
                                                       {"", 400},
                                                       {"GET  / HTTP/1.1", 400},
                                                       {"G(T / HTTP/1.1", 400},
                                                       {"GET / / HTTP/1.1", 400},
                                                       {"GET x HTTP/1.1", 400},
                                                       {"GET http://a/ HTTP/1.1", 400},
                                                       {"GET /\x01 HTTP/1.1", 400},
                                                       {"GET /\xc3\xa9 HTTP/1.1", 400},
                                                       {" GET / HTTP/1.1", 400},
                                                       {"\x16\x03\x01 hello", 400}};
  for (const auto& [first, status] : cases) EXPECT_EQ(parse(first).refused, status) << first;
  for (const char* field :
       {"no colon\r\n", ": nothing\r\n", "sp ace: x\r\n", "X: \x01\r\n", " folded: x\r\n", "Host : localhost\r\n"}) {
    EXPECT_EQ(parse("GET / HTTP/1.1", std::string("Host: localhost\r\n") + field).refused, 400) << field;
  }
  EXPECT_EQ(parse_http_request(std::string("GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 36)).refused, 400);
}

}  // namespace
}  // namespace octet::app

// Tests the server with impatient, endless, rude and many clients.
#include "octet/app/http_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "octet/base/require.h"

namespace octet::app {
namespace {

constexpr const char* kGet = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

HttpServer::Limits with_request_s(double seconds) {
  HttpServer::Limits limits;
  limits.request_s = seconds;
  return limits;
}

class Served {
 public:
  explicit Served(HttpServer::Limits limits = {}, std::size_t page_bytes = 1000)
      : content_(std::make_shared<const HttpContent>(HttpContent{"text/html", std::string(page_bytes, 'x'), "\"one\""})),
        server_(
            {}, [this](std::string_view path) { return path == "/" ? content_ : nullptr; }, limits),
        thread_([this] { server_.run(stop_.fd(), [] { return true; }); }) {}
  ~Served() {
    stop_.poke();
    thread_.join();
  }
  int port() const { return server_.port(); }

 private:
  std::shared_ptr<const HttpContent> content_;
  comm::Wakeup stop_;
  HttpServer server_;
  std::thread thread_;
};

class Client {
 public:
  explicit Client(const Served& served)
      : socket_(comm::connect_to("127.0.0.1", served.port(), Clock::now() + std::chrono::seconds(10))) {
    const int flags = ::fcntl(socket_.get(), F_GETFL);
    ::fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
  }
  // Returns false if the server has closed the connection.
  bool send(std::string_view bytes) const {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // Returns everything that the server sends until it closes the connection.
  std::string receive() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(socket_.get(), buffer, sizeof buffer, 0)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }

 private:
  Descriptor socket_;
};

std::string ask(const Served& served, std::string_view request) {
  const Client client(served);
  client.send(request);
  return client.receive();
}

std::string status_of(const std::string& answer) { return answer.substr(0, answer.find('\r')); }
std::string body_of(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

TEST(HttpServer, ServesAPage) {
  const Served served;
  const std::string page = ask(served, kGet);
  EXPECT_EQ(status_of(page), "HTTP/1.1 200 OK");
  EXPECT_EQ(body_of(page), std::string(1000, 'x'));
  for (const char* field : {"\r\nContent-Length: 1000\r\n", "\r\nContent-Type: text/html\r\n", "\r\nETag: \"one\"\r\n",
                            "\r\nX-Content-Type-Options: nosniff\r\n", "\r\nContent-Security-Policy: default-src 'none';",
                            "\r\nConnection: close\r\n"}) {
    EXPECT_NE(page.find(field), std::string::npos) << field;
  }
  EXPECT_EQ(page.find("Access-Control"), std::string::npos) << "other sites may not read it";
}

TEST(HttpServer, HeadHasThePagesHeadAlone) {
  const Served served;
  const std::string head = ask(served, "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"), page = ask(served, kGet);
  EXPECT_EQ(head, page.substr(0, page.find("\r\n\r\n") + 4));
  EXPECT_EQ(body_of(ask(served, "HEAD /none HTTP/1.1\r\nHost: localhost\r\n\r\n")), "");
}

TEST(HttpServer, APageThatIsKnownIsNotSentAgain) {
  const Served served;
  const std::string answer = ask(served, "GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \"one\"\r\n\r\n");
  EXPECT_EQ(status_of(answer), "HTTP/1.1 304 Not Modified");
  EXPECT_EQ(body_of(answer), "");
  EXPECT_EQ(status_of(ask(served, "GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \"two\"\r\n\r\n")), "HTTP/1.1 200 OK");
}

TEST(HttpServer, NoPathLeadsToAFile) {
  const Served served;
  for (const char* path :
       {"/report.html", "/../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/./", "/run.json", "/%00", "/etc/passwd"}) {
    const std::string answer = ask(served, std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(status_of(answer), "HTTP/1.1 404 Not Found") << path;
    EXPECT_EQ(body_of(answer), "404 Not Found\n") << path;
  }
}

TEST(HttpServer, RefusesWithTheReason) {
  const Served served;
  EXPECT_EQ(status_of(ask(served, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")), "HTTP/1.1 403 Forbidden");
  const std::string post = ask(served, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_EQ(status_of(post), "HTTP/1.1 405 Method Not Allowed");
  EXPECT_NE(post.find("\r\nAllow: GET, HEAD\r\n"), std::string::npos);
  EXPECT_EQ(status_of(ask(served, "\x16\x03\x01\x02 tls\n\n")), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(status_of(ask(served, std::string(3, '\0') + "\n\n")), "HTTP/1.1 400 Bad Request");
}

TEST(HttpServer, AHeadWithoutEndIsCut) {
  const Served served;
  const std::string many = "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(100'000, 'a');
  EXPECT_EQ(status_of(ask(served, many)), "HTTP/1.1 431 Request Header Fields Too Large");
  EXPECT_EQ(status_of(ask(served, "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(9000, 'a') + "\r\n\r\n")),
            "HTTP/1.1 431 Request Header Fields Too Large");
  EXPECT_EQ(status_of(ask(served, kGet)), "HTTP/1.1 200 OK");
}

// A client that sends one byte at a time keeps its connection only for the time that a request may take.
TEST(HttpServer, ASlowClientIsSentAway) {
  const Served served(with_request_s(0.2));
  const Client slow(served);
  bool open = true;
  for (int byte = 0; byte < 100'000 && open; ++byte) {
    open = slow.send("a");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(open);
  const Client silent(served);
  EXPECT_EQ(status_of(silent.receive()), "HTTP/1.1 408 Request Timeout");
}

// If there are more clients than allowed, the server closes the oldest connections and answers the newest.
TEST(HttpServer, ManyIdleClientsKeepNobodyOut) {
  HttpServer::Limits limits;
  limits.connections = 4;
  const Served served(limits);
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(std::make_unique<Client>(served));
  EXPECT_EQ(status_of(ask(served, kGet)), "HTTP/1.1 200 OK");
  EXPECT_EQ(idle.front()->receive(), "");
}

// Clients that do not read their answers must not delay the others. A client that reads late must get its whole answer.
TEST(HttpServer, ALargePageReachesALateReader) {
  constexpr std::size_t kLarge = 16 << 20;
  const Served served({}, kLarge);
  const Client late(served), gone(served);
  late.send(kGet);
  gone.send(kGet);
  EXPECT_EQ(body_of(ask(served, kGet)).size(), kLarge);
  EXPECT_EQ(body_of(late.receive()).size(), kLarge);
}

TEST(HttpServer, APortThatIsTakenIsRefusedWithAWayOut) {
  const Served served;
  try {
    const HttpServer second({.port = served.port(), .hint = "choose another port with --port (0 takes one that is free)"}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_EQ(error.what(), concat("the web server cannot listen at 127.0.0.1 port ", served.port(),
                                   ": Address already in use; choose another port with --port (0 takes one that is free)"));
  }
}

}  // namespace
}  // namespace octet::app

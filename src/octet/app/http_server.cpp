#include "octet/app/http_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "octet/app/http_request.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

constexpr double kGoodbyeSeconds = 2;  // how long to read what a client still sends after its answer
constexpr double kAcceptAgainS = 1;    // after this process ran out of file descriptors

const char* words_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "HTTP Version Not Supported";
  }
}

// The page may load nothing from elsewhere, and no other site may read or frame it.
constexpr const char* kSafety =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri "
    "'none'; "
    "form-action 'none'; frame-ancestors 'none'\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Cache-Control: no-cache\r\n"
    "Connection: close\r\n";

std::string head_of(int status, const std::string& type, std::size_t length, const std::string& etag) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n{}", status, words_of(status), kSafety);
  if (status == 405) head += "Allow: GET, HEAD\r\n";
  if (!etag.empty()) head += fmt::format("ETag: {}\r\n", etag);
  if (status != 304) head += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", type, length);
  return head + "\r\n";
}

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

// A connection carries one request, which is read and answered. Then the connection is emptied and closed. Closing it with
// unread bytes would reset it, and the client might lose the answer.
struct HttpServer::Client {
  enum class State { reading, writing, leaving, gone } state = State::reading;
  Descriptor socket;
  Clock::time_point deadline;
  std::string received{}, head{};
  std::shared_ptr<const HttpContent> content{};  // null: `head` is all
  std::size_t sent = 0;
};

HttpServer::HttpServer(const Place& place, Handler handler) : HttpServer(place, std::move(handler), Limits{}) {}

HttpServer::HttpServer(const Place& place, Handler handler, Limits limits)
    : any_host_(!comm::is_loopback(place.address)), handler_(std::move(handler)), limits_(limits) {
  try {
    listener_ = comm::listen_at(place.address, place.port, "the web server");
  } catch (const Error& error) {
    fail(ExitCode::config, error.what(), place.hint.empty() ? "" : "; ", place.hint);
  }
}

HttpServer::~HttpServer() = default;

void HttpServer::run(int fd, const std::function<bool()>& stop) {
  std::vector<pollfd> polled;
  for (;;) {
    const bool accepts = Clock::now() >= accept_again_;
    polled.assign({{fd, POLLIN, 0}, {accepts ? listener_.get() : -1, POLLIN, 0}});
    auto next = accepts ? Clock::time_point::max() : accept_again_;
    for (const Client& client : clients_) {
      polled.push_back({client.socket.get(), static_cast<short>(client.state == Client::State::writing ? POLLOUT : POLLIN), 0});
      next = std::min(next, client.deadline);
    }
    ::poll(polled.data(), polled.size(), next == Clock::time_point::max() ? -1 : comm::milliseconds_until(next));
    if (polled[0].revents != 0 && stop()) return;
    std::size_t i = 2;
    for (Client& client : clients_) {
      if (polled[i++].revents != 0) serve(client);
    }
    const auto now = Clock::now();
    for (Client& client : clients_) {
      if (client.state == Client::State::gone || now < client.deadline) continue;
      if (client.state == Client::State::reading) {
        client.head = head_of(408, "text/plain", 0, "");
        ::send(client.socket.get(), client.head.data(), client.head.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      client.state = Client::State::gone;
    }
    clients_.remove_if([](const Client& client) { return client.state == Client::State::gone; });
    if (polled[1].revents != 0) accept_new();
  }
}

void HttpServer::accept_new() {
  Descriptor socket = comm::accept_from(listener_);
  if (!socket.open()) {
    // Out of file descriptors. poll() would report the listener again at once.
    if (!would_wait() && errno != ECONNABORTED) accept_again_ = Clock::now() + comm::seconds(kAcceptAgainS);
    return;
  }
  if (clients_.size() >= limits_.connections) clients_.pop_front();
  clients_.push_back({.socket = std::move(socket), .deadline = Clock::now() + comm::seconds(limits_.request_s)});
}

void HttpServer::serve(Client& client) {
  if (client.state == Client::State::reading) read(client);
  if (client.state == Client::State::writing) write(client);
  if (client.state == Client::State::leaving) read(client);
}

void HttpServer::read(Client& client) {
  char buffer[4096];
  const ssize_t n = ::recv(client.socket.get(), buffer, sizeof buffer, 0);
  if (n < 0 && would_wait()) return;
  if (n <= 0) {
    client.state = Client::State::gone;
    return;
  }
  if (client.state == Client::State::leaving) return;
  client.received.append(buffer, static_cast<std::size_t>(n));
  if (http_head_length(client.received) || client.received.size() > limits_.head_bytes) answer(client);
}

void HttpServer::answer(Client& client) {
  const std::optional<std::size_t> length = http_head_length(client.received);
  HttpRequest request{.refused = 431, .path = {}, .if_none_match = {}};
  if (length && *length <= limits_.head_bytes)
    request = parse_http_request(std::string_view(client.received).substr(0, *length), any_host_);
  client.received.clear();
  int status = request.refused;
  if (status == 0) {
    client.content = handler_(request.path);
    const bool known = client.content && !request.if_none_match.empty() && request.if_none_match == client.content->etag;
    status = !client.content ? 404 : known ? 304 : client.content->status;
  }
  if (client.content && status != 304) {
    client.head = head_of(status, client.content->type, client.content->body.size(), client.content->etag);
  } else if (status == 304) {
    client.head = head_of(status, "", 0, client.content->etag);
  } else {
    const std::string body = fmt::format("{} {}\n", status, words_of(status));
    client.head = head_of(status, "text/plain", body.size(), "") + (request.head ? "" : body);
  }
  if (status == 304 || request.head) client.content = nullptr;
  client.state = Client::State::writing;
  client.deadline = Clock::now() + comm::seconds(limits_.response_s);
}

void HttpServer::write(Client& client) {
  const std::string_view body = client.content ? client.content->body : std::string_view();
  while (client.sent < client.head.size() + body.size()) {
    const bool in_head = client.sent < client.head.size();
    const std::string_view rest =
        in_head ? std::string_view(client.head).substr(client.sent) : body.substr(client.sent - client.head.size());
    const ssize_t n = ::send(client.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0) {
      if (!would_wait()) client.state = Client::State::gone;
      return;
    }
    client.sent += static_cast<std::size_t>(n);
  }
  ::shutdown(client.socket.get(), SHUT_WR);
  client.state = Client::State::leaving;
  client.deadline = Clock::now() + comm::seconds(kGoodbyeSeconds);
}

}  // namespace octet::app

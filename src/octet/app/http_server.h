// A web server that answers GET and HEAD from memory. No request names a file. It uses one thread and bounds the memory,
// connections and time of its clients. On a loopback address, which serves one person's browser, the Host of a request must be
// a loopback name, too.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "octet/base/clock.h"
#include "octet/comm/socket.h"

namespace octet::app {

struct HttpContent {
  std::string type;  // "text/html; charset=utf-8"
  std::string body;
  std::string etag;  // a quoted word that changes with the body; "": always sent anew
  int status = 200;  // or 503
};

class HttpServer {
 public:
  struct Limits {
    std::size_t head_bytes = 8192;
    std::size_t connections = 32;  // one more ends the oldest
    double request_s = 10;         // from a connection's begin to its request's end
    double response_s = 60;
  };
  // Returns the content at a path; null: there is none (404).
  using Handler = std::function<std::shared_ptr<const HttpContent>(std::string_view path)>;

  struct Place {
    std::string address = "127.0.0.1";
    int port = 0;      // 0: one that is free
    std::string hint;  // what to do if it is taken: "choose another port with --port"
  };
  // Throws Error{config} if it cannot listen there.
  HttpServer(const Place& place, Handler handler);
  HttpServer(const Place& place, Handler handler, Limits limits);
  ~HttpServer();
  int port() const { return comm::port_of(listener_); }

  // Serves requests. Whenever `fd` can be read, calls `stop`, and returns if it returns true.
  void run(int fd, const std::function<bool()>& stop);

 private:
  struct Client;
  void accept_new();
  void serve(Client& client);
  void read(Client& client);
  void answer(Client& client);
  void write(Client& client);

  bool any_host_;
  Descriptor listener_;
  Handler handler_;
  Limits limits_;
  std::list<Client> clients_;  // the oldest first
  Clock::time_point accept_again_{};
};

}  // namespace octet::app

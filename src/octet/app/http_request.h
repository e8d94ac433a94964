// The head of an HTTP/1.x request (RFC 9112), read for a server that answers GET and HEAD to browsers of its own machine.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octet::app {

// Returns the length of the head with which `bytes` begins, including its empty line; nothing if the head is incomplete.
std::optional<std::size_t> http_head_length(std::string_view bytes);

struct HttpRequest {
  int refused = 0;    // the status to refuse it with; 0: the fields below are good
  bool head = false;  // HEAD, else GET
  std::string path;   // "/", "/watch.js": begins with a slash, without the query
  std::string if_none_match;
};

// Refuses malformed requests (400), methods other than GET and HEAD (405), versions other than 1.0 and 1.1 (505), and a Host
// that is not a loopback name of this machine (403), because a page of another site may have had its own name resolve to this
// machine (DNS rebinding). `any_host` permits every Host.
HttpRequest parse_http_request(std::string_view head, bool any_host = false);

}  // namespace octet::app

// The head of an HTTP/1.x request (RFC 9112), read for a server that answers GET and HEAD to browsers of its own machine.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octet::app {

// The length of the head that `bytes` begins with, its empty line included; nothing when more must come.
std::optional<std::size_t> http_head_length(std::string_view bytes);

struct HttpRequest {
  int refused = 0;    // the status to refuse it with; 0: the fields below are good
  bool head = false;  // HEAD, else GET
  std::string path;   // "/", "/watch.js": begins with a slash, without the query
  std::string if_none_match;
};

// Refuses what is malformed (400), methods other than GET and HEAD (405), versions other than 1.0 and 1.1 (505), and a Host that
// is not a name of this machine's loopback (403): a page of another site may have had its own name point here (DNS rebinding).
// `any_host` permits every Host.
HttpRequest parse_http_request(std::string_view head, bool any_host = false);

}  // namespace octet::app

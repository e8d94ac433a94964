#include "octet/app/http_request.h"

#include <algorithm>
#include <array>

namespace octet::app {
namespace {

bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || kOthers.find(c) != kOthers.npos;
  });
}

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; });
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Any port is accepted, because a tunnel to this machine has its own port.
bool is_loopback_host(std::string_view host) {
  const std::string name = lower(host);
  for (const std::string_view ours : std::array<std::string_view, 3>{"127.0.0.1", "localhost", "[::1]"}) {
    if (!name.starts_with(ours)) continue;
    const std::string_view port = std::string_view(name).substr(ours.size());
    if (port.empty()) return true;
    return port[0] == ':' && port.size() <= 6 && port.find_first_not_of("0123456789", 1) == port.npos;
  }
  return false;
}

// Takes the first line, without its end.
std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

HttpRequest refuse(int status) { return {.refused = status, .path = {}, .if_none_match = {}}; }

}  // namespace

std::optional<std::size_t> http_head_length(std::string_view bytes) {
  std::size_t line = 0;
  for (std::size_t end; (end = bytes.find('\n', line)) != bytes.npos; line = end + 1) {
    const std::string_view text = bytes.substr(line, end - line);
    if (line > 0 && (text.empty() || text == "\r")) return end + 1;
  }
  return std::nullopt;
}

HttpRequest parse_http_request(std::string_view head, bool any_host) {
  const std::string_view first = take_line(head);
  const std::size_t method_end = first.find(' '), target_end = first.rfind(' ');
  if (method_end == first.npos || target_end == method_end) return refuse(400);
  const std::string_view method = first.substr(0, method_end), version = first.substr(target_end + 1);
  std::string_view target = first.substr(method_end + 1, target_end - method_end - 1);
  if (!is_token(method) || !is_visible(target) || !target.starts_with('/')) return refuse(400);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return refuse(version.starts_with("HTTP/") ? 505 : 400);

  HttpRequest request{.head = method == "HEAD", .path = std::string(target.substr(0, target.find('?'))), .if_none_match = {}};
  std::string host;
  int hosts = 0;
  while (!head.empty()) {
    const std::string_view line = take_line(head);
    if (line.empty()) break;
    const std::size_t colon = line.find(':');
    if (colon == line.npos || !is_token(line.substr(0, colon)) || has_control(line)) return refuse(400);
    const std::string name = lower(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (name == "host") {
      host = value;
      ++hosts;
    } else if (name == "if-none-match") {
      request.if_none_match = value;
    }
  }
  if (hosts != 1) return refuse(400);
  if (!any_host && !is_loopback_host(host)) return refuse(403);
  if (method != "GET" && method != "HEAD") return refuse(405);
  return request;
}

}  // namespace octet::app

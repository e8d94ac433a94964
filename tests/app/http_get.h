// Asks a server of this process or another one on this machine for a page.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

#include "octet/base/require.h"
#include "octet/comm/socket.h"

namespace octet::testing {

// Returns what the server answers: status line, head and body.
inline std::string http_get(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  const Descriptor socket = comm::connect_to("127.0.0.1", port, Clock::now() + comm::seconds(10));
  ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
  const std::string request = concat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n");
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
  return answer;
}

}  // namespace octet::testing

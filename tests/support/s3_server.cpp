#include "support/s3_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "octet/base/require.h"
#include "support/folder.h"
#include "support/paths.h"

namespace octet::testing {

void use_s3(const std::string& endpoint) {
  ::setenv("AWS_ENDPOINT_URL", endpoint.c_str(), 1);
  ::setenv("AWS_REGION", "us-east-1", 1);
  ::setenv("AWS_ACCESS_KEY_ID", "AKIAOCTETTEST", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "octet-secret-of-the-test", 1);
  ::setenv("AWS_EC2_METADATA_DISABLED", "true", 1);  // there is none, and the SDK would wait for it
  ::setenv("OCTET_S3", s3_plugin().c_str(), 1);
}

S3Server::S3Server(const std::string& buckets) {
  const std::string command = concat("exec '", python_path(), "' '", source_dir(), "/tests/support/s3_server.py' ", buckets);
  process_ = ::popen(command.c_str(), "re");
  require(process_ != nullptr && std::fscanf(process_, "%d", &port_) == 1, "the S3 server of the test does not start");
  use_s3(concat("http://127.0.0.1:", port_));
}

S3Server::~S3Server() {
  if (port_ > 0) control("stop");
  if (process_ != nullptr) ::pclose(process_);
}

std::string S3Server::control(const std::string& path) const {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /_octet/" + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (::write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
    }
  }
  ::close(fd);
  const std::size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

std::vector<std::string> S3Server::requests() const {
  std::istringstream text(control("log"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

void overwrite_object(const std::string& bucket, const std::string& key, const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string command = concat("'", python_path(), "' '", source_dir(), "/tests/support/s3_put.py' ", bucket, " '", key,
                                     "' '", folder.write("bytes", bytes).string(), "'");
  require(std::system(command.c_str()) == 0, "s3_put.py has failed");
}

void S3Test::SetUp() {
  if (s3_plugin().empty()) GTEST_SKIP() << "the S3 plugin is not built (OCTET_ARROW)";
  const std::string moto = concat("'", python_path(), "' -c 'import importlib.util as u; exit(u.find_spec(\"moto\") is None)'");
  if (std::system(moto.c_str()) != 0) GTEST_SKIP() << "no moto in " << python_path();
}

}  // namespace octet::testing

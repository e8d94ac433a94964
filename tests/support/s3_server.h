// An S3 service on loopback for a test: moto, from PyPI, behind switches for faults (s3_server.py).
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace octet::testing {

class S3Server {
 public:
  // Starts the server with these buckets, and sets the environment variables with which this process and its children find it.
  explicit S3Server(const std::string& buckets = "bucket");
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  int port() const { return port_; }
  // Asks for a path below /_octet/ and returns the answer.
  std::string control(const std::string& path) const;
  // The requests since the last time, as "METHOD PATH?QUERY".
  std::vector<std::string> requests() const;

 private:
  std::FILE* process_ = nullptr;
  int port_ = 0;
};

// Puts bytes in the place of an object, which Octet itself never does.
void overwrite_object(const std::string& bucket, const std::string& key, const std::string& bytes);

// Sets the variables of an S3 service: endpoint, region, credentials, and the plugin of this build.
void use_s3(const std::string& endpoint);

// Skips the test if the plugin or moto is missing.
class S3Test : public ::testing::Test {
 protected:
  void SetUp() override;
};

}  // namespace octet::testing

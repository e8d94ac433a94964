// Helps ranks that are threads to meet at the port that rank 0 got from the system.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>

#include "octet/base/require.h"
#include "octet/comm/rendezvous.h"
#include "support/ranks.h"

namespace octet::testing {

using comm::Rendezvous;

// The port at which rank 0 listens. Other ranks wait until it is known.
class Port {
 public:
  Port() : port_(promise_.get_future().share()) {}
  Rendezvous::Options options(int rank, int size, double timeout_s = 30) {
    Rendezvous::Options options{.rank = rank, .size = size, .join_timeout_s = timeout_s, .timeout_s = timeout_s};
    if (rank == 0)
      options.listening = [this](int port) { promise_.set_value(port); };
    else
      options.port = get();
    return options;
  }
  int get() const { return port_.get(); }

 private:
  std::promise<int> promise_;
  std::shared_future<int> port_;
};

// Returns the message of the Error{peer} that `body` throws.
inline std::string peer_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::peer) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace octet::testing

namespace octet::comm {

using ::octet::testing::errors_of_ranks;
using ::octet::testing::peer_error_of;
using ::octet::testing::Port;
using ::octet::testing::run_ranks;

}  // namespace octet::comm

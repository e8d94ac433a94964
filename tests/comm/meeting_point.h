// Ranks as threads that meet where rank 0 happens to listen.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>

#include "octet/base/require.h"
#include "octet/comm/rendezvous.h"

namespace octet::testing {

using comm::Rendezvous;

// Where rank 0 listens, for those that wait to know.
class Port {
 public:
  Port() : port_(promise_.get_future().share()) {}
  Rendezvous::Options options(int rank, int size, double timeout_s = 30) {
    Rendezvous::Options options{.rank = rank, .size = size, .timeout_s = timeout_s};
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

// The sentence of an Error{peer}.
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

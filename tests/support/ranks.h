// Runs ranks as threads of one process.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "octet/comm/thread_store.h"

namespace octet::testing {

using comm::ThreadStore;

// Calls body(rank) for each rank on a thread of its own. Returns, for each rank, the message of the exception that it threw, or "".
inline std::vector<std::string> errors_of_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void run_ranks(int size, const std::function<void(int)>& body) {
  const std::vector<std::string> errors = errors_of_ranks(size, body);
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(errors[static_cast<std::size_t>(rank)], "") << "rank " << rank;
}

}  // namespace octet::testing

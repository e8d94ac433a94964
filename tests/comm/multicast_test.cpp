#include "octet/comm/multicast.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "octet/comm/thread_store.h"

namespace octet::comm {
namespace {

// Every set of answers that up to four ranks can give.
TEST(Multicast, IsUsedOnlyIfAllRanksCan) {
  for (int size = 1; size <= 4; ++size) {
    for (unsigned answers = 0; answers < 1u << size; ++answers) {
      ThreadStore store;
      std::atomic<int> yes = 0;
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < size; ++rank) {
        ranks.emplace_back([&, rank] {
          const GroupOptions options{
              .name = "multicast",
              .rank = rank,
              .size = size,
              .set = [&](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
              .get = [&](const std::string& key) { return store.get(key); }};
          yes += true_on_all(options, (answers >> rank & 1) != 0) ? 1 : 0;
        });
      }
      for (std::thread& rank : ranks) rank.join();
      EXPECT_EQ(yes.load(), answers + 1 == 1u << size ? size : 0) << size << " ranks, answers " << answers;
      EXPECT_EQ(store.keys(), 0u);
    }
  }
}

}  // namespace
}  // namespace octet::comm

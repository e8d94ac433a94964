#include "octet/plan/offload_time.h"

#include <gtest/gtest.h>

namespace octet::plan {
namespace {

using parallel::Kind;
using parallel::StreamId;
using parallel::Task;

// The computation ends at 10 and waits from 10 to 12 and from 13 to 17 for states; the cast waits for nothing.
TEST(StateCopies, CountsWhatTheComputationWaitsFor) {
  const Task fetch{.kind = Kind::fetch, .stream = StreamId::fetch}, offload{.kind = Kind::offload, .stream = StreamId::offload};
  const StateCopies copies = state_copies({{fetch, 7, 12},
                                           {Task{.kind = Kind::scales}, 9, 10},
                                           {Task{.kind = Kind::update}, 12, 13},
                                           {offload, 13, 19},
                                           {fetch, 12, 17},
                                           {Task{.kind = Kind::update}, 17, 18},
                                           {offload, 19, 23},
                                           {Task{.kind = Kind::cast}, 18, 20}});
  EXPECT_DOUBLE_EQ(copies.exposed_s, 2 + 4);
  EXPECT_DOUBLE_EQ(copies.seconds, 10);
}

TEST(StateCopies, AreNoneIfStatesStayOnTheDevice) {
  const StateCopies copies = state_copies({{Task{.kind = Kind::scales}, 0, 1}, {Task{.kind = Kind::update, .part = -1}, 3, 4}});
  EXPECT_DOUBLE_EQ(copies.exposed_s, 0);
  EXPECT_DOUBLE_EQ(copies.seconds, 0);
}

}  // namespace
}  // namespace octet::plan

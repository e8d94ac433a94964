// A group whose ranks do not all get as far as its connections.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "comm/meeting_point.h"
#include "octet/base/clock.h"
#include "octet/comm/transport.h"
#include "octet/device/device.h"
#include "support/ranks.h"

namespace octet::comm {
namespace {

using ::octet::testing::errors_of_ranks;
using ::octet::testing::run_ranks;
using ::octet::testing::ThreadStore;

GroupOptions options_over(Rendezvous& rendezvous, double timeout_s) {
  return {.name = "test",
          .rank = rendezvous.rank(),
          .size = rendezvous.size(),
          .timeout_s = timeout_s,
          .set = [&](const std::string& key, std::string_view value, int reads) { rendezvous.set(key, value, reads); },
          .get = [&](const std::string& key) { return rendezvous.get(key); },
          .blame = [&] { return rendezvous.lost_text(1); },  // Gloo may see the end of a rank before the rendezvous does
          .lost = [&] { return rendezvous.lost_text(); }};
}

// This process becomes rank 0. Rank 1 is its child, which publishes its address and then gets the signal. So rank 0 waits in Gloo
// for a peer that has ended or hangs, and leaves the thread that waits behind when it exits.
[[noreturn]] void connect_to_a_lost_rank(int signal, double silence_s) {
  int port[2];
  if (::pipe(port) != 0) std::exit(1);
  const pid_t child = ::fork();
  if (child == 0) {
    int number = 0;
    if (::read(port[0], &number, sizeof number) != sizeof number) ::_exit(1);
    Rendezvous rendezvous({.rank = 1, .size = 2, .port = number, .silence_s = silence_s});
    GroupOptions options = options_over(rendezvous, 100);
    options.get = [&](const std::string& key) -> std::string {
      if (key != "test/0") return rendezvous.get(key);  // where Gloo of rank 0 listens; rank 1 has told where it does
      rendezvous.set("published", "");
      rendezvous.get("published");  // rank 0 has all that came before
      ::raise(signal);
      return rendezvous.get(key);
    };
    const auto device = make_device(DeviceKind::cpu);
    try {
      make_group(*device, options);
    } catch (const Error&) {
    }
    ::_exit(1);
  }
  int code = 0;
  try {
    Rendezvous rendezvous({.size = 2, .silence_s = silence_s, .listening = [&](int number) {
                             if (::write(port[1], &number, sizeof number) != sizeof number) std::exit(1);
                           }});
    const auto device = make_device(DeviceKind::cpu);
    make_group(*device, options_over(rendezvous, 100));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = static_cast<int>(error.code());
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::exit(code);
}

void expect_end(int signal, double silence_s, const std::string& how) {
  const auto start = Clock::now();
  // The system may accept a connection for a rank that hangs. Then rank 0 waits for its word that it is connected, too.
  EXPECT_EXIT(connect_to_a_lost_rank(signal, silence_s), ::testing::ExitedWithCode(78),
              "^(rank 0: connecting of group test failed|\"test/connected/1\" was not set): rank 1 " + how);
  EXPECT_LT(seconds_since(start), 20 + silence_s);  // Gloo alone would wait for more than 100 s
}

TEST(Connecting, ARankThatDiesMeanwhileIsNamed) { expect_end(SIGKILL, 10, "closed its connection"); }

TEST(Connecting, ARankThatHangsMeanwhileIsNamed) { expect_end(SIGSTOP, 0.5, "has been silent for 0.5 s"); }

// Nothing is known to be lost, and one rank of three never connects.
TEST(Connecting, EndsAtTheTimeoutOfTheGroup) {
  ThreadStore store;
  const std::vector<std::string> errors = errors_of_ranks(2, [&](int r) {
    const auto device = make_device(DeviceKind::cpu);
    GroupOptions options{.name = "test",
                         .rank = r,
                         .size = 3,
                         .timeout_s = 0.4,
                         .set = [&](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
                         .get = [&](const std::string& key) { return store.get(key, 1); }};
    make_group(*device, options);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("connecting of group test failed: not all ranks have connected within 0.4 s"), std::string::npos)
        << error;
  }
}

TEST(Connecting, LeavesNothingInTheStore) {
  for (const int size : {2, 3, 5}) {
    ThreadStore store;
    run_ranks(size, [&](int r) {
      const auto device = make_device(DeviceKind::cpu);
      const auto group = make_group(
          *device, {.name = "test",
                    .rank = r,
                    .size = size,
                    .set = [&](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
                    .get = [&](const std::string& key) { return store.get(key); }});
    });
    EXPECT_EQ(store.keys(), 0u);
  }
}

TEST(Connecting, WorksOnOtherAddresses) {
  for (const char* address : {"127.0.0.5", "::1"}) {
    ThreadStore store;
    run_ranks(2, [&](int r) {
      const auto device = make_device(DeviceKind::cpu);
      const auto group = make_group(
          *device, {.name = "test",
                    .rank = r,
                    .size = 2,
                    .address = address,
                    .set = [&](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
                    .get = [&](const std::string& key) { return store.get(key); }});
      const auto stream = device->make_stream();
      group->barrier(*stream);
    });
  }
}

}  // namespace
}  // namespace octet::comm

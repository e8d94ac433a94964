// How ranks find each other, and which connections rank 0 refuses.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include "comm/meeting_point.h"
#include "octet/comm/handshake.h"
#include "octet/comm/rendezvous.h"

namespace octet::comm {
namespace {

// Connects as a program that is no rank.
Descriptor stranger(int port) { return connect_to("127.0.0.1", port, Clock::now() + seconds(10)); }

// What the server answers to a stranger that makes this claim.
std::string refusal(int port, const Claim& claim) {
  try {
    join({.host = "127.0.0.1", .port = port, .claim = claim, .timeout_s = 10});
  } catch (const Error& error) {
    return error.what();
  }
  return "welcome";
}

TEST(RendezvousJoin, RanksThatDoNotComeAreNamed) {
  Port port;
  const std::vector<std::string> errors = errors_of_ranks(3, [&](int thread) {
    const int rank = thread == 2 ? 3 : thread;
    Rendezvous rendezvous(port.options(rank, 6, rank == 0 ? 0.5 : 30));
  });
  EXPECT_EQ(errors[0], "rank 0 cannot join: ranks 2, 4 and 5 of 6 have not joined within 0.5 s");
  EXPECT_EQ(errors[1], "rank 1 cannot join: ranks 2, 4 and 5 of 6 have not joined within 0.5 s");
  EXPECT_EQ(errors[2], "rank 3 cannot join: ranks 2, 4 and 5 of 6 have not joined within 0.5 s");
}

TEST(RendezvousJoin, ARankZeroThatIsNotThereIsNamed) {
  const int port = port_of(listen_at("127.0.0.1", 0));
  EXPECT_EQ(peer_error_of([&] { Rendezvous({.rank = 1, .size = 2, .port = port, .join_timeout_s = 0.3}); }),
            concat("rank 1 cannot reach rank 0 at 127.0.0.1 port ", port, " within 0.3 s: Connection refused"));
  const std::string unknown = peer_error_of(
      [&] { Rendezvous({.rank = 1, .size = 2, .host = "no.such.host.invalid", .port = port, .join_timeout_s = 0.3}); });
  EXPECT_EQ(unknown.find("rank 1 cannot reach rank 0 at no.such.host.invalid"), 0u) << unknown;
}

TEST(RendezvousJoin, AWaitingRankIsNotConnectedToItself) {
  // Linux gives ports of one parity to sockets that connect and ports of the other parity to sockets that bind, in turn. The port
  // tried here belongs to the former. After this many tries, a socket has been given this port as its own about twice.
  const int port = port_of(listen_at("127.0.0.1", 0)) ^ 1;
  for (int i = 0; i < 30000; ++i) {
    ASSERT_NE(peer_error_of([&] { connect_to("127.0.0.1", port, Clock::now()); }), "no error") << "try " << i;
  }
}

TEST(RendezvousJoin, RankZeroMayComeLast) {
  const int number = port_of(listen_at("127.0.0.1", 0));
  run_ranks(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Rendezvous rendezvous({.rank = rank, .size = 2, .port = number, .join_timeout_s = 30});
    EXPECT_EQ(rendezvous.port(), number);
    rendezvous.barrier("end");
  });
}

TEST(RendezvousJoin, APortThatIsTakenIsNamed) {
  const Descriptor taken = listen_at("127.0.0.1", 0);
  EXPECT_EQ(peer_error_of([&] { Rendezvous({.port = port_of(taken)}); }),
            concat("rank 0 cannot listen at 127.0.0.1 port ", port_of(taken), ": Address already in use"));
}

TEST(RendezvousJoin, ARankOfAnotherRunIsRefused) {
  Port port;
  std::promise<void> complete, tried;
  const auto after = tried.get_future().share();
  run_ranks(3, [&](int thread) {
    if (thread < 2) {
      Rendezvous rendezvous(port.options(thread, 2));
      if (thread == 0) complete.set_value();
      after.wait();
      // The ranks of this run do not notice the refused ones.
      rendezvous.barrier("end");
      EXPECT_EQ(rendezvous.lost_text(), "");
    } else {
      const int number = port.get();
      EXPECT_EQ(peer_error_of([&] { Rendezvous({.rank = 2, .size = 3, .port = number}); }),
                "rank 2 cannot join: rank 2 was started with 3 ranks, rank 0 with 2");
      complete.get_future().wait();
      EXPECT_EQ(peer_error_of([&] { Rendezvous({.rank = 1, .size = 2, .port = number}); }),
                "rank 1 cannot join: rank 1 was started twice");
      EXPECT_EQ(refusal(number, {2, 2, ""}), "rank 2 cannot join: there is no rank 2 of 2");
      const std::uint64_t most = ~std::uint64_t{0};
      EXPECT_EQ(refusal(number, {most, 2, ""}), concat("rank ", most, " cannot join: there is no rank ", most, " of 2"));
      EXPECT_EQ(refusal(number, {1, 2, "0.1.0 (commit b)"}),
                "rank 1 cannot join: rank 1 is octet 0.1.0 (commit b), rank 0 is octet ");
      tried.set_value();
    }
  });
}

TEST(RendezvousJoin, TwoRanksOfOneNumber) {
  Port port;
  const std::vector<std::string> errors = errors_of_ranks(
      3, [&](int thread) { Rendezvous rendezvous(port.options(thread == 0 ? 0 : 1, 3, thread == 0 ? 0.5 : 30)); });
  const bool first = errors[1] == "rank 1 cannot join: rank 1 was started twice";
  EXPECT_EQ(errors[first ? 1 : 2], "rank 1 cannot join: rank 1 was started twice");
  EXPECT_EQ(errors[first ? 2 : 1], "rank 1 cannot join: rank 2 of 3 has not joined within 0.5 s; rank 1 was started twice");
  EXPECT_EQ(errors[0], "rank 0 cannot join: rank 2 of 3 has not joined within 0.5 s; rank 1 was started twice");
}

TEST(RendezvousJoin, StrangersAreDroppedAndHarmNobody) {
  Port port;
  std::promise<void> tried;
  const auto after = tried.get_future().share();
  run_ranks(3, [&](int thread) {
    if (thread < 2) {
      Rendezvous rendezvous(port.options(thread, 2));
      after.wait();
      rendezvous.agree("health", "good");
      return;
    }
    const std::string greeting = "OctetRv2", huge("\xff\xff\xff\xff", 4);
    const std::string pieces[] = {"GET / HTTP/1.1\r\n\r\n",
                                  std::string(1 << 20, 'x'),
                                  std::string(100, '\0'),
                                  greeting,
                                  greeting + huge,
                                  greeting + std::string(4, '\0'),
                                  greeting + std::string("\x11\0\0\0", 4) + std::string(17, '\xee'),
                                  "OctetRv1",
                                  ""};
    std::vector<Descriptor> kept;
    for (int i = 0; i < 90; ++i) {  // more than rank 0 accepts at a time
      Descriptor socket = stranger(port.get());
      const std::string& piece = pieces[static_cast<std::size_t>(i) % std::size(pieces)];
      [[maybe_unused]] const auto sent = ::send(socket.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
      if (i % 2 == 0) kept.push_back(std::move(socket));
    }
    kept.clear();
    Connection bold(stranger(port.get()));
    bold.send({Message::set, 1, 0, "key", "value"});
    EXPECT_TRUE(bold.flush());
    pollfd polled{bold.fd(), POLLIN, 0};
    while (bold.receive() && ::poll(&polled, 1, 10000) == 1) continue;
    EXPECT_FALSE(bold.receive()) << "a stranger was served";
    tried.set_value();
  });
}

TEST(RendezvousJoin, AnotherServiceIsNotTakenForRankZero) {
  const Descriptor service = listen_at("127.0.0.1", 0);
  std::thread answering([&] {
    pollfd polled{service.get(), POLLIN, 0};
    ::poll(&polled, 1, 10000);
    const Descriptor client = accept_from(service);
    ::send(client.get(), "220 mail.example ESMTP\r\n", 24, MSG_NOSIGNAL);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  EXPECT_EQ(peer_error_of([&] { Rendezvous({.rank = 1, .size = 2, .port = port_of(service), .join_timeout_s = 10}); }),
            "rank 1 cannot join: rank 0 does not use the rendezvous protocol of this version of Octet");
  answering.join();
}

TEST(RendezvousJoin, NamesAndAddressesOfBothKinds) {
  for (const char* host : {"localhost", "::1", "127.0.0.2"}) {
    if (std::string(host) == "::1" && !Descriptor(::socket(AF_INET6, SOCK_STREAM, 0)).open()) continue;
    Port port;
    run_ranks(2, [&](int rank) {
      Rendezvous::Options options = port.options(rank, 2);
      options.host = host;
      Rendezvous rendezvous(options);
      rendezvous.barrier("end");
    });
  }
}

}  // namespace
}  // namespace octet::comm

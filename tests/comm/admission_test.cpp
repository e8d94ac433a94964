// Rank 0 turns away processes that do not know the token, and limits what strangers and ranks can make it store or send.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "comm/meeting_point.h"
#include "octet/comm/handshake.h"
#include "octet/comm/key_store.h"
#include "octet/comm/rendezvous.h"
#include "octet/comm/rendezvous_server.h"

namespace {

constexpr const char* kTwoAddresses = "two.addresses";

}  // namespace

// Gives the name above a loopback address and then another one, as Debian's /etc/hosts may give to a machine's own name.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto system = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (!name || std::string_view(name) != kTwoAddresses) return system(name, service, hints, found);
  const int error = system("127.0.0.1", service, hints, found);
  return error != 0 ? error : system("0.0.0.0", service, hints, &(*found)->ai_next);
}

namespace octet::comm {
namespace {

Descriptor knock(int port) { return connect_to("127.0.0.1", port, Clock::now() + seconds(10)); }

// Two ranks that share a token meet, and stay together while `strange` happens.
void with_strangers(const std::function<void(int port, const Token& token)>& strange, double handshake_s = 5) {
  Port port;
  const Token token = Token::random();
  std::promise<void> done;
  const auto after = done.get_future().share();
  run_ranks(3, [&](int thread) {
    if (thread == 2) {
      strange(port.get(), token);
      return done.set_value();
    }
    Rendezvous::Options options = port.options(thread, 2);
    options.token = token;
    options.handshake_s = handshake_s;
    Rendezvous rendezvous(options);
    after.wait();
    rendezvous.barrier("end");
    EXPECT_EQ(rendezvous.lost_text(), "");
  });
}

std::string rank_1_is_told(int port, const Token& token) {
  return peer_error_of([&] { Rendezvous({.rank = 1, .size = 2, .port = port, .token = token, .join_timeout_s = 5}); });
}

// The next message, or nothing once the other end has closed.
std::optional<Frame> next_frame(Connection& connection) {
  const auto deadline = Clock::now() + seconds(10);
  pollfd polled{connection.fd(), POLLIN, 0};
  while (Clock::now() < deadline) {
    const bool alive = connection.flush() && connection.receive();
    auto frame = connection.next();
    if (frame && frame->kind == Message::ping) continue;
    if (frame) return frame;
    if (!alive) return std::nullopt;
    ::poll(&polled, 1, 100);
  }
  return Frame{.kind = Message::failed, .value = "nothing came"};
}

// Whether the other end closes the socket within the time, and does not say anything else first than its challenge.
bool closed_within(const Descriptor& socket, double time_s) {
  const auto deadline = Clock::now() + seconds(time_s);
  pollfd polled{socket.get(), POLLIN, 0};
  char bytes[1024];
  while (::poll(&polled, 1, milliseconds_until(deadline)) == 1) {
    const ssize_t n = ::recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

TEST(Admission, WhoHasNoTokenOrAnotherIsRefused) {
  with_strangers([](int port, const Token&) {
    const std::string told =
        "rank 1 cannot join: its token is not rank 0's; all ranks need the same OCTET_TOKEN_FILE or OCTET_TOKEN";
    EXPECT_EQ(rank_1_is_told(port, Token()), told);
    EXPECT_EQ(rank_1_is_told(port, Token::random()), told);
  });
  Port port;
  const std::vector<std::string> errors = errors_of_ranks(2, [&](int rank) {
    Rendezvous::Options options = port.options(rank, 2, rank == 0 ? 0.5 : 30);
    if (rank == 1) options.token = Token::random();
    Rendezvous rendezvous(options);
  });
  EXPECT_EQ(
      errors[0],
      "rank 0 cannot join: rank 1 of 2 has not joined within 0.5 s; a connection from 127.0.0.1 had another token, or none");
  EXPECT_EQ(errors[1], "rank 1 cannot join: its token is not rank 0's; rank 0 has none");
}

TEST(Admission, AStrangerCannotStoreOrEndAnything) {
  with_strangers([](int port, const Token&) {
    for (const Message kind : {Message::set, Message::get, Message::meet, Message::failure, Message::goodbye, Message::ready}) {
      Connection connection(knock(port));
      connection.send({kind, 1, 0, "key", "value"});
      EXPECT_EQ(next_frame(connection)->kind, Message::challenge);
      EXPECT_FALSE(next_frame(connection).has_value()) << static_cast<int>(kind);
    }
  });
}

// A recorded handshake of a rank is worth nothing: each connection has a challenge of its own.
TEST(Admission, AReplayedHandshakeIsRefused) {
  Port port;
  const Token token = Token::random();
  std::promise<void> done;
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      Rendezvous::Options options = port.options(0, 2);
      options.token = token;
      Rendezvous rendezvous(options);
      done.get_future().wait();
      return;
    }
    const Claim claim{1, 2, ""};
    const auto hello_on = [&](Connection& connection) {
      return Challenge(next_frame(connection)->value).hello(token, claim, random_bytes(kNonceBytes), 30000);
    };
    Connection recorded(knock(port.get()));
    const Frame hello = hello_on(recorded);  // which the rank is about to send
    Connection replayed(knock(port.get()));
    EXPECT_EQ(next_frame(replayed)->kind, Message::challenge);
    replayed.send(hello);
    EXPECT_EQ(next_frame(replayed)->kind, Message::refused);
    EXPECT_FALSE(next_frame(replayed).has_value());
    recorded.send(hello);
    EXPECT_EQ(next_frame(recorded)->kind, Message::welcome);
    EXPECT_EQ(next_frame(recorded)->kind, Message::ready);  // rank 0 has joined as well, and no longer minds if this rank leaves
    done.set_value();
  });
}

// A program that took rank 0's port learns nothing and is not obeyed.
TEST(Admission, AFalseRankZeroIsNotBelieved) {
  const Token token = Token::random();
  for (const Message answer : {Message::welcome, Message::ready, Message::value}) {
    const Descriptor listener = listen_at("127.0.0.1", 0);
    std::thread service([&] {
      pollfd polled{listener.get(), POLLIN, 0};
      ::poll(&polled, 1, 10000);
      Connection connection(accept_from(listener));
      const Challenge challenge;
      connection.send(challenge.frame());
      const auto hello = next_frame(connection);
      EXPECT_EQ((hello->key + hello->value).find(token.hex()), std::string::npos);
      connection.send({answer, 0, 0, {}, challenge.welcome(Token::random(), *hello).value});
      connection.flush();
      closed_within(connection.socket(), 10);
    });
    EXPECT_EQ(rank_1_is_told(port_of(listener), token),
              "rank 1 cannot join: the program that listens there as rank 0 has another token");
    service.join();
  }
}

TEST(Admission, AFloodOfConnectionsHoldsFewAndRanksComeThrough) {
  Port port;
  run_ranks(2, [&](int rank) {
    Rendezvous::Options options = port.options(rank, 2);
    options.handshake_s = 0.5;
    if (rank == 0) {
      Rendezvous rendezvous(options);
      return rendezvous.barrier("end");
    }
    std::vector<Descriptor> idle;
    for (int i = 0; i < 300; ++i) idle.push_back(knock(port.get()));
    // The last of them has been handled when it has got its challenge or is closed.
    pollfd polled{idle.back().get(), POLLIN, 0};
    EXPECT_EQ(::poll(&polled, 1, 10000), 1);
    std::size_t held = 0;
    for (const Descriptor& socket : idle) held += !closed_within(socket, 0);
    EXPECT_LE(held, kStrangersPerAddress);
    Rendezvous rendezvous(options);
    for (const Descriptor& socket : idle) EXPECT_TRUE(closed_within(socket, 5));
    rendezvous.barrier("end");
  });
}

// All ranks of a machine come from one address, at once.
TEST(Admission, ManyRanksOfOneAddressJoin) {
  Port port;
  run_ranks(60, [&](int rank) {
    Rendezvous rendezvous(port.options(rank, 60));
    rendezvous.barrier("end");
  });
}

TEST(Admission, AFloodOfBytesIsClosedAfterFourKilobytes) {
  with_strangers([](int port, const Token&) {
    for (const bool greets : {true, false}) {
      const Descriptor socket = knock(port);
      // A hello of 4 KiB, of which one byte is missing, is still waited for.
      std::string bytes = greets ? "OctetRv2" + std::string("\xf4\x0f\0\0", 4) : std::string(1 << 20, 'x');
      if (greets) bytes += std::string(kMaxHello - bytes.size() - 1, '\0');
      [[maybe_unused]] auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      EXPECT_EQ(closed_within(socket, greets ? 0.2 : 5), !greets);
      sent = ::send(socket.get(), "xx", 2, MSG_NOSIGNAL);
      EXPECT_TRUE(closed_within(socket, 3));
    }
  });
}

TEST(Admission, ASlowSenderIsClosedInTime) {
  with_strangers(
      [](int port, const Token&) {
        const Descriptor socket = knock(port);
        const auto start = Clock::now();
        const std::string greeting = "OctetRv2" + std::string("\x64\0\0\0", 4) + std::string(100, '\0');
        std::size_t sent = 0;
        while (sent < greeting.size() && !closed_within(socket, 0.02)) {
          [[maybe_unused]] const auto n = ::send(socket.get(), &greeting[sent++], 1, MSG_NOSIGNAL);
        }
        EXPECT_LT(sent, greeting.size()) << "its time begins anew with each byte";
        EXPECT_GE(seconds_since(start), 0.2);
      },
      0.3);
}

// The others know which member it was and why. `misbehave` is rank 1's connection after its handshake.
void expect_member_dropped(const std::function<void(Connection&)>& misbehave, const std::string& how) {
  Port port;
  const Token token = Token::random();
  std::promise<void> heard;
  run_ranks(3, [&](int rank) {
    if (rank != 1) {
      Rendezvous::Options options = port.options(rank, 3);
      options.token = token;
      Rendezvous rendezvous(options);
      EXPECT_EQ(peer_error_of([&] { rendezvous.get("never"); }), "\"never\" was not set: rank 1 " + how);
      EXPECT_EQ(rendezvous.lost_text(), "rank 1 " + how);
      if (rank == 0) heard.set_value();
      return;
    }
    Connection connection = join({.host = "127.0.0.1", .port = port.get(), .token = token, .claim = {1, 3, ""}, .timeout_s = 30});
    EXPECT_EQ(next_frame(connection)->kind, Message::ready);
    misbehave(connection);
    while (connection.flush() && connection.has_output()) ::usleep(100);
    heard.get_future().wait();  // without reading anything
  });
}

TEST(Admission, AMemberThatSetsTooManyKeysIsDropped) {
  expect_member_dropped(
      [](Connection& connection) {
        for (int i = 0; i <= 10'000; ++i) connection.send({Message::set, 0, 0, concat(i), ""});
      },
      "has set more than 10000 keys");
}

TEST(Admission, AMemberThatAsksTooMuchAtOnceIsDropped) {
  expect_member_dropped(
      [](Connection& connection) {
        for (std::uint64_t i = 0; i <= 1024; ++i) connection.send({Message::get, i, 60000, "never set", ""});
      },
      "has more than 1024 open requests");
}

TEST(Admission, AMemberThatDoesNotReadIsDropped) {
  expect_member_dropped(
      [](Connection& connection) {
        connection.send({Message::set, 0, 0, "large", std::string(std::size_t{4} << 20, 'x')});
        for (std::uint64_t i = 0; i < 60; ++i) connection.send({Message::get, i, 60000, "large", ""});
      },
      "has left more than 134217728 bytes unread");
}

// The numbers of this process's sockets. Programs of other tests may listen at the same port of another address.
std::set<std::string> own_sockets() {
  std::set<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_since;
    const std::string target = std::filesystem::read_symlink(entry, closed_since).string();
    if (target.starts_with("socket:[")) result.insert(target.substr(8, target.size() - 9));
  }
  return result;
}

// Lines of /proc/net/tcp and tcp6: "0: 0100007F:4E20 00000000:0000 0A ..." with the state 0A for a socket that listens; the tenth
// word is the socket's number.
std::vector<std::string> listening_at(int port) {
  const std::set<std::string> own = own_sockets();
  std::vector<std::string> addresses;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, socket;
      words >> number >> local >> remote >> state;
      for (int word = 5; word < 10; ++word) words >> skipped;
      words >> socket;
      const std::size_t colon = local.find(':');
      if (state == "0A" && own.contains(socket) && std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        addresses.push_back(local.substr(0, colon));
    }
  }
  return addresses;
}

// As /proc/net/tcp writes an IPv4 address: its four bytes as a number of this machine.
std::string proc_text(const std::string& address) {
  in_addr bytes{};
  EXPECT_EQ(::inet_pton(AF_INET, address.c_str(), &bytes), 1) << address;
  char text[9];
  std::snprintf(text, sizeof text, "%08X", bytes.s_addr);
  return text;
}

TEST(Admission, RankZeroListensOnItsAddressAlone) {
  std::vector<std::string> hosts = {"127.0.0.1", "127.0.0.3"};
  try {
    hosts.push_back(address_on("eth0"));  // so that one address is not loopback, where there is such an interface
  } catch (const Error&) {
  }
  for (const std::string& host : hosts) {
    const Descriptor listener = listen_at(host, 0);
    EXPECT_EQ(listening_at(port_of(listener)), std::vector<std::string>{proc_text(host)});
    Port port;
    run_ranks(2, [&](int rank) {
      Rendezvous::Options options = port.options(rank, 2);
      options.host = host;
      Rendezvous rendezvous(options);
      if (rank == 0) {
        EXPECT_EQ(rendezvous.address(), host.rfind("127.", 0) == 0 ? "127.0.0.1" : host);
        EXPECT_EQ(listening_at(rendezvous.port()), std::vector<std::string>{proc_text(host)});
      }
      rendezvous.barrier("end");
    });
  }
  EXPECT_EQ(peer_error_of([] { listen_at("198.51.100.77", 20001); }),
            "rank 0 cannot listen at 198.51.100.77 port 20001: this machine does not have that address");
}

TEST(Admission, ANameLeadsToLoopbackOnlyIfItHasNoOtherAddress) {
  EXPECT_FALSE(is_loopback(kTwoAddresses));
  const Descriptor listener = listen_at(kTwoAddresses, 0);
  EXPECT_EQ(address_of(listener), "0.0.0.0");
  EXPECT_TRUE(connect_to(kTwoAddresses, port_of(listener), Clock::now() + seconds(10)).open());
}

TEST(Admission, InterfacesHaveNamesAndRanges) {
  EXPECT_EQ(address_on("lo"), "127.0.0.1");
  EXPECT_EQ(address_on("127.0.0.0/8"), "127.0.0.1");
  EXPECT_EQ(address_on("127.0.0.1/32"), "127.0.0.1");
  const auto error = [](const std::string& which) {
    try {
      return address_on(which);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::config);
      return std::string(e.what());
    }
  };
  EXPECT_EQ(error("nope0").rfind("comm.interface = nope0: this machine has no such interface, only lo 127.0.0.1", 0), 0u)
      << error("nope0");
  EXPECT_EQ(error("127.0.0.2/32").rfind("comm.interface = 127.0.0.2/32: this machine has no such address, only lo 127.0.0.1", 0),
            0u);
  for (const char* range : {"127.0.0.0/33", "127.0.0.0/", "127.0.0/8", "/8", "::1/129", "::1/x", "lo/8", "127.0.0.0/-1"}) {
    EXPECT_EQ(error(range), concat("comm.interface = ", range,
                                   ": must be the name of an interface or a range of addresses such as 10.0.0.0/8"));
  }
  EXPECT_TRUE(is_loopback("127.1.2.3"));
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_FALSE(is_loopback("198.51.100.1"));
  EXPECT_FALSE(is_loopback("no.such.host.invalid"));
}

}  // namespace
}  // namespace octet::comm

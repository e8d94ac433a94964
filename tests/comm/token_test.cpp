#include "octet/comm/token.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/comm/handshake.h"
#include "support/folder.h"

namespace octet::comm {
namespace {

using ::octet::testing::TemporaryFolder;
using ::octet::testing::write_text;

const std::string kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

std::string config_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config) << error.what();
    return error.what();
  }
  return "no error";
}

Token find(const std::map<std::string, std::string>& variables) {
  return find_token([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Token, IsSixtyFourHexadecimalDigits) {
  EXPECT_EQ(Token::parse(kHex, "").hex(), kHex);
  EXPECT_EQ(Token::parse("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F \r\n", "").hex(), kHex);
  EXPECT_FALSE(Token().is_secret());
  EXPECT_TRUE(Token::random().is_secret());
  EXPECT_NE(Token::random().hex(), Token::random().hex());
  const std::string make = std::string(". Make one with ") + kMakeToken;
  for (const auto& [text, words] : std::map<std::string, std::string>{{"", "0 characters"},
                                                                      {kHex.substr(1), "63 characters"},
                                                                      {kHex + "0", "65 characters"},
                                                                      {std::string(300, '0'), "more than 200 characters"},
                                                                      {kHex.substr(1) + "g", "another character"},
                                                                      {" " + kHex.substr(1), "another character"},
                                                                      {std::string(64, '0'), "zeros only"}}) {
    EXPECT_EQ(config_error_of([&] { Token::parse(text, "SOURCE"); }),
              "SOURCE: a token has 64 hexadecimal digits, this one has " + words + make);
  }
}

// RFC 4231 has no key of 32 bytes; this value is Python's hmac.new(bytes(range(32)), b"octet", "sha256").
TEST(Token, SignsByHmacSha256) {
  const Token token = Token::parse(kHex, "");
  std::string hex;
  for (const char c : token.sign("octet")) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    hex += digits;
  }
  EXPECT_EQ(hex, "7626f5508a2feb07b14b131ac7a5f326c94f4b62e126fca4e08a932a3cf07d3a");
  EXPECT_TRUE(token.verifies("octet", token.sign("octet")));
  EXPECT_FALSE(token.verifies("octet", token.sign("octets")));
  EXPECT_FALSE(token.verifies("octet", Token::random().sign("octet")));
  EXPECT_FALSE(token.verifies("octet", token.sign("octet").substr(1)));
  EXPECT_FALSE(token.verifies("octet", ""));
}

TEST(Token, ComesFromTheFileOrTheVariable) {
  const TemporaryFolder folder;
  const std::string path = folder / "token", other = Token::random().hex();
  write_text(path, kHex + "\n");
  EXPECT_FALSE(find({}).is_secret());
  EXPECT_EQ(find({{"OCTET_TOKEN", other}}).hex(), other);
  EXPECT_EQ(find({{"OCTET_TOKEN_FILE", path}, {"OCTET_TOKEN", other}}).hex(), kHex);
}

// If a variable names a token that is not there, the run must not go on without one.
TEST(Token, ThatIsNamedAndNotThereIsAnError) {
  const TemporaryFolder folder;
  const std::string absent = folder / "absent";
  EXPECT_EQ(config_error_of([&] {
              find({{"OCTET_TOKEN_FILE", absent}, {"OCTET_TOKEN", kHex}});
            }),
            "OCTET_TOKEN_FILE=" + absent + ": cannot open: No such file or directory");
  EXPECT_EQ(config_error_of([&] {
              find({{"OCTET_TOKEN_FILE", folder.path()}});
            }),
            "OCTET_TOKEN_FILE=" + folder.path().string() + ": not a regular file");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(config_error_of([&] {
              find({{"OCTET_TOKEN_FILE", folder / "fifo"}});
            }),
            "OCTET_TOKEN_FILE=" + (folder / "fifo").string() + ": not a regular file");
  EXPECT_EQ(config_error_of([&] {
              find({{"OCTET_TOKEN_FILE", ""}});
            }),
            "OCTET_TOKEN_FILE=: cannot open: No such file or directory");
  EXPECT_EQ(config_error_of([&] {
              find({{"OCTET_TOKEN", ""}});
            }).substr(0, 75),
            "OCTET_TOKEN: a token has 64 hexadecimal digits, this one has 0 characters. ");
  write_text(folder / "half", kHex.substr(0, 32));
  const std::string half = config_error_of([&] { find({{"OCTET_TOKEN_FILE", folder / "half"}}); });
  EXPECT_NE(half.find("this one has 32 characters"), std::string::npos) << half;
  EXPECT_EQ(half.find(kHex.substr(0, 8)), std::string::npos) << "the message shows the secret";
  if (::geteuid() == 0) return;  // root reads every file
  std::filesystem::permissions(folder / "half", std::filesystem::perms::none);
  EXPECT_NE(config_error_of([&] {
              find({{"OCTET_TOKEN_FILE", folder / "half"}});
            }).find("cannot open: Permission denied"),
            std::string::npos);
}

TEST(Token, InMemoryIsFoundAgain) {
  const Token token = Token::random();
  const TokenMemory memory(token);
  const std::string variable = memory.variable(), name = variable.substr(0, variable.find('='));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(find({{name, variable.substr(name.size() + 1)}}).hex(), token.hex());
}

TEST(Token, FileIsForItsOwnerAloneAndStays) {
  const TemporaryFolder folder;
  const std::string path = (folder / ".token").string();
  make_token_file(path);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const std::string first = find({{"OCTET_TOKEN_FILE", path}}).hex();
  make_token_file(path);
  EXPECT_EQ(find({{"OCTET_TOKEN_FILE", path}}).hex(), first);
}

// A proof holds for one token, role, pair of nonces and claim.
TEST(Handshake, ProofsHoldForNothingElse) {
  const Token token = Token::random();
  const Challenge challenge, later;
  const std::string nonce = random_bytes(kNonceBytes);
  const Frame hello = challenge.hello(token, {3, 8, "0.1.0"}, nonce, 1000), welcome = challenge.welcome(token, hello);
  EXPECT_EQ(Challenge::claim_of(hello).rank, 3u);
  EXPECT_EQ(Challenge::claim_of(hello).size, 8u);
  EXPECT_EQ(Challenge::claim_of(hello).version, "0.1.0");
  EXPECT_TRUE(challenge.proves(token, hello));
  EXPECT_TRUE(challenge.proves_server(token, hello, welcome));
  EXPECT_EQ((hello.key + hello.value + welcome.value).find(token.hex()), std::string::npos);

  EXPECT_FALSE(challenge.proves(Token::random(), hello));
  EXPECT_FALSE(challenge.proves(Token(), hello));
  EXPECT_FALSE(later.proves(token, hello)) << "replayed";
  Frame changed = hello;
  changed.id = 2;
  EXPECT_FALSE(challenge.proves(token, changed));
  changed = hello;
  changed.value = "9 0.1.0";
  EXPECT_FALSE(challenge.proves(token, changed));
  changed.value = "8 0.1.1";
  EXPECT_FALSE(challenge.proves(token, changed));
  changed = hello;
  changed.key = random_bytes(kNonceBytes) + hello.key.substr(kNonceBytes);
  EXPECT_FALSE(challenge.proves(token, changed));
  changed.key = nonce + welcome.value;
  EXPECT_FALSE(challenge.proves(token, changed)) << "the server's own proof, sent back";

  EXPECT_FALSE(challenge.proves_server(Token::random(), hello, welcome));
  EXPECT_FALSE(later.proves_server(token, hello, welcome)) << "replayed";
  const Frame again = challenge.hello(token, {3, 8, "0.1.0"}, random_bytes(kNonceBytes), 1000);
  EXPECT_FALSE(challenge.proves_server(token, again, welcome)) << "replayed";
  EXPECT_FALSE(challenge.proves_server(token, hello, {Message::welcome, 0, 0, {}, hello.key.substr(kNonceBytes)}));
  EXPECT_FALSE(challenge.proves_server(token, hello, {Message::ready}));
  for (const char* value : {"", "8", "x 0.1.0", "-8 0.1.0", "8x 0.1.0", "99999999999999999999 0.1.0"}) {
    changed = hello;
    changed.value = value;
    EXPECT_THROW(Challenge::claim_of(changed), Error) << value;
  }
}

}  // namespace
}  // namespace octet::comm

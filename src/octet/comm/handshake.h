// How a rank and rank 0's server show each other that both know the token of the job. The token itself is never sent.
//   1. The server sends `challenge` with its nonce.
//   2. The rank sends `hello` with its claim, its nonce and its proof.
//   3. The server checks the proof and sends `welcome` with a proof of its own, or `refused` with a sentence.
// Both nonces are new for each connection, so a recorded handshake cannot be used again. A proof is
//     HMAC-SHA-256(token, role, server's nonce, rank's nonce, rank, size, version),
// so a proof of the server cannot be sent back to it as the proof of a rank. Messages after the handshake are neither encrypted
// nor signed.
#pragma once

#include <cstdint>
#include <string>

#include "octet/base/require.h"
#include "octet/comm/connection.h"
#include "octet/comm/token.h"

namespace octet::comm {

inline constexpr std::size_t kNonceBytes = 32;

// The facts that a rank states about itself when it joins.
struct Claim {
  std::uint64_t rank = 0, size = 1;
  std::string version;  // of the program; must be the same on all ranks
};

// What a rank that has finished the handshake knows about the job.
class Challenge {
 public:
  Challenge() : nonce_(random_bytes(kNonceBytes)) {}
  explicit Challenge(std::string nonce) : nonce_(std::move(nonce)) {}

  Frame frame() const { return {Message::challenge, 0, 0, {}, nonce_}; }
  // The rank's answer. `nonce` is the rank's own.
  Frame hello(const Token& token, const Claim& claim, const std::string& nonce, std::uint32_t timeout_ms) const;
  // Returns the claim of a hello. Throws Error{peer} if the message does not have the form of a hello.
  static Claim claim_of(const Frame& hello);
  // Whether the sender of `hello` knew the token and this challenge.
  bool proves(const Token& token, const Frame& hello) const;
  // The server's answer to a hello, and whether such an answer comes from a server that knows the token.
  Frame welcome(const Token& token, const Frame& hello) const;
  bool proves_server(const Token& token, const Frame& hello, const Frame& welcome) const;

 private:
  std::string message(char role, const std::string& nonce, const Claim& claim) const;

  std::string nonce_;  // the server's
};

struct JoinOptions {
  std::string host;  // of the server
  int port = 0;
  Token token;
  Claim claim;
  double timeout_s = 60;
  std::string server = "rank 0", me = {};  // names in messages; `me` empty: "rank N"
};
// The server answered, but does not admit this process.
class Refused : public Error {
 public:
  using Error::Error;
};

// Connects to the server and shakes hands. A connection that the server closes without an answer is tried again, because the
// server closes those for which it has no room. Throws Error{peer} with a sentence that names the rank; Refused if the two do not
// belong together.
Connection join(const JoinOptions& options);

}  // namespace octet::comm

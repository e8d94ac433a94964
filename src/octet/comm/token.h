// The secret of a job. A process that does not know it cannot become a rank.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "octet/base/descriptor.h"

namespace octet::comm {

class Token {
 public:
  static constexpr std::size_t kBytes = 32;

  // No token. Objects without a token produce the same signatures, so ranks without a token accept each other and refuse a rank
  // that has one.
  Token() = default;
  static Token random();
  // Reads 64 hexadecimal digits, which may be followed by white space. Throws Error{config} "SOURCE: ...", without the text.
  static Token parse(std::string_view text, const std::string& source);

  bool is_secret() const { return bytes_ != Bytes{}; }
  std::string hex() const;
  // HMAC-SHA-256 of the message, with the token as key.
  std::string sign(std::string_view message) const;
  // Whether `signature` is sign(message). Takes equally long for all signatures of the right length.
  bool verifies(std::string_view message, std::string_view signature) const;

 private:
  using Bytes = std::array<unsigned char, kBytes>;
  Bytes bytes_{};
};

// Random bytes that nobody can predict.
std::string random_bytes(std::size_t count);

inline constexpr const char* kTokenFile = "OCTET_TOKEN_FILE";

// The token in the file that OCTET_TOKEN_FILE names, or else in OCTET_TOKEN, or else none. `get` has the interface of getenv.
// Throws Error{config} if the file cannot be read or if there is no valid token in the place that is set; Error{data} after an
// I/O error that may pass.
Token find_token(const std::function<const char*(const char*)>& get);

// The shell command that the messages and the guide give for making a token.
inline constexpr const char* kMakeToken = "(umask 077; od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n' > token)";

// Makes the file `path` of mode 600 with a new token, if it does not exist. Several processes may do so at once; all find the
// same token afterwards. Throws Error{internal} "PATH: reason".
void make_token_file(const std::filesystem::path& path);

// A token in memory that child processes of this one inherit. Unlike a file, it cannot be deleted and no storage can fail.
class TokenMemory {
 public:
  explicit TokenMemory(const Token& token);  // throws Error{internal}
  std::string variable() const;              // "OCTET_TOKEN_FILE=PATH", where PATH leads each of these processes to the token

 private:
  Descriptor file_;
};

}  // namespace octet::comm

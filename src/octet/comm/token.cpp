#include "octet/comm/token.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "octet/base/directory.h"
#include "octet/base/system_call.h"
#include "octet/comm/socket.h"

namespace octet::comm {
namespace {

static_assert(Token::kBytes == crypto_auth_hmacsha256_KEYBYTES);
constexpr std::string_view kSpace = " \t\r\n";

// libsodium must be initialised before its first use. Any thread may do so, more than once.
void initialise_sodium() { require(sodium_init() >= 0, "libsodium does not start"); }

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

// A file server that does not answer now is no mistake of the user.
ExitCode code_of_errno() {
  const int number = errno;
  const bool may_pass = SystemError(ExitCode::config, "", number).may_pass();
  errno = number;
  return may_pass ? ExitCode::data : ExitCode::config;
}

// The beginning of a regular file, long enough for a token and white space. A pipe is refused, because it could block for ever.
std::string beginning_of(const std::string& path, const std::string& source) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) fail_errno(code_of_errno(), source + ": cannot open");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_errno(code_of_errno(), source + ": cannot read");
  demand(S_ISREG(status.st_mode), ExitCode::config, source, ": not a regular file");
  std::string text(256, '\0');
  ssize_t count = 0;
  do count = ::read(file.get(), text.data(), text.size());
  while (count < 0 && errno == EINTR);
  if (count < 0) fail_errno(code_of_errno(), source + ": cannot read");
  text.resize(static_cast<std::size_t>(count));
  return text;
}

// Writes a new token into a new file of the folder and returns its path.
std::string write_new_token(const std::filesystem::path& folder) {
  std::string name = (folder / "octet-token-XXXXXX").string();
  const Descriptor file(::mkostemp(name.data(), O_CLOEXEC));  // opens with O_CREAT | O_EXCL and mode 600
  if (!file.open()) fail_errno(ExitCode::internal, name, "cannot create");
  const std::string text = Token::random().hex() + "\n";
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  const bool whole = written == static_cast<ssize_t>(text.size());
  if (!whole || ::fsync(file.get()) != 0) {  // a token file that is empty after a loss of power would stop every start
    const int reason = whole || written < 0 ? errno : ENOSPC;
    ::unlink(name.c_str());
    errno = reason;
    fail_errno(ExitCode::internal, name, "cannot write");
  }
  return name;
}

}  // namespace

Token Token::random() {
  Token token;
  const std::string bytes = random_bytes(kBytes);
  std::copy(bytes.begin(), bytes.end(), token.bytes_.begin());
  return token;
}

Token Token::parse(std::string_view text, const std::string& source) {
  const std::size_t last = text.find_last_not_of(kSpace);
  text = text.substr(0, last == text.npos ? 0 : last + 1);
  const auto refuse = [&](const auto&... parts) {
    fail(ExitCode::config, source, ": a token has ", 2 * kBytes, " hexadecimal digits, this one has ", parts...,
         ". Make one with ", kMakeToken);
  };
  if (text.size() != 2 * kBytes) refuse(text.size() > 200 ? "more than 200" : std::to_string(text.size()), " characters");
  Token token;
  std::size_t read = 0;
  const int failed = sodium_hex2bin(token.bytes_.data(), kBytes, text.data(), text.size(), nullptr, &read, nullptr);
  if (failed != 0 || read != kBytes) refuse("another character");
  if (!token.is_secret()) refuse("zeros only");
  return token;
}

std::string Token::hex() const {
  std::string text(2 * kBytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes_.data(), kBytes);
  text.pop_back();
  return text;
}

std::string Token::sign(std::string_view message) const {
  unsigned char signature[crypto_auth_hmacsha256_BYTES];
  crypto_auth_hmacsha256(signature, bytes_of(message), message.size(), bytes_.data());
  return {reinterpret_cast<const char*>(signature), sizeof signature};
}

bool Token::verifies(std::string_view message, std::string_view signature) const {
  return signature.size() == crypto_auth_hmacsha256_BYTES &&
         crypto_auth_hmacsha256_verify(bytes_of(signature), bytes_of(message), message.size(), bytes_.data()) == 0;
}

std::string random_bytes(std::size_t count) {
  initialise_sodium();
  std::string bytes(count, '\0');
  randombytes_buf(bytes.data(), count);
  return bytes;
}

Token find_token(const std::function<const char*(const char*)>& get) {
  if (const char* path = get(kTokenFile)) {
    const std::string source = concat(kTokenFile, "=", path);
    return Token::parse(beginning_of(path, source), source);
  }
  if (const char* text = get("OCTET_TOKEN")) return Token::parse(text, "OCTET_TOKEN");
  return {};
}

void make_token_file(const std::filesystem::path& path) {
  if (path_exists(path)) return;
  const std::string refusal = concat("cannot create; set OCTET_TOKEN_FILE. Make a token with ", kMakeToken);
  const std::string temporary = write_new_token(path.parent_path());
  // A link appears with its content, unlike a file that is created here and then written.
  const int error = ::link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
  ::unlink(temporary.c_str());
  errno = error;
  if (error != 0 && error != EEXIST) fail_errno(ExitCode::internal, path, refusal);
}

TokenMemory::TokenMemory(const Token& token) : file_(::memfd_create("octet token", 0)) {
  constexpr const char* kTrouble = "cannot make the memory for the job's token";
  if (!file_.open()) fail_errno(ExitCode::internal, kTrouble);
  const std::string text = token.hex();
  if (::write(file_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    fail_errno(ExitCode::internal, kTrouble);
}

std::string TokenMemory::variable() const { return concat(kTokenFile, "=/proc/self/fd/", file_.get()); }

}  // namespace octet::comm

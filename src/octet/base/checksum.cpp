#include "octet/base/checksum.h"

// GCC 12 reports its own AVX-512 intrinsics as using uninitialised values, because they start from an undefined vector on
// purpose. Each compiler also warns about the other compiler's warning names.
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "octet/base/file.h"

namespace octet {

struct RunningChecksum::State {
  XXH3_state_t xxh3;  // aligned by its own declaration
};

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { reset(); }
RunningChecksum::~RunningChecksum() = default;
RunningChecksum::RunningChecksum(const RunningChecksum& other) : state_(std::make_unique<State>()) { *this = other; }
RunningChecksum& RunningChecksum::operator=(const RunningChecksum& other) {
  XXH3_copyState(&state_->xxh3, &other.state_->xxh3);
  return *this;
}

void RunningChecksum::reset() { XXH3_64bits_reset(&state_->xxh3); }
void RunningChecksum::update(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size()); }
std::uint64_t RunningChecksum::value() const { return XXH3_64bits_digest(&state_->xxh3); }


Checksum128 RunningChecksum::wide() const {
  // XXH3-64 and XXH3-128 use the same streaming state when the seed is 0.
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return {hash.high64, hash.low64};
}

std::string RunningChecksum::hex() const {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value()));
  return text.data();
}

std::string checksum_of(const FileReader& file, const std::function<void()>& after_piece) {
  RunningChecksum sum;
  std::vector<std::byte> piece(std::min(file.size(), std::size_t{1} << 20));
  for (std::size_t at = 0; at < file.size(); at += piece.size()) {
    piece.resize(std::min(piece.size(), file.size() - at));
    file.read_at(at, piece);
    sum.update(piece);
    if (after_piece) after_piece();
  }
  return sum.hex();
}

}  // namespace octet

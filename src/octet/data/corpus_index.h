// The layout of Megatron's .idx file, little endian and without padding:
//   9 bytes "MMIDIDX\0\0" | u64 version = 1 | u8 token type | u64 S sequences | u64 D + 1 entries of the document index
//   i32 length[S], tokens | i64 pointer[S], bytes into the .bin | i64 document[D + 1], first sequence of each, then S
// Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet::data {

// Megatron's codes. Floating-point ones (6, 7) are refused.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

std::string_view token_type_name(TokenType type);  // as numpy names them: "uint16"
std::int64_t token_type_bytes(TokenType type);
// What a corpus of this vocabulary is written in; Megatron's rule: uint16 below 65,500, else int32.
TokenType token_type_for(std::int64_t vocab_size);

inline constexpr std::array<char, 9> kIndexMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kIndexHeaderBytes = 34;

// A checked view of the bytes of an .idx file, which must outlive it.
class CorpusIndex {
 public:
  // Checks everything: counts, lengths, that pointers follow each other without a gap, that they end where the .bin ends,
  // that documents are in order and cover all sequences. Throws Error{data} "FILE: reason".
  CorpusIndex(std::span<const std::byte> idx, std::uint64_t bin_bytes, const std::string& idx_name, const std::string& bin_name);

  TokenType type() const { return type_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t document_start(std::int64_t d) const;
  std::int64_t document_at(std::int64_t t) const;

 private:
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t pointer(std::int64_t sequence) const;
  std::int64_t first_sequence(std::int64_t d) const;

  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* firsts_ = nullptr;
  TokenType type_ = TokenType::u16;
  std::int64_t tokens_ = 0, sequences_ = 0, documents_ = 0;
};

}  // namespace octet::data

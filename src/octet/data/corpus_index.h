// The layout of Megatron's .idx file, little endian and without padding:
//   9 bytes "MMIDIDX\0\0" | u64 version = 1 | u8 token type | u64 S, the number of sequences | u64 D + 1, where D is the number of
//   documents | i32 length[S], in tokens | i64 pointer[S], the byte offset in the .bin | i64 document[D + 1], the first sequence of
//   each document, then S
// Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octet::data {

// Megatron's codes for token types. Octet refuses the floating-point types (6 and 7).
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

std::string_view token_type_name(TokenType type);  // numpy's name: "uint16"
std::int64_t token_type_bytes(TokenType type);
// The type that a corpus with this vocabulary is written in. Megatron's rule: u16 below 65,500, otherwise i32.
TokenType token_type_for(std::int64_t vocab_size);

inline constexpr std::array<char, 9> kIndexMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kIndexHeaderBytes = 34;

// A checked view of the bytes of an .idx file. The bytes must outlive the view.
class CorpusIndex {
 public:
  // Checks the header and every entry: sequences must follow each other without a gap and end where the .bin ends; documents must be
  // in order and cover all sequences. Throws Error{data} "FILE: reason".
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

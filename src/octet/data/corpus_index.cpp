#include "octet/data/corpus_index.h"

#include <cstring>

#include "octet/base/require.h"

namespace octet::data {
namespace {

struct TokenTypeRow {
  TokenType type;
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<TokenTypeRow, 6> kTypes = {{{TokenType::u8, "uint8", 1},
                                                 {TokenType::i8, "int8", 1},
                                                 {TokenType::i16, "int16", 2},
                                                 {TokenType::i32, "int32", 4},
                                                 {TokenType::i64, "int64", 8},
                                                 {TokenType::u16, "uint16", 2}}};

const TokenTypeRow* find_type(std::uint8_t code) {
  for (const TokenTypeRow& row : kTypes) {
    if (static_cast<std::uint8_t>(row.type) == code) return &row;
  }
  return nullptr;
}

const TokenTypeRow& row_of(TokenType type) {
  const TokenTypeRow* row = find_type(static_cast<std::uint8_t>(type));
  require(row != nullptr, "corpus: token type ", static_cast<int>(type));
  return *row;
}

// Reads a value that need not be aligned: the arrays of the file start at byte 34.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

std::string_view token_type_name(TokenType type) { return row_of(type).name; }
std::int64_t token_type_bytes(TokenType type) { return row_of(type).bytes; }
TokenType token_type_for(std::int64_t vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

CorpusIndex::CorpusIndex(std::span<const std::byte> idx, std::uint64_t bin_bytes, const std::string& idx_name,
                         const std::string& bin_name) {
  const auto check = [&](bool holds, const auto&... parts) { demand(holds, ExitCode::data, idx_name, ": ", parts...); };
  check(idx.size() >= kIndexHeaderBytes, "truncated: ", idx.size(), " bytes, but the header has ", kIndexHeaderBytes);
  check(std::memcmp(idx.data(), kIndexMagic.data(), kIndexMagic.size()) == 0,
        "not a Megatron index (it does not begin with MMIDIDX)");
  const auto version = load<std::uint64_t>(idx.data() + 9);
  check(version == kIndexVersion, "index version ", version, " is not supported, only ", kIndexVersion);
  const auto code = load<std::uint8_t>(idx.data() + 17);
  check(code != 6 && code != 7, "token type ", int{code}, " is floating point; tokens must be integers");
  const TokenTypeRow* row = find_type(code);
  check(row != nullptr, "unknown token type ", int{code});
  type_ = row->type;

  const auto sequences = load<std::uint64_t>(idx.data() + 18);
  const auto entries = load<std::uint64_t>(idx.data() + 26);
  // Each count is compared with the room in the file before it is multiplied, so that a huge count cannot overflow.
  const std::uint64_t body = idx.size() - kIndexHeaderBytes;
  check(sequences <= body / 12, "truncated: the header promises ", sequences, " sequences, there is room for ", body / 12);
  const std::uint64_t document_bytes = body - sequences * 12;
  check(entries >= 1, "the document index is empty");
  check(entries <= document_bytes / 8, "truncated: the header promises ", entries,
        " entries in the document index, there is room for ", document_bytes / 8);
  check(entries * 8 == document_bytes, document_bytes - entries * 8,
        " bytes after the document index (multimodal corpora are not supported)");
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(entries) - 1;
  lengths_ = idx.data() + kIndexHeaderBytes;
  pointers_ = lengths_ + 4 * sequences;
  firsts_ = pointers_ + 8 * sequences;

  check(bin_bytes < (std::uint64_t{1} << 62), "its .bin cannot have ", bin_bytes, " bytes");
  const auto have = static_cast<std::int64_t>(bin_bytes);
  std::int64_t end = 0;  // at most 2^62 + 2^34: no overflow
  for (std::int64_t s = 0; s < sequences_; ++s) {
    check(length(s) >= 0, "sequence ", s, " has the negative length ", length(s));
    check(pointer(s) == end, "sequence ", s, " begins at byte ", pointer(s), ", the one before it ends at byte ", end);
    end += length(s) * row->bytes;
    check(end <= have, "sequence ", s, " ends at byte ", end, ", but ", bin_name, " has ", have, " bytes");
  }
  check(end == have, "its sequences have ", end, " bytes, but ", bin_name, " has ", have);
  tokens_ = end / row->bytes;

  check(first_sequence(0) == 0, "the first document begins at sequence ", first_sequence(0), ", not 0");
  for (std::int64_t d = 1; d <= documents_; ++d) {
    check(first_sequence(d) >= first_sequence(d - 1), "the document index is out of order: entry ", d, " is ", first_sequence(d),
          " after ", first_sequence(d - 1));
  }
  check(first_sequence(documents_) == sequences_, "the document index ends at sequence ", first_sequence(documents_), " of ",
        sequences_);
}

std::int64_t CorpusIndex::length(std::int64_t sequence) const { return load<std::int32_t>(lengths_ + 4 * sequence); }
std::int64_t CorpusIndex::pointer(std::int64_t sequence) const { return load<std::int64_t>(pointers_ + 8 * sequence); }
std::int64_t CorpusIndex::first_sequence(std::int64_t d) const { return load<std::int64_t>(firsts_ + 8 * d); }

std::int64_t CorpusIndex::document_start(std::int64_t d) const {
  require(d >= 0 && d <= documents_, "corpus: document ", d, " of ", documents_);
  const std::int64_t sequence = first_sequence(d);
  return sequence == sequences_ ? tokens_ : pointer(sequence) / row_of(type_).bytes;
}

std::int64_t CorpusIndex::document_at(std::int64_t t) const {
  require(t >= 0 && t < tokens_, "corpus: token ", t, " of ", tokens_);
  // Finds the last document that begins at or before t. It holds t: an empty document begins where the next one begins, and the
  // next one would have been found instead.
  std::int64_t low = 0, high = documents_;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_start(middle) <= t ? low : high) = middle;
  }
  return low;
}

}  // namespace octet::data

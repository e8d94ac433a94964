#include "octet/data/corpus_index.h"

#include <random>

#include "data/files.h"

namespace octet::data {
namespace {

CorpusIndex parse(const std::string& bytes, std::uint64_t bin_bytes) {
  return {std::as_bytes(std::span(bytes.data(), bytes.size())), bin_bytes, "a.idx", "a.bin"};
}
std::string refusal(const std::string& bytes, std::uint64_t bin_bytes) {
  const std::string message = error_of(ExitCode::data, [&] { parse(bytes, bin_bytes); });
  EXPECT_TRUE(contains(message, "a.idx: "));
  return message;
}

// Three documents in four sequences of 3, 0, 5 and 2 tokens. A token has two bytes, and the second document has two sequences.
HandMadeIndex good() { return {8, 2, {3, 0, 5, 2}, {0, 1, 3}}; }

TEST(CorpusIndex, FindsDocuments) {
  const std::string bytes = good().bytes();
  const CorpusIndex index = parse(bytes, 20);
  EXPECT_EQ(index.type(), TokenType::u16);
  EXPECT_EQ(index.tokens(), 10);
  EXPECT_EQ(index.sequences(), 4);
  EXPECT_EQ(index.documents(), 3);
  const std::vector<std::int64_t> starts = {0, 3, 8, 10};
  for (std::int64_t d = 0; d <= 3; ++d) EXPECT_EQ(index.document_start(d), starts[static_cast<std::size_t>(d)]);
  const std::vector<std::int64_t> holders = {0, 0, 0, 1, 1, 1, 1, 1, 2, 2};
  for (std::int64_t t = 0; t < 10; ++t) EXPECT_EQ(index.document_at(t), holders[static_cast<std::size_t>(t)]) << t;
}

TEST(CorpusIndex, EmptyDocumentsHoldNoToken) {
  // Each document is one sequence. Their lengths are 0, 4, 0, 0, 1 and 0.
  const std::string bytes = HandMadeIndex(4, 4, {0, 4, 0, 0, 1, 0}, {0, 1, 2, 3, 4, 5}).bytes();
  const CorpusIndex index = parse(bytes, 20);
  for (std::int64_t t = 0; t < 4; ++t) EXPECT_EQ(index.document_at(t), 1);
  EXPECT_EQ(index.document_at(4), 4);
}

TEST(CorpusIndex, AcceptsACorpusWithoutDocuments) {
  const std::string bytes = HandMadeIndex(8, 2, {}, {}).bytes();
  EXPECT_EQ(bytes.size(), kIndexHeaderBytes + 8);
  EXPECT_EQ(parse(bytes, 0).documents(), 0);
}

TEST(CorpusIndex, KnowsMegatronsTypes) {
  for (const auto& [code, width] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}}) {
    const std::string bytes = HandMadeIndex(static_cast<std::uint8_t>(code), width, {3}, {0}).bytes();
    const CorpusIndex index = parse(bytes, static_cast<std::uint64_t>(3 * width));
    EXPECT_EQ(static_cast<int>(index.type()), code);
    EXPECT_EQ(token_type_bytes(index.type()), width);
  }
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST(CorpusIndex, RefusesEveryTruncation) {
  const std::string bytes = good().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) refusal(bytes.substr(0, size), 20);
  EXPECT_TRUE(contains(refusal(bytes.substr(0, 20), 20), "truncated: 20 bytes"));
  EXPECT_TRUE(contains(refusal(bytes + "x", 20), "1 bytes after the document index"));
}

TEST(CorpusIndex, RefusesWrongHeaders) {
  HandMadeIndex index = good();
  index.magic[3] = 'X';
  EXPECT_TRUE(contains(refusal(index.bytes(), 20), "not a Megatron index"));
  index = good();
  index.version = 2;
  EXPECT_TRUE(contains(refusal(index.bytes(), 20), "version 2"));
  for (const int code : {0, 9, 255}) {
    index = good();
    index.code = static_cast<std::uint8_t>(code);
    EXPECT_TRUE(contains(refusal(index.bytes(), 20), "unknown token type " + std::to_string(code)));
  }
  for (const int code : {6, 7}) {
    index = good();
    index.code = static_cast<std::uint8_t>(code);
    EXPECT_TRUE(contains(refusal(index.bytes(), 20), "floating point"));
  }
}

TEST(CorpusIndex, RefusesCountsThatWrapRound) {
  // The products of these counts with 4, 8 or 12 wrap round to small numbers in 64 bits.
  for (const std::uint64_t count :
       {std::uint64_t{5}, std::uint64_t{1} << 61, std::uint64_t{1} << 62, (std::uint64_t{1} << 62) + 4, std::uint64_t{1} << 63,
        (std::uint64_t{1} << 63) + 4, ~std::uint64_t{0}, ~std::uint64_t{0} - 3}) {
    HandMadeIndex index = good();
    index.sequence_count = count;
    EXPECT_TRUE(contains(refusal(index.bytes(), 20), "truncated"));
    index = good();
    index.document_count = count;
    EXPECT_TRUE(contains(refusal(index.bytes(), 20), "truncated"));
  }
  HandMadeIndex index = good();
  index.document_count = 0;
  EXPECT_TRUE(contains(refusal(index.bytes(), 20), "document index is empty"));
}

TEST(CorpusIndex, RefusesSequencesThatDoNotMatchTheBin) {
  EXPECT_TRUE(contains(refusal(good().bytes(), 19), "a.bin has 19"));
  EXPECT_TRUE(contains(refusal(good().bytes(), 21), "a.bin has 21"));
  EXPECT_TRUE(contains(refusal(good().bytes(), 0), "a.bin has 0"));
  refusal(good().bytes(), ~std::uint64_t{0});
  HandMadeIndex index = good();
  index.lengths[2] = -1;
  EXPECT_TRUE(contains(refusal(index.bytes(), 20), "sequence 2 has the negative length -1"));
  for (const std::int64_t pointer : {std::int64_t{5}, std::int64_t{-2}, std::int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
    index = good();
    index.pointers[2] = pointer;
    EXPECT_TRUE(contains(refusal(index.bytes(), 20), "sequence 2 begins at byte " + std::to_string(pointer)));
  }
  // The lengths and the pointers are consistent, but they reach past the end of the file.
  EXPECT_TRUE(contains(refusal(HandMadeIndex(5, 8, {INT32_MAX, INT32_MAX, 4}, {0}).bytes(), 64), "sequence 0 ends at byte"));
}

TEST(CorpusIndex, RefusesDocumentsOutOfOrder) {
  const auto with = [](std::vector<std::int64_t> documents) {
    HandMadeIndex index = good();
    index.documents = std::move(documents);
    return index.bytes();
  };
  EXPECT_TRUE(contains(refusal(with({1, 2, 3, 4}), 20), "first document begins at sequence 1"));
  EXPECT_TRUE(contains(refusal(with({0, 3, 1, 4}), 20), "out of order: entry 2 is 1 after 3"));
  EXPECT_TRUE(contains(refusal(with({0, -1, 3, 4}), 20), "out of order"));
  EXPECT_TRUE(contains(refusal(with({0, 1, 3, 5}), 20), "ends at sequence 5 of 4"));
  EXPECT_TRUE(contains(refusal(with({0, 1, 3, 3}), 20), "ends at sequence 3 of 4"));
  EXPECT_TRUE(contains(refusal(with({0, 1, INT64_MAX, 4}), 20), "out of order"));
}

TEST(CorpusIndex, AnyFlippedByteIsRefusedOrHarmless) {
  std::mt19937 random(1);
  const std::string bytes = good().bytes();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int i = 0; i < 8; ++i) {
      std::string wrong = bytes;
      wrong[at] = static_cast<char>(wrong[at] ^ static_cast<char>(1 + random() % 255));
      try {
        const CorpusIndex index = parse(wrong, 20);
        for (std::int64_t t = 0; t < index.tokens(); ++t) {
          const std::int64_t d = index.document_at(t);
          EXPECT_LE(index.document_start(d), t);
          EXPECT_GT(index.document_start(d + 1), t);
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::data);
      }
    }
  }
}

}  // namespace
}  // namespace octet::data

#include "octet/data/tokenizer/sentence_piece.h"

#include <bit>

#include "data/files.h"
#include "data/tokenizer/definitions.h"

namespace octet::data {
namespace {

using Ids = std::vector<std::int32_t>;

// Writes the wire format of Protocol Buffers, as far as a model needs it.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string number(int field, std::uint64_t value) { return varint(static_cast<std::uint64_t>(field) << 3) + varint(value); }
std::string text(int field, const std::string& bytes) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string real(int field, float value) {
  std::string bytes = varint(static_cast<std::uint64_t>(field) << 3 | 5);
  put(bytes, std::bit_cast<std::uint32_t>(value));
  return bytes;
}
std::string piece(const std::string& name, float score, std::uint64_t type) {
  return text(1, text(1, name) + real(2, score) + (type == 1 ? "" : number(3, type)));
}

std::string trainer() { return text(2, number(3, 2) + number(35, 1)); }
std::string normalizer() { return text(3, text(1, "identity") + number(4, 0)); }

// The ids are those of definitions.h, followed by "abca" (268) and "<keep>" (269).
std::string pieces() {
  std::string bytes = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) bytes += piece(byte_token(static_cast<unsigned char>(byte)), 0, 6);
  float score = -100;  // the score of characters; longer pieces get better scores in order
  for (const char* name : {"▁", "a", "b", "c"}) bytes += piece(name, score--, 1);
  score = 0;
  for (const char* name : {"ab", "▁ab", "abc", "▁▁", "▁abc"}) bytes += piece(name, score--, 1);
  return bytes + piece("abca", -9, 1) + piece("<keep>", 0, 4);
}

BpeTokenizer tokenizer_from(const std::string& bytes) {
  return BpeTokenizer(read_sentence_piece(bytes, "t.model"), "t", "0000000000000000");
}

TEST(SentencePiece, JoinsByScore) {
  const BpeTokenizer tokenizer = tokenizer_from(pieces() + trainer() + normalizer());
  EXPECT_EQ(tokenizer.vocab_size(), 270);
  EXPECT_EQ(ids_of(tokenizer, "abc ab"), (Ids{267, 264}));
  EXPECT_EQ(ids_of(tokenizer, "bbabca"), (Ids{259, 261, 261, 268}));
  EXPECT_EQ(ids_of(tokenizer, " ab"), (Ids{259, 264}));
  EXPECT_EQ(ids_of(tokenizer, "aé"), (Ids{259, 260, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(ids_of(tokenizer, "ab<keep>ab"), (Ids{264, 269, 263}));
  EXPECT_EQ(ids_of(tokenizer, "<s>").size(), 4u);  // text, as in SentencePiece
  EXPECT_EQ(Ids(tokenizer.prefix().begin(), tokenizer.prefix().end()), Ids{1});
  EXPECT_EQ(tokenizer.end_of_document(), 2);
  EXPECT_EQ(text_of(tokenizer, ids_of(tokenizer, " a\n é<keep>")), " a\n é<keep>");
  for (const std::string around : {"<keep> <keep>", "a <keep> b", " <keep>  a", "<keep>a"}) {
    EXPECT_EQ(text_of(tokenizer, ids_of(tokenizer, around)), around);
  }
  EXPECT_EQ(tokenizer.cut("abc abc"), 0u);
}

TEST(SentencePiece, WithoutASpaceBeforeTheText) {
  const BpeTokenizer tokenizer = tokenizer_from(pieces() + trainer() + text(3, number(3, 0) + number(4, 0)));
  EXPECT_EQ(ids_of(tokenizer, "ab ab"), (Ids{263, 264}));
}

TEST(SentencePiece, RefusesByName) {
  const auto refuse = [](const std::string& bytes, const char* named) {
    EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tokenizer_from(bytes); }), named));
  };
  refuse(pieces() + text(2, number(35, 1)) + normalizer(), "t.model: model_type UNIGRAM");
  refuse(pieces() + text(2, number(3, 2)) + normalizer(), "byte_fallback false");
  refuse(pieces() + text(2, number(3, 2) + number(35, 1) + number(24, 1)) + normalizer(), "treat_whitespace_as_suffix");
  refuse(pieces() + trainer() + text(3, text(1, "nmt_nfkc") + text(2, "rules") + number(4, 0)), "normalizer nmt_nfkc");
  refuse(pieces() + trainer() + text(3, number(3, 1)), "remove_extra_whitespaces");
  refuse(pieces() + trainer() + text(3, number(4, 0) + number(5, 0)), "escape_whitespaces false");
  refuse(pieces() + piece("zz", -8, 1) + trainer() + normalizer(), "\"zz\" with \"z\"");
  refuse(pieces() + piece("x", -8, 5) + trainer() + normalizer(), "\"x\" of type 5");
}

TEST(SentencePiece, SaysWhatIsBroken) {
  const auto broken = [](const std::string& bytes, const char* named) {
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { tokenizer_from(bytes); }), named));
  };
  const std::string good = pieces() + trainer() + normalizer();
  broken(good.substr(0, good.size() - 1), "t.model: neither a SentencePiece model");
  broken("hello", "neither");
  broken(std::string(11, '\xFF'), "neither");
  broken(trainer() + normalizer(), "without pieces");
  broken(good + piece("ab", 1, 1), "\"ab\" appears twice");
  broken(good + piece("\xFF", 1, 1), "piece 270");
  broken(good + piece("c", std::numeric_limits<float>::quiet_NaN(), 1), "twice");
  broken(good + piece("d", std::numeric_limits<float>::quiet_NaN(), 1), "not finite");
  broken(piece("▁", 0, 1) + trainer() + normalizer(), "no piece for byte 0");
}

}  // namespace
}  // namespace octet::data

#include "octet/data/tokenizer/hugging_face.h"

#include "data/files.h"
#include "data/tokenizer/definitions.h"

namespace octet::data {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(HuggingFace, ByteLevel) {
  const BpeTokenizer tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(tokenizer.vocab_size(), 265);
  // he 256, ll 257, hell 258, hello 259, " hello" 260, " w" 261, or 262.
  EXPECT_EQ(ids_of(tokenizer, "hello hello world"), (Ids{259, 260, 261, 262, 'l', 'd'}));
  EXPECT_EQ(ids_of(tokenizer, "ä"), (Ids{0xC3, 0xA4}));
  EXPECT_EQ(ids_of(tokenizer, "<|begin|>hello<|end|>"), (Ids{263, 259, 264}));
  EXPECT_EQ(Ids(tokenizer.prefix().begin(), tokenizer.prefix().end()), (Ids{263}));
  EXPECT_EQ(tokenizer.end_of_document(), std::nullopt);
}

TEST(HuggingFace, IgnoreMergesTakesWordsWhole) {
  Json json = byte_level_json({"l o", "h e"});
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  json["model"]["vocab"]["helo"] = 258;
  EXPECT_EQ(ids_of(tokenizer_of(json), "helo"), (Ids{258}));
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(ids_of(tokenizer_of(json), "helo"), (Ids{257, 256}));
}

TEST(HuggingFace, MergesAsPairsAndTheGpt2Pattern) {
  Json json = byte_level_json();
  for (Json& merge : json["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  EXPECT_EQ(ids_of(tokenizer_of(json), "hello hello\n"), (Ids{259, 260, '\n'}));
}

TEST(HuggingFace, NfcBeforeWordsAndNormalizedTokens) {
  Json json = byte_level_json({"Ã ©", "Ã© Ã©"});
  const int size = static_cast<int>(json["model"]["vocab"].size());
  json["added_tokens"].push_back(added_token("<e\u0301>", size + 2, true));
  json["added_tokens"].push_back(added_token("<|e\u0301|>", size + 3));
  EXPECT_EQ(ids_of(tokenizer_of(json), "e\u0301"), (Ids{'e', 0xCC, 0x81}));
  json["normalizer"] = {{"type", "NFC"}};
  const BpeTokenizer tokenizer = tokenizer_of(json);
  EXPECT_EQ(ids_of(tokenizer, "e\u0301é"), (Ids{257}));
  EXPECT_EQ(ids_of(tokenizer, "<é><e\u0301>"), (Ids{size + 2, size + 2}));           // compared in normalized form
  EXPECT_EQ(ids_of(tokenizer, "<|e\u0301|>e\u0301"), (Ids{size + 3, 256}));          // compared as it stands
  EXPECT_EQ(ids_of(tokenizer, "e<|end|>\u0301"), (Ids{'e', size + 1, 0xCC, 0x81}));  // nothing joins across a token
  EXPECT_EQ(text_of(tokenizer, ids_of(tokenizer, "e\u0301")), "é");
}

TEST(HuggingFace, BytesThatUtf8NeverHasNeedNoToken) {
  Json json = byte_level_json({});
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  for (const int byte : {0xC0, 0xC1, 0xF5, 0xFF})
    json["model"]["vocab"].erase(character_of_byte(static_cast<unsigned char>(byte)));
  EXPECT_EQ(ids_of(tokenizer_of(json), "\xC0\xFF"), (Ids{0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD}));
  json["model"]["vocab"].erase(character_of_byte(0xF4));
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tokenizer_of(json); }), "the token of byte 244"));
}

TEST(HuggingFace, MetaspaceInTheOldForm) {
  const BpeTokenizer tokenizer = tokenizer_of(metaspace_json());
  // ▁ 259, a 260, b 261, c 262, ab 263, ▁ab 264, abc 265, ▁▁ 266, ▁abc 267.
  EXPECT_EQ(ids_of(tokenizer, "abc ab"), (Ids{267, 264}));
  EXPECT_EQ(ids_of(tokenizer, " ab"), (Ids{259, 264}));  // gets one more space; "▁ ab" has the lower rank
  EXPECT_EQ(ids_of(tokenizer, "a  b"), (Ids{259, 260, 266, 261}));
  EXPECT_EQ(ids_of(tokenizer, "▁ab"), ids_of(tokenizer, " ab"));
  EXPECT_EQ(ids_of(tokenizer, "é"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(ids_of(tokenizer, "ab<s>ab"), (Ids{264, 1, 264}));  // every piece gets a space
  EXPECT_EQ(ids_of(tokenizer, "<0x41>")[1], 3 + '<');
}

TEST(HuggingFace, MetaspaceAsAPreTokenizer) {
  EXPECT_EQ(ids_of(tokenizer_of(metaspace_json("first", false)), "ab<s>ab  ab"), (Ids{264, 1, 263, 259, 264}));
  EXPECT_EQ(ids_of(tokenizer_of(metaspace_json("always", false)), "ab<s>ab"), (Ids{264, 1, 264}));
  EXPECT_EQ(ids_of(tokenizer_of(metaspace_json("never", false)), "ab<s>ab"), (Ids{263, 1, 263}));
  EXPECT_EQ(ids_of(tokenizer_of(metaspace_json("always", false)), " ab"), (Ids{264}));
  EXPECT_EQ(ids_of(tokenizer_of(metaspace_json("always", false)), "   "), (Ids{266, 259}));
  EXPECT_EQ(ids_of(tokenizer_of(metaspace_json("always", true)), "   "), (Ids{259, 259, 259}));
  Json older = metaspace_json("always", true);
  older["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", true}};
  EXPECT_EQ(ids_of(tokenizer_of(older), "ab"), (Ids{264}));
  older["pre_tokenizer"]["add_prefix_space"] = false;
  older["decoder"]["decoders"].erase(3);
  EXPECT_EQ(ids_of(tokenizer_of(older), "ab"), (Ids{263}));
}

TEST(HuggingFace, NormalizedTokensAreMetInNormalizedText) {
  Json json = metaspace_json();
  json["added_tokens"].push_back(added_token("<a b>", 268, true));
  const BpeTokenizer tokenizer = tokenizer_of(json);  // its normalized form is "▁<a▁b>"
  EXPECT_EQ(ids_of(tokenizer, "<a b>ab"), (Ids{268, 263}));
  EXPECT_EQ(ids_of(tokenizer, "ab <a b>"), (Ids{264, 268}));
  EXPECT_EQ(ids_of(tokenizer, "c<a b>").size(), 7u);  // without a space before it, it is text
  // The text after it gets no space. The text after a token that is matched before normalization gets one.
  EXPECT_EQ(ids_of(tokenizer, "<a b> ab"), (Ids{268, 264}));
  EXPECT_EQ(text_of(tokenizer, ids_of(tokenizer, "<a b> ab<s> ab")), "<a b> ab<s> ab");
}

TEST(HuggingFace, AnAddedTokenMayStandTwiceBehindTheVocabulary) {
  Json json = metaspace_json();
  constexpr int kFirst = 268, kCount = 20'000;
  for (int i = 0; i < kCount; ++i) json["added_tokens"].push_back(added_token(concat("<t", i, ">"), kFirst + i, true));
  json["added_tokens"].push_back(added_token(concat("<t", kCount - 1, ">"), kFirst + kCount - 1, true));
  EXPECT_EQ(ids_of(tokenizer_of(json), concat("<t", kCount - 1, ">")), (Ids{kFirst + kCount - 1}));
}

TEST(HuggingFace, ATemplateMayEndInOneToken) {
  Json json = metaspace_json();
  json["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}});
  json["post_processor"]["special_tokens"]["</s>"] = {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}};
  EXPECT_EQ(tokenizer_of(json).end_of_document(), 2);
  json["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}});
  error_of(ExitCode::config, [&] { tokenizer_of(json); });
}

// A change of one part, and the name that the refusal must contain.
struct Change {
  const char* pointer;
  Json value;
  const char* named;
};

void expect_refused(const Json& base, ExitCode code, const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    Json json = base;
    json[Json::json_pointer(change.pointer)] = change.value;
    const std::string error = error_of(code, [&] { tokenizer_of(json); });
    EXPECT_TRUE(contains(error, "t.json: ")) << change.pointer;
    EXPECT_TRUE(contains(error, change.named)) << change.pointer;
  }
}

TEST(HuggingFace, RefusesPartsByName) {
  expect_refused(byte_level_json(), ExitCode::config,
                 {{"/normalizer", {{"type", "NFKC"}}, "normalizer NFKC"},
                  {"/truncation", {{"max_length", 9}}, "truncation"},
                  {"/padding", {{"strategy", "BatchLongest"}}, "padding"},
                  {"/model/type", "WordPiece", "model WordPiece"},
                  {"/model/dropout", 0.1, "dropout"},
                  {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
                  {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
                  {"/model/byte_fallback", true, "byte_fallback true"},
                  {"/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer Whitespace"},
                  {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "a+", "split pattern a+"},
                  {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "behavior Removed"},
                  {"/pre_tokenizer/pretokenizers/0/invert", true, "invert true"},
                  {"/pre_tokenizer/pretokenizers/1/use_regex", true, "use_regex"},
                  {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "add_prefix_space true"},
                  {"/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}, "pre_tokenizer Digits"},
                  {"/post_processor/type", "BertProcessing", "post_processor BertProcessing"},
                  {"/added_tokens/0/lstrip", true, "\"<|begin|>\" with lstrip true"},
                  {"/added_tokens/0/rstrip", true, "rstrip"},
                  {"/added_tokens/0/single_word", true, "single_word"}});
  expect_refused(metaspace_json(), ExitCode::config,
                 {{"/normalizer/normalizers/0/prepend", "_", "Prepend"},
                  {"/normalizer/normalizers/1/content", "_", "Replace"},
                  {"/normalizer/normalizers/2", {{"type", "NFC"}}, "normalizer NFC"},
                  {"/normalizer", nullptr, "without pre_tokenizer"},
                  {"/model/byte_fallback", false, "byte_fallback false"}});
  expect_refused(
      metaspace_json("first", true), ExitCode::config,
      {{"/pre_tokenizer/replacement", "_", "replacement"}, {"/pre_tokenizer/prepend_scheme", "last", "prepend_scheme last"}});
  Json json = metaspace_json();
  json["model"]["vocab"].erase("<0x0A>");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tokenizer_of(json); }), "\"<0x0A>\", the token of byte 10"));
  json = metaspace_json();
  json["model"]["vocab"]["<0x41>a"] = json["model"]["vocab"].size();
  json["model"]["merges"].push_back("<0x41> a");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tokenizer_of(json); }), "merge 5 of a token of byte_fallback"));
}

TEST(HuggingFace, RefusesDecodersThatGiveOtherTexts) {
  expect_refused(byte_level_json(), ExitCode::config,
                 {{"/decoder", nullptr, "a tokenizer without decoder"},
                  {"/decoder/type", "WordPiece", "decoder WordPiece in the place of ByteLevel"},
                  {"/decoder",
                   {{"type", "Sequence"}, {"decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}}},
                   "decoder Fuse after ByteLevel"}});
  expect_refused(metaspace_json(), ExitCode::config,
                 {{"/decoder", nullptr, "a tokenizer without decoder"},
                  {"/decoder", {{"type", "Metaspace"}, {"replacement", "▁"}}, "decoder Metaspace in the place of Replace"},
                  {"/decoder/decoders/0/type", "ByteLevel", "decoder ByteLevel in the place of Replace"},
                  {"/decoder/decoders/0/pattern/String", "a", "decoder Replace with pattern {\"String\":\"a\"}"},
                  {"/decoder/decoders/0/content", "_", "decoder Replace with content \"_\""},
                  {"/decoder/decoders/1/type", "Fuse", "decoder Fuse in the place of ByteFallback"},
                  {"/decoder/decoders/3/content", "a", "decoder Strip with content \"a\""},
                  {"/decoder/decoders/3/start", 2, "decoder Strip with start 2"},
                  {"/decoder/decoders/3/stop", 1, "decoder Strip with stop 1"},
                  {"/decoder/decoders/4", {{"type", "Fuse"}}, "decoder Fuse after Strip"}});
  Json json = metaspace_json();
  json["decoder"]["decoders"].erase(3);
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tokenizer_of(json); }), "t.json: a decoder without Strip is"));
  json = metaspace_json("never", true);
  json["decoder"]["decoders"].push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { tokenizer_of(json); }), "t.json: decoder Strip after Fuse is"));
}

TEST(HuggingFace, RefusesOtherVersionsAndMembers) {
  expect_refused(
      byte_level_json(), ExitCode::config,
      {{"/version", "2.0", "version \"2.0\""}, {"/version", 1.0, "version 1.0"}, {"/decoders", nullptr, "member \"decoders\""}});
  Json json = byte_level_json();
  json.erase("version");
  EXPECT_EQ(ids_of(tokenizer_of(json), "hello"), (Ids{259}));
}

TEST(HuggingFace, SaysWhatIsBroken) {
  expect_refused(byte_level_json(), ExitCode::data,
                 {{"/model/vocab", Json::array(), "vocab"},
                  {"/model/vocab/a", -1, "vocab"},
                  {"/model/vocab/a", 98, "two tokens have id 98"},
                  {"/model/vocab/a", 1 << 22, "vocab"},
                  {"/model/merges", nullptr, "merges"},
                  {"/model/merges/1", "ll", "merge 1"},
                  {"/model/merges/1", "l l l", "merge 1"},
                  {"/model/merges/2", "x y", "merge 2: \"xy\""},
                  {"/model/merges/3", {"a", 4}, "merge 3"},
                  {"/added_tokens/1/id", 300, "its id is 300, but by its place it is 264"},
                  {"/added_tokens/1/content", 3, "content"},
                  {"/post_processor/single", nullptr, "single"},
                  {"/post_processor/special_tokens", Json::object(), "special token"},
                  {"/post_processor/special_tokens/<|begin|>/ids/0", 9999, "no token has id 9999"},
                  {"/pre_tokenizer", "x", "pre_tokenizer"}});
  const auto refusal = [](const std::string& text) {
    return error_of(ExitCode::data, [&] { read_hugging_face(text, "t.json"); });
  };
  EXPECT_EQ(refusal("[]"), "t.json: not a JSON object");
  for (const char* text : {"", "{", "{\"model\": \"\xFF\"}"}) {
    EXPECT_TRUE(contains(refusal(text), "t.json: line 1, column "));
    EXPECT_TRUE(contains(refusal(text), ": not valid JSON: "));
  }
  const std::string deep = "{\"model\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_EQ(refusal(deep), "t.json: line 1, column 74: nested deeper than 64 levels");
}

}  // namespace
}  // namespace octet::data

// Small tokenizer.json files, built in code so that a test can change any part of them.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/data/tokenizer/byte_characters.h"
#include "octet/data/tokenizer/hugging_face.h"
#include "octet/data/tokenizer/split_pattern.h"

namespace octet::data {

inline Json added_token(const std::string& content, int id, bool normalized = false) {
  return {{"id", id},        {"content", content},       {"single_word", false},  {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"special", !normalized}};
}

// Adds the merges "l r" in this order, and adds their results to the vocabulary.
inline void add_merges(Json& json, const std::vector<std::string>& merges) {
  Json& vocabulary = json["model"]["vocab"];
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    const std::string result = merge.substr(0, space) + merge.substr(space + 1);
    if (!vocabulary.contains(result)) vocabulary[result] = vocabulary.size();
    json["model"]["merges"].push_back(merge);
  }
}

inline Json template_with(const std::string& token, int id) {
  return {{"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", token}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
          {"special_tokens", {{token, {{"id", token}, {"ids", {id}}, {"tokens", {token}}}}}}};
}

// The ids are the bytes 0 to 255, then the merges, then <|begin|> and <|end|>.
inline Json byte_level_json(const std::vector<std::string>& merges = {"h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ w", "o r"}) {
  Json json = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", Json::array()},
               {"normalizer", nullptr}};
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", SplitPattern::llama3()}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}};
  json["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  json["model"] = {{"type", "BPE"},         {"dropout", nullptr},      {"unk_token", nullptr},   {"byte_fallback", false},
                   {"ignore_merges", true}, {"vocab", Json::object()}, {"merges", Json::array()}};
  for (int byte = 0; byte < 256; ++byte) json["model"]["vocab"][character_of_byte(static_cast<unsigned char>(byte))] = byte;
  add_merges(json, merges);
  const int size = static_cast<int>(json["model"]["vocab"].size());
  json["added_tokens"] = {added_token("<|begin|>", size), added_token("<|end|>", size + 1)};
  json["post_processor"] = template_with("<|begin|>", size);
  return json;
}

// The ids are <unk>, <s>, </s>, the 256 byte tokens (byte + 3), the characters "▁abc" (259 to 262), then the merges. Uses the old
// form, which has a normalizer.
inline Json metaspace_json(const std::vector<std::string>& merges = {"a b", "▁ ab", "ab c", "▁ ▁", "▁ab c"}) {
  Json json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"pre_tokenizer", nullptr}};
  json["added_tokens"] = {added_token("<unk>", 0), added_token("<s>", 1), added_token("</s>", 2)};
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "▁"}}, {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};
  json["post_processor"] = template_with("<s>", 1);
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  json["model"] = {{"type", "BPE"},
                   {"unk_token", "<unk>"},
                   {"fuse_unk", true},
                   {"byte_fallback", true},
                   {"vocab", {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}},
                   {"merges", Json::array()}};
  for (int byte = 0; byte < 256; ++byte) json["model"]["vocab"][byte_token(static_cast<unsigned char>(byte))] = byte + 3;
  for (const char* character : {"▁", "a", "b", "c"}) json["model"]["vocab"][character] = json["model"]["vocab"].size();
  add_merges(json, merges);
  return json;
}

// The same tokenizer in the newer form, which has a pre-tokenizer.
inline Json metaspace_json(const std::string& scheme, bool split) {
  Json json = metaspace_json();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
  if (scheme == "never") json["decoder"]["decoders"].erase(3);  // this scheme puts nothing before a text
  return json;
}

inline BpeTokenizer tokenizer_of(const Json& json) {
  return BpeTokenizer(read_hugging_face(json.dump(), "t.json"), "t", "0000000000000000");
}

inline std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

inline std::string text_of(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string text;
  tokenizer.decode(ids, text);
  return text;
}

}  // namespace octet::data

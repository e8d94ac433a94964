#include "octet/data/tokenizer/hugging_face.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "octet/base/require.h"
#include "octet/data/tokenizer/byte_characters.h"
#include "octet/data/tokenizer/nfc.h"
#include "octet/data/tokenizer/tokenizer_json.h"

namespace octet::data {
namespace {

class Reader : TokenizerJson {
 public:
  Reader(std::string_view json, const std::string& file) : TokenizerJson(json, file) { definition_.file = file; }

  BpeDefinition read() {
    check_members();
    for (const char* part : {"truncation", "padding"}) {
      if (!member(root(), part).is_null()) refuse(part);
    }
    read_pipeline();
    read_vocabulary();
    read_merges();
    read_byte_ids();
    read_added();
    read_template();
    check_decoder();
    definition_.pieces.resize(static_cast<std::size_t>(largest_) + 1);
    return std::move(definition_);
  }

 private:
  // Refuses unknown members. Hugging Face's library does the same.
  void check_members() const {
    constexpr std::array<std::string_view, 9> kKnown = {
        "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"};
    for (const auto& [key, value] : root().items()) {
      if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) refuse(concat("member \"", key, "\""));
      if (key == "version" && value != "1.0") refuse("version " + value.dump());
    }
  }

  void read_pipeline() {
    const std::vector<Part> normalizers = parts("normalizer", "normalizers");
    const std::vector<Part> pre = parts("pre_tokenizer", "pretokenizers");
    std::size_t used_normalizers = 0, used = 0;
    if (pre.empty()) {
      definition_.metaspace.space = Metaspace::Space::never;
      if (used_normalizers < normalizers.size() && normalizers[0].type == "Prepend") {
        if (text(*normalizers[0].json, "prepend", normalizers[0].name) != kSpaceMark)
          refuse("normalizer Prepend of other than \"▁\"");
        definition_.metaspace.space = Metaspace::Space::doubled;
        ++used_normalizers;
      }
      if (used_normalizers < normalizers.size() && normalizers[used_normalizers].type == "Replace") {
        const Json& replace = *normalizers[used_normalizers].json;
        const Json& pattern = member(replace, "pattern");
        if (!pattern.is_object() || member(pattern, "String") != " " || member(replace, "content") != kSpaceMark) {
          refuse("normalizer Replace of other than \" \" by \"▁\"");
        }
        ++used_normalizers;
        metaspace_ = true;
      }
    } else if (pre[0].type == "Metaspace") {
      read_metaspace(pre[0]);
      used = 1;
    } else {
      if (!normalizers.empty() && normalizers[0].type == "NFC") {
        definition_.normalizer = BpeDefinition::Normalizer::nfc;
        used_normalizers = 1;
      }
      if (pre[0].type == "Split") {
        read_split(pre[0]);
        used = 1;
      }
      if (used < pre.size() && pre[used].type == "ByteLevel") {
        const Part& part = pre[used];
        expect(*part.json, "add_prefix_space", false, true, part.name);
        const bool own = flag(*part.json, "use_regex", true, part.name);
        if (own == !definition_.pattern.empty()) refuse(concat(part.name, " with use_regex ", own, " after ", used, " Split"));
        if (own) definition_.pattern = SplitPattern::gpt2();
        ++used;
      } else if (used == pre.size()) {
        refuse("pre_tokenizer Split without ByteLevel");
      }
    }
    if (used < pre.size()) refuse(pre[used].name);
    if (used_normalizers < normalizers.size()) refuse(normalizers[used_normalizers].name);
    if (!metaspace_ && definition_.pattern.empty()) refuse("a tokenizer without pre_tokenizer and without normalizer Replace");
  }

  void read_metaspace(const Part& part) {
    const Json& json = *part.json;
    if (text(json, "replacement", part.name) != kSpaceMark) refuse("pre_tokenizer Metaspace with a replacement other than \"▁\"");
    const std::string scheme = member(json, "prepend_scheme").is_null() ? "" : text(json, "prepend_scheme", part.name);
    const bool prefix = flag(json, "add_prefix_space", scheme != "never", part.name);  // the name in older versions
    if (!prefix && scheme != "never" && !scheme.empty()) refuse(concat(part.name, " with add_prefix_space false and ", scheme));
    if (!prefix || scheme == "never") {
      definition_.metaspace.space = Metaspace::Space::never;
    } else if (scheme == "first") {
      definition_.metaspace.space = Metaspace::Space::first;
    } else if (scheme == "always" || scheme.empty()) {
      definition_.metaspace.space = Metaspace::Space::always;
    } else {
      refuse(concat(part.name, " with prepend_scheme ", scheme));
    }
    definition_.metaspace.words = flag(json, "split", true, part.name) ? Metaspace::Words::spaced : Metaspace::Words::whole;
    metaspace_ = true;
  }

  void read_split(const Part& part) {
    const Json& json = *part.json;
    const Json& pattern = member(json, "pattern");
    if (!pattern.is_object() || !member(pattern, "Regex").is_string()) refuse(concat(part.name, " by other than a Regex"));
    const std::string behavior = text(json, "behavior", part.name);
    if (behavior != "Isolated") refuse(concat(part.name, " with behavior ", behavior));
    expect(json, "invert", false, false, part.name);
    definition_.pattern = member(pattern, "Regex").get<std::string>();
  }

  // Records `bytes` as the piece of `id`.
  void put_piece(std::int32_t id, std::string bytes) {
    largest_ = std::max(largest_, id);
    if (definition_.pieces.size() <= static_cast<std::size_t>(id)) {
      definition_.pieces.resize(std::max(static_cast<std::size_t>(id) + 1, 2 * definition_.pieces.size()));
    }
    definition_.pieces[static_cast<std::size_t>(id)] = std::move(bytes);
  }

  void read_vocabulary() {
    const Json& model = member(root(), "model");
    if (!model.is_object()) broken("\"model\" must be an object");
    const std::string type = text(model, "type", "model");
    if (type != "BPE") refuse("model " + type);
    if (const Json& dropout = member(model, "dropout"); !dropout.is_null() && dropout != 0.0) refuse("model with dropout");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const Json& affix = member(model, key); !affix.is_null() && affix != "") refuse(concat("model with ", key));
    }
    expect(model, "byte_fallback", metaspace_, false, metaspace_ ? "a metaspace model" : "a byte-level model");
    definition_.model.whole_words = flag(model, "ignore_merges", false, "model");
    definition_.model.symbols = metaspace_ ? BpeModel::Symbols::characters : BpeModel::Symbols::bytes;
    const Json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_object() || vocabulary.empty()) broken("model: \"vocab\" must be an object with tokens");
    ids_.reserve(vocabulary.size());
    std::vector<bool> seen;
    for (const auto& [token, value] : vocabulary.items()) {
      const std::int32_t token_id = id(value, "vocab");
      if (seen.size() <= static_cast<std::size_t>(token_id)) seen.resize(2 * static_cast<std::size_t>(token_id) + 1);
      if (seen[static_cast<std::size_t>(token_id)]) broken(concat("vocab: two tokens have id ", token_id));
      seen[static_cast<std::size_t>(token_id)] = true;
      ids_.emplace(token, token_id);
      // Leaves out tokens that cannot occur: the text was mapped to byte characters, or its spaces were replaced by "▁".
      std::optional<std::string> word;
      if (!metaspace_) {
        word = bytes_of_characters(token);
      } else if (token.find(' ') == std::string::npos) {
        word = spaced(token);
      }
      put_piece(token_id, word.value_or(token));
      if (word && !word->empty()) definition_.model.vocabulary.emplace_back(*std::move(word), token_id);
    }
  }

  std::int32_t merged(const std::string& token, std::size_t rank) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) broken(concat("merge ", rank, ": \"", token, "\" is not in the vocabulary"));
    return found->second;
  }

  void read_merges() {
    const Json& merges = member(member(root(), "model"), "merges");
    if (!merges.is_array()) broken("model: \"merges\" must be an array");
    definition_.model.merges.reserve(merges.size());
    for (const Json& merge : merges) {
      const std::size_t rank = definition_.model.merges.size();
      std::string left, right;
      if (merge.is_string()) {
        const auto& both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
          broken(concat("merge ", rank, ": two tokens with a space between are needed"));
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else {
        if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
          broken(concat("merge ", rank, ": two tokens are needed"));
        }
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      definition_.model.merges.push_back(
          {merged(left, rank), merged(right, rank), static_cast<std::int32_t>(rank), merged(left + right, rank)});
    }
  }

  // Demands a token for every byte that occurs in UTF-8. Without it, Hugging Face's library would drop characters or give an
  // unknown token. GPT-NeoX has no tokens for the bytes that never occur.
  void read_byte_ids() {
    is_byte_.resize(definition_.pieces.size());
    definition_.model.byte_ids.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token =
          metaspace_ ? byte_token(static_cast<unsigned char>(byte)) : character_of_byte(static_cast<unsigned char>(byte));
      const auto found = ids_.find(token);
      const bool occurs = metaspace_ || !(byte == 0xC0 || byte == 0xC1 || byte > 0xF4);
      if (found == ids_.end() && !occurs) continue;
      if (found == ids_.end()) refuse(concat("a vocabulary without \"", token, "\", the token of byte ", byte));
      definition_.model.byte_ids[static_cast<std::size_t>(byte)] = found->second;
      is_byte_[static_cast<std::size_t>(found->second)] = true;
      put_piece(found->second, std::string(1, static_cast<char>(byte)));
    }
    if (!metaspace_) return;
    if (ids_.find(std::string(kSpaceMark)) == ids_.end()) refuse("a metaspace vocabulary without \"▁\"");
    for (const BpeMerge& merge : definition_.model.merges) {
      if (is_byte_[static_cast<std::size_t>(merge.left)] || is_byte_[static_cast<std::size_t>(merge.right)]) {
        refuse(concat("merge ", merge.rank, " of a token of byte_fallback"));
      }
    }
  }

  void read_added() {
    const Json& added = member(root(), "added_tokens");
    if (added.is_null()) return;
    if (!added.is_array()) broken("\"added_tokens\" must be an array");
    const auto vocabulary = static_cast<std::int32_t>(ids_.size());
    std::int32_t largest = -1;
    for (const Json& token : added) {
      if (!token.is_object()) broken("added_tokens: a token must be an object");
      const std::string content = text(token, "content", "added_tokens");
      const std::string where = "added token \"" + content + "\"";
      for (const char* key : {"single_word", "lstrip", "rstrip"}) expect(token, key, false, false, where);
      if (content.empty()) continue;  // Hugging Face's library skips it
      const std::int32_t token_id = id(member(token, "id"), where);
      // Hugging Face's library numbers added tokens itself and ignores "id", so the two must agree.
      const auto known = ids_.find(content);
      const std::int32_t given = known != ids_.end() ? known->second : std::max(vocabulary, largest + 1);
      if (token_id != given) broken(concat(where, ": its id is ", token_id, ", but by its place it is ", given));
      const auto at = static_cast<std::size_t>(token_id);  // may be outside the vocabulary
      if (metaspace_ && known != ids_.end() && at < is_byte_.size() && is_byte_[at]) refuse(where + ", which stands for a byte,");
      largest = std::max(largest, token_id);
      ids_.emplace(content, token_id);
      put_piece(token_id, content);
      const bool special = flag(token, "special", false, where);
      if (!flag(token, "normalized", !special, where)) {
        definition_.added.push_back({content, token_id});
      } else if (metaspace_ && definition_.metaspace.space == Metaspace::Space::doubled) {
        definition_.normalized.push_back({" " + spaced(content), token_id});  // the normalizer changes its text too
      } else if (metaspace_ && spaced(content).find(' ') != std::string::npos) {
        refuse(where + " with normalized true and a space");
      } else if (definition_.normalizer == BpeDefinition::Normalizer::nfc) {
        std::string buffer;
        definition_.normalized.push_back({std::string(nfc(content, buffer)), token_id});
      } else {
        definition_.normalized.push_back({content, token_id});
      }
    }
  }

  void read_template() {
    bool found = false;
    for (const Part& part : parts("post_processor", "processors")) {
      if (part.type == "ByteLevel") continue;  // changes offsets, not ids
      if (part.type != "TemplateProcessing" || found) refuse(part.name);
      found = true;
      const Json& pieces = member(*part.json, "single");
      const Json& specials = member(*part.json, "special_tokens");
      if (!pieces.is_array() || !specials.is_object()) broken(part.name + ": \"single\" and \"special_tokens\" are needed");
      std::vector<std::int32_t> around[2];
      int texts = 0;
      for (const Json& piece : pieces) {
        if (piece.is_object() && piece.contains("Sequence")) {
          if (++texts > 1) refuse(part.name + " with the text twice");
          continue;
        }
        const Json& special = piece.is_object() ? member(piece, "SpecialToken") : piece;
        if (!special.is_object()) broken(part.name + ": neither Sequence nor SpecialToken");
        const Json& token = member(specials, text(special, "id", part.name).c_str());
        if (!token.is_object() || !member(token, "ids").is_array()) broken(part.name + ": a special token without ids");
        for (const Json& value : member(token, "ids")) {
          around[texts].push_back(id(value, part.name));
          if (around[texts].back() > largest_) broken(concat(part.name, ": no token has id ", around[texts].back()));
        }
      }
      if (texts == 0 || around[1].size() > 1) refuse(part.name + " other than tokens, the text and at most one token");
      definition_.prefix = around[0];
      if (!around[1].empty()) definition_.end_of_document = around[1][0];
    }
  }

  // decode() depends only on the kind of the tokenizer. Refuses a file whose decoder steps differ from it.
  void check_decoder() const {
    Json wanted = Json::array({{{"type", "ByteLevel"}}});  // its other members do not affect decoding
    if (metaspace_) {
      wanted = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                            {{"type", "ByteFallback"}},
                            {{"type", "Fuse"}}});
      if (definition_.metaspace.space != Metaspace::Space::never)
        wanted.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    const std::vector<Part> steps = parts("decoder", "decoders");
    if (steps.empty()) refuse("a tokenizer without decoder");
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (i == wanted.size()) refuse(concat(steps[i].name, " after ", steps[i - 1].type));
      const auto type = wanted[i]["type"].get<std::string>();
      if (steps[i].type != type) refuse(concat(steps[i].name, " in the place of ", type));
      for (const auto& [key, value] : wanted[i].items()) {
        const Json& given = member(*steps[i].json, key.c_str());
        if (given != value) refuse(concat(steps[i].name, " with ", key, " ", given.dump()));
      }
    }
    if (steps.size() < wanted.size()) refuse(concat("a decoder without ", wanted[steps.size()]["type"].get<std::string>()));
  }

  BpeDefinition definition_;
  bool metaspace_ = false;
  std::int32_t largest_ = 0;                           // largest id so far
  std::vector<bool> is_byte_;                          // is_byte_[id]: the token stands for a byte (byte fallback)
  std::unordered_map<std::string, std::int32_t> ids_;  // id of each token, with the token spelled as in the file
};

}  // namespace

BpeDefinition read_hugging_face(std::string_view json, const std::string& file) { return Reader(json, file).read(); }

}  // namespace octet::data

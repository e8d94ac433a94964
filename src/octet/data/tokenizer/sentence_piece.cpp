#include "octet/data/tokenizer/sentence_piece.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "octet/base/require.h"
#include "octet/base/visible.h"
#include "octet/data/tokenizer/byte_characters.h"
#include "octet/data/tokenizer/ranked_merges.h"
#include "octet/data/tokenizer/utf8.h"

namespace octet::data {
namespace {

// Iterates over the fields of a Protocol Buffers message.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& file) : rest_(bytes), file_(file) {}

  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;  // if the field is a varint, or four or eight fixed bytes
    std::string_view bytes;   // if the field is a string or a message
  };
  std::optional<Field> next() {
    if (rest_.empty()) return std::nullopt;
    const std::uint64_t tag = varint();
    Field field{.number = tag >> 3};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        broken();
    }
    return field;
  }

 private:
  [[noreturn]] void broken() const {
    fail(ExitCode::data, file_, ": neither a SentencePiece model nor ranks as tiktoken writes them");
  }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) broken();
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  std::uint64_t fixed(std::size_t count) {
    std::uint64_t value = 0;
    std::memcpy(&value, take(count).data(), count);  // the message and the machine are little endian
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    broken();
  }

  std::string_view rest_;
  const std::string& file_;
};

enum class Kind : std::uint64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Piece {
  std::string text;
  float score = 0;
  Kind kind = Kind::normal;
};

// The fields that Octet reads, with the defaults of sentencepiece_model.proto.
struct Model {
  std::vector<Piece> pieces;
  std::uint64_t type = 1;
  bool byte_fallback = false, space_behind = false;
  std::int32_t bos = 1, eos = 2;
  std::string normalizer;
  bool has_rules = false, space_before = true, squeezes_spaces = true, escapes_spaces = true;
};

Model parse(std::string_view bytes, const std::string& file) {
  Model model;
  const auto inside = [&](std::string_view message, const auto& visit) {
    Fields fields(message, file);
    while (const auto field = fields.next()) visit(*field);
  };
  inside(bytes, [&](const Fields::Field& part) {
    if (part.number == 1) {
      Piece& piece = model.pieces.emplace_back();
      inside(part.bytes, [&](const Fields::Field& field) {
        if (field.number == 1) piece.text = field.bytes;
        if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
        if (field.number == 3) piece.kind = static_cast<Kind>(field.value);
      });
    } else if (part.number == 2) {  // trainer_spec
      inside(part.bytes, [&](const Fields::Field& field) {
        if (field.number == 3) model.type = field.value;
        if (field.number == 24) model.space_behind = field.value != 0;
        if (field.number == 35) model.byte_fallback = field.value != 0;
        if (field.number == 41) model.bos = static_cast<std::int32_t>(field.value);
        if (field.number == 42) model.eos = static_cast<std::int32_t>(field.value);
      });
    } else if (part.number == 3) {  // normalizer_spec
      inside(part.bytes, [&](const Fields::Field& field) {
        if (field.number == 1) model.normalizer = field.bytes;
        if (field.number == 2) model.has_rules = !field.bytes.empty();
        if (field.number == 3) model.space_before = field.value != 0;
        if (field.number == 4) model.squeezes_spaces = field.value != 0;
        if (field.number == 5) model.escapes_spaces = field.value != 0;
      });
    }
  });
  return model;
}

void refuse_unsupported(const Model& model, const std::string& file) {
  const auto refuse = [&](bool wrong, const std::string& part) {
    demand(!wrong, ExitCode::config, file, ": ", part, " is not supported");
  };
  refuse(model.type != 2, concat("model_type ", model.type == 1 ? "UNIGRAM" : model.type == 3 ? "WORD" : "CHAR"));
  refuse(!model.byte_fallback, "byte_fallback false");
  refuse(model.space_behind, "treat_whitespace_as_suffix");
  refuse(model.has_rules, concat("normalizer ", printable(model.normalizer)));
  refuse(model.squeezes_spaces, "remove_extra_whitespaces");
  refuse(!model.escapes_spaces, "escape_whitespaces false");
}

std::optional<std::int32_t> control(const Model& model, std::int32_t id) {
  if (id < 0 || static_cast<std::size_t>(id) >= model.pieces.size()) return std::nullopt;
  return model.pieces[static_cast<std::size_t>(id)].kind == Kind::control ? std::optional(id) : std::nullopt;
}

}  // namespace

BpeDefinition read_sentence_piece(std::string_view bytes, const std::string& file) {
  const Model model = parse(bytes, file);
  demand(!model.pieces.empty() && model.pieces.size() < INT32_MAX, ExitCode::data, file,
         ": a SentencePiece model without pieces");
  refuse_unsupported(model, file);

  BpeDefinition definition;
  definition.file = file;
  definition.metaspace = {.space = model.space_before ? Metaspace::Space::doubled : Metaspace::Space::never,
                          .words = Metaspace::Words::whole};
  definition.model.symbols = BpeModel::Symbols::characters;
  definition.model.byte_ids.fill(-1);
  std::vector<float> scores;
  std::unordered_set<std::string_view> seen;
  for (const Piece& piece : model.pieces) {
    demand(!piece.text.empty() && piece.text.size() <= kLongestRanked && valid_utf8(piece.text) == piece.text.size(),
           ExitCode::data, file, ": piece ", definition.pieces.size(), " is empty, too long or not UTF-8");
    demand(seen.insert(piece.text).second, ExitCode::data, file, ": piece \"", printable(piece.text), "\" appears twice");
    const auto id = static_cast<std::int32_t>(definition.pieces.size());
    definition.pieces.push_back(piece.text);
    switch (piece.kind) {
      case Kind::normal:
        demand(std::isfinite(piece.score), ExitCode::data, file, ": the score of piece \"", printable(piece.text),
               "\" is not finite");
        definition.pieces.back() = spaced(piece.text);
        if (piece.text.find(' ') != std::string::npos) break;  // cannot occur, because every space of a text becomes "▁"
        definition.model.vocabulary.emplace_back(definition.pieces.back(), id);
        scores.push_back(piece.score);
        break;
      case Kind::user_defined:
        definition.pieces.back() = spaced(piece.text);
        if (piece.text.find(' ') == std::string::npos) definition.normalized.push_back({definition.pieces.back(), id});
        break;
      case Kind::byte:
        for (int byte = 0; byte < 256; ++byte) {
          if (piece.text != byte_token(static_cast<unsigned char>(byte))) continue;
          definition.model.byte_ids[static_cast<std::size_t>(byte)] = id;
          definition.pieces.back() = std::string(1, static_cast<char>(byte));
        }
        break;
      case Kind::unknown:
      case Kind::control:
        break;
      default:
        fail(ExitCode::config, file, ": piece \"", printable(piece.text), "\" of type ", static_cast<std::uint64_t>(piece.kind),
             " is not supported");
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    demand(definition.model.byte_ids[static_cast<std::size_t>(byte)] >= 0, ExitCode::data, file, ": no piece for byte ", byte);
  }

  std::vector<float> order = scores;
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<RankedToken> tokens;
  std::unordered_set<std::string_view> texts;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto& [text, id] = definition.model.vocabulary[i];
    const auto place = std::lower_bound(order.begin(), order.end(), scores[i], std::greater<>());
    tokens.push_back({text, id, static_cast<std::int32_t>(place - order.begin())});
    texts.insert(text);
  }
  demand(texts.count(" ") > 0, ExitCode::config, file, ": a vocabulary without \"▁\" is not supported");
  // Every character of a piece must be a piece: SentencePiece can join symbols that are not pieces themselves, Bpe cannot.
  for (const RankedToken& token : tokens) {
    for (std::size_t at = 0; at < token.text.size();) {
      const std::size_t length = utf8_char(token.text, at).bytes;
      const std::string_view character = std::string_view(token.text).substr(at, length);
      demand(texts.count(character) > 0, ExitCode::config, file, ": piece \"", printable(token.text), "\" with \"",
             printable(character), "\", which is not a piece, is not supported");
      at += length;
    }
  }
  definition.model.merges = ranked_merges(tokens);
  if (const auto bos = control(model, model.bos)) definition.prefix = {*bos};
  definition.end_of_document = control(model, model.eos);
  return definition;
}

}  // namespace octet::data

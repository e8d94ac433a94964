#include "octet/data/tokenizer/tiktoken.h"

#include <charconv>
#include <optional>

#include "octet/base/require.h"
#include "octet/data/tokenizer/ranked_merges.h"

namespace octet::data {
namespace {

constexpr int kSpecialTokens = 256;
constexpr std::int32_t kRanksOfLlama3 = 128'000;

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Decodes base64 in whole groups of four characters, padded with "=". Returns nothing for any other text.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.back() != '=' ? 0 : text[text.size() - 2] != '=' ? 1 : 2;
  std::string bytes;
  unsigned bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = i + padding >= text.size() ? 0 : base64_digit(text[i]);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<unsigned>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xFF));
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

struct Line {
  std::string token;
  std::int32_t rank;
};

std::optional<Line> parse_line(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  auto token = from_base64(line.substr(0, space));
  std::int32_t rank = -1;
  const char* end = line.data() + line.size();
  const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
  if (!token || token->empty() || parsed.ec != std::errc() || parsed.ptr != end || rank < 0) return std::nullopt;
  return Line{*std::move(token), rank};
}

std::string special_name(int i) {
  constexpr std::array<std::string_view, 10> kFirst = {"<|begin_of_text|>",
                                                       "<|end_of_text|>",
                                                       "<|reserved_special_token_0|>",
                                                       "<|reserved_special_token_1|>",
                                                       "<|reserved_special_token_2|>",
                                                       "<|reserved_special_token_3|>",
                                                       "<|start_header_id|>",
                                                       "<|end_header_id|>",
                                                       "<|reserved_special_token_4|>",
                                                       "<|eot_id|>"};
  if (i < static_cast<int>(kFirst.size())) return std::string(kFirst[static_cast<std::size_t>(i)]);
  return concat("<|reserved_special_token_", i - 5, "|>");
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) { return parse_line(bytes.substr(0, bytes.find('\n'))).has_value(); }

BpeDefinition read_tiktoken(std::string_view bytes, const std::string& file) {
  std::vector<RankedToken> tokens;
  for (std::size_t line = 1; !bytes.empty(); ++line) {
    const std::size_t newline = bytes.find('\n');
    const std::string_view text = bytes.substr(0, newline);
    bytes.remove_prefix(newline == std::string_view::npos ? bytes.size() : newline + 1);
    if (text.empty()) continue;
    auto parsed = parse_line(text);
    demand(parsed.has_value(), ExitCode::data, file, ":", line, ": neither a token in base64 nor its rank");
    demand(parsed->token.size() <= kLongestRanked, ExitCode::data, file, ":", line, ": a token of ", parsed->token.size(),
           " bytes");
    tokens.push_back({std::move(parsed->token), parsed->rank, parsed->rank});
  }
  const auto count = static_cast<std::int32_t>(tokens.size());
  // The file does not name its split pattern; the number of ranks is the only sign of another tokenizer.
  demand(count <= kRanksOfLlama3, ExitCode::config, file, ": ", count, " ranks are not supported: Llama 3 has ", kRanksOfLlama3,
         ", and tokenizers with more (Llama 4, Qwen) split words in another way");
  BpeDefinition definition;
  definition.file = file;
  definition.pattern = SplitPattern::llama3();
  definition.pieces.resize(tokens.size());
  definition.model.byte_ids.fill(-1);
  definition.model.whole_words = true;
  for (const RankedToken& token : tokens) {
    demand(token.id < count, ExitCode::data, file, ": rank ", token.id, " among ", count, " tokens");
    std::string& piece = definition.pieces[static_cast<std::size_t>(token.id)];
    demand(piece.empty(), ExitCode::data, file, ": rank ", token.id, " appears twice");
    piece = token.text;
    definition.model.vocabulary.emplace_back(token.text, token.id);
    if (token.text.size() == 1) definition.model.byte_ids[static_cast<unsigned char>(token.text[0])] = token.id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    demand(definition.model.byte_ids[static_cast<std::size_t>(byte)] >= 0, ExitCode::data, file, ": no token for byte ", byte);
  }
  definition.model.merges = ranked_merges(tokens);
  for (int i = 0; i < kSpecialTokens; ++i) definition.pieces.push_back(special_name(i));
  definition.prefix = {count};
  definition.end_of_document = count + 1;
  return definition;
}

}  // namespace octet::data

#include <array>
#include <filesystem>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/data/tokenizer/byte.h"
#include "octet/data/tokenizer/files.h"
#include "octet/data/tokenizer/hugging_face.h"
#include "octet/data/tokenizer/sentence_piece.h"
#include "octet/data/tokenizer/special_tokens.h"
#include "octet/data/tokenizer/tiktoken.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {
namespace {

struct Builtin {
  const char* name;
  std::unique_ptr<Tokenizer> (*make)();
};
// The tokenizers that need no file.
constexpr std::array<Builtin, 1> kBuiltins = {{
    {"byte", [] { return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>()); }},
}};

std::unique_ptr<Tokenizer> find_builtin(std::string_view name) {
  for (const Builtin& builtin : kBuiltins) {
    if (name == builtin.name) return builtin.make();
  }
  return nullptr;
}

std::vector<std::string> builtin_names() {
  std::vector<std::string> names;
  for (const Builtin& builtin : kBuiltins) names.emplace_back(builtin.name);
  return names;
}

// The tokenizer that a config.json names under "tokenizer", or null when it names none.
std::unique_ptr<Tokenizer> from_config(const std::filesystem::path& path) {
  const auto config = read_json(path);
  demand(config.is_object(), ExitCode::data, path.string(), ": not a JSON object");
  const auto found = config.find("tokenizer");
  if (found == config.end()) return nullptr;
  demand(found->is_string(), ExitCode::data, path.string(), ": \"tokenizer\" must be a string");
  const auto name = found->get<std::string>();
  auto tokenizer = find_builtin(name);
  demand(tokenizer != nullptr, ExitCode::config, path.string(), ": tokenizer \"", name, "\" is not supported",
         did_you_mean(name, builtin_names()));
  return tokenizer;
}

// Chooses the reader by the contents, because the name is not enough: "tokenizer.model" may be a SentencePiece model or tiktoken ranks.
BpeDefinition read_definition(std::string_view bytes, const std::string& file) {
  const std::size_t begin = bytes.find_first_not_of(" \t\r\n");
  demand(begin != std::string_view::npos, ExitCode::data, file, ": an empty file");
  if (bytes[begin] == '{') return read_hugging_face(bytes, file);
  return looks_like_tiktoken(bytes) ? read_tiktoken(bytes, file) : read_sentence_piece(bytes, file);
}

std::unique_ptr<Tokenizer> from_file(const std::filesystem::path& path, std::string_view spec, DocumentEnd end) {
  const std::string bytes = read_file(path);
  BpeDefinition definition = read_definition(bytes, path.string());
  const auto last = end_of_document(path.parent_path(), definition);
  definition.end_of_document = end == DocumentEnd::token ? last : std::nullopt;
  return std::make_unique<BpeTokenizer>(std::move(definition), std::string(spec), tokenizer_hash(path));
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec, DocumentEnd end) {
  if (auto tokenizer = find_builtin(spec)) return tokenizer;
  namespace fs = std::filesystem;
  const fs::path path(spec);
  if (!path_exists(path)) {
    const bool looks_like_path = spec.find_first_of("/.") != std::string_view::npos;
    demand(looks_like_path, ExitCode::config, "tokenizer \"", spec, "\" is not supported", did_you_mean(spec, builtin_names()),
           "; give byte, a model directory or a tokenizer file");
    fail(ExitCode::data, path.string(), ": no such tokenizer file or model directory");
  }
  const fs::path config = is_folder(path) ? path / "config.json" : path;
  if (config.filename() == "config.json" && path_exists(config)) {
    if (auto tokenizer = from_config(config)) return tokenizer;
  }
  if (const auto file = tokenizer_file(spec)) return from_file(*file, spec, end);
  demand(!path_exists(path / "vocab.json"), ExitCode::config, (path / "vocab.json").string(),
         ": this kind of tokenizer is not supported; supported: tokenizer.json, tokenizer.model");
  fail(ExitCode::data, path.string(), ": no tokenizer in this directory (config.json names none)");
}

}  // namespace octet::data

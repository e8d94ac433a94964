#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "octet/base/file.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/data/tokenizer/byte.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {
namespace {

struct Builtin {
  const char* name;
  std::unique_ptr<Tokenizer> (*make)();
};
// Tokenizers that need no file.
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
  const auto config = nlohmann::json::parse(read_file(path), nullptr, false);
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

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec) {
  if (auto tokenizer = find_builtin(spec)) return tokenizer;
  namespace fs = std::filesystem;
  const fs::path path(spec);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    const bool looks_like_path = spec.find_first_of("/.") != std::string_view::npos;
    demand(looks_like_path, ExitCode::config, "tokenizer \"", spec, "\" is not supported", did_you_mean(spec, builtin_names()),
           "; give byte, a model directory or a tokenizer file");
    fail(ExitCode::data, path.string(), ": no such tokenizer file or model directory");
  }
  const fs::path config = fs::is_directory(status) ? path / "config.json" : path;
  if (config.filename() == "config.json" && fs::exists(config, error)) {
    if (auto tokenizer = from_config(config)) return tokenizer;
  }
  if (!fs::is_directory(status)) {
    fail(ExitCode::config, path.string(), ": this kind of tokenizer file is not supported; supported: byte");
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    demand(!fs::exists(path / name, error), ExitCode::config, (path / name).string(),
           ": this kind of tokenizer is not supported; supported: byte");
  }
  fail(ExitCode::data, path.string(), ": no tokenizer in this directory (config.json names none)");
}

}  // namespace octet::data

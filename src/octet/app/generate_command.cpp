#include <fmt/format.h>

#include <algorithm>

#include "octet/app/commands.h"
#include "octet/app/threads.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/train/generate.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/tokenizer.h"

namespace octet::app {
namespace {

// Prints bytes as they come; those that are no UTF-8 yet wait for the rest of their character.
class Utf8Printer {
 public:
  void add(std::string_view bytes) {
    pending_ += bytes;
    std::size_t whole = pending_.size();
    for (std::size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
      const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
      if (byte < 0x80) break;
      if (byte >= 0xC0) {  // the first of a character of 2, 3 or 4 bytes
        const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        if (length > back) whole = pending_.size() - back;
        break;
      }
    }
    std::fwrite(pending_.data(), 1, whole, stdout);
    std::fflush(stdout);
    pending_.erase(0, whole);
  }

 private:
  std::string pending_;
};

}  // namespace

int run_generate(const GenerateArgs& args) {
  train::Config config;
  config.run.device = args.device;
  use_threads(config);
  demand(!args.prompt.empty(), ExitCode::config, "--prompt is empty: give a text to continue");
  // No token is less than a byte, but for some that a tokenizer puts before a text.
  const auto window = static_cast<std::int64_t>(args.prompt.size()) + 16 + args.max_tokens;
  const auto engine = train::open_model(args.model, train::device_of(config), window);
  const std::string spec = train::tokenizer_of_model(args.model, engine->model().config());
  demand(!spec.empty(), ExitCode::data, args.model.string(), ": no tokenizer: there is no tokenizer file here, and config.json names none");
  const auto tokenizer = data::make_tokenizer(spec);
  std::vector<std::int32_t> ids(tokenizer->prefix().begin(), tokenizer->prefix().end());
  tokenizer->encode(args.prompt, ids);
  for (const std::int32_t id : ids) {
    demand(id < engine->model().config().vocab, ExitCode::data, args.model.string(), ": token ", id,
           " of the prompt is outside the model's vocabulary of ", engine->model().config().vocab);
  }
  const std::vector<std::int64_t>& eos = engine->model().config().eos;
  const auto ends = [&](std::int32_t id) {
    return tokenizer->end_of_document() == id || std::find(eos.begin(), eos.end(), id) != eos.end();
  };
  Utf8Printer printer;
  std::string text = args.prompt;  // what is decoded goes on from there
  printer.add(text);
  train::generate(*engine, ids, {.max_tokens = args.max_tokens, .temperature = args.temperature, .seed = args.seed},
                  [&](std::int32_t id) {
                    if (ends(id)) return false;
                    const std::size_t before = text.size();
                    tokenizer->decode(std::span(&id, 1), text);
                    printer.add(std::string_view(text).substr(before));
                    return true;
                  });
  fmt::print("\n");
  return 0;
}

}  // namespace octet::app

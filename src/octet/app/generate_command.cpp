#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>

#include "octet/app/chat.h"
#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/threads.h"
#include "octet/base/log.h"
#include "octet/base/system_call.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/train/generate.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"
#include "octet/train/tokenizer.h"

namespace octet::app {
namespace {

// The bytes may be a part of a character; a terminal shows the character when it is complete.
void print_now(std::string_view bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

// Answers the prompt, or, if there is none, every line of the standard input.
void talk(Chat& chat, const std::optional<std::string>& prompt) {
  const auto answer = [&](const std::string& question) {
    chat.ask(question, print_now);
    print_now("\n");
  };
  if (prompt) return answer(*prompt);
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  for (std::string line; print_now(terminal ? "> " : ""), std::getline(std::cin, line);) {
    if (line.ends_with('\r')) line.pop_back();  // of a file with CRLF
    if (line == "/quit") return;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      answer(line);
    } catch (const Error& error) {
      if (!terminal) throw;
      log_info(error.what());  // somebody who types can ask something else
    }
  }
  if (std::ferror(stdin)) fail_errno(ExitCode::data, "standard input: cannot read");
  if (terminal) print_now("\n");
}

}  // namespace

int run_generate(const GenerateArgs& args) {
  train::Config config;
  config.run.device = args.device;
  use_threads(config);
  demand(!args.chat.empty() || args.system.empty(), ExitCode::config, "--system ", shown(args.system), " needs --chat");
  demand(args.prompt ? !args.prompt->empty() : !args.chat.empty(), ExitCode::config, "--prompt is ",
         args.prompt ? "empty" : "missing", ": give a text to continue",
         args.chat.empty() ? ", or --chat to talk with the model" : " or to answer");
  const std::filesystem::path model = train::model_at(fetched_checkpoint(args.model));
  if (!args.chat.empty()) {
    Chat chat(model, train::device_of(config),
              {.format = args.chat,
               .system = args.system,
               .generate = {
                   .model = model.string(), .max_tokens = args.max_tokens, .temperature = args.temperature, .seed = args.seed}});
    talk(chat, args.prompt);
    return 0;
  }
  const models::DecoderConfig described = train::config_of_model(model);
  const std::string spec = train::tokenizer_of_model(model, described);
  demand(!spec.empty(), ExitCode::data, model.string(),
         ": no tokenizer: there is no tokenizer file here, and config.json names none");
  const auto tokenizer = data::make_tokenizer(spec);
  const std::string& prompt = *args.prompt;
  std::vector<std::int32_t> ids(tokenizer->prefix().begin(), tokenizer->prefix().end());
  tokenizer->encode(prompt, ids);
  for (const std::int32_t id : ids) {
    demand(id < described.vocab, ExitCode::data, model.string(), ": token ", id,
           " of the prompt is outside the model's vocabulary of ", described.vocab);
  }
  const std::int64_t text_tokens =
      std::ssize(ids) + std::min(args.max_tokens, std::numeric_limits<std::int64_t>::max() - std::ssize(ids));
  const auto engine = train::open_model(model, train::device_of(config), text_tokens);
  const std::int64_t most = engine->options().seq_len;
  if (text_tokens > most) {
    log_info(concat("the model's longest sequence has ", most, " tokens, and this text may have ", text_tokens,
                    ": each new token is computed from the last ", most, " tokens"));
  }
  const std::vector<std::int64_t>& eos = described.eos;
  const auto ends = [&](std::int32_t id) {
    return tokenizer->end_of_document() == id || std::find(eos.begin(), eos.end(), id) != eos.end();
  };
  std::string text = prompt;  // what is decoded goes on from there
  print_now(text);
  train::generate(*engine, *tokenizer, ids,
                  {.model = model.string(), .max_tokens = args.max_tokens, .temperature = args.temperature, .seed = args.seed},
                  [&](std::int32_t id) {
                    if (ends(id)) return false;
                    const std::size_t before = text.size();
                    tokenizer->decode(std::span(&id, 1), text);
                    print_now(std::string_view(text).substr(before));
                    return true;
                  });
  fmt::print("\n");
  return 0;
}

}  // namespace octet::app

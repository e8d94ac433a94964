#include "octet/app/chat.h"

#include <algorithm>
#include <utility>

#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/data/tokenizer/utf8.h"
#include "octet/recipes/registry.h"
#include "octet/train/restore.h"
#include "octet/train/tokenizer.h"

namespace octet::app {
namespace {

// The first window of the engine. It doubles as the conversation grows, because every new token costs as much as the whole
// window.
constexpr std::int64_t kFirstWindow = 256;

}  // namespace

bool AnswerEnd::take(std::int32_t id, std::vector<std::int32_t>& certain) {
  held_.push_back(id);
  while (!std::equal(held_.begin(), held_.end(), end_.begin(), end_.begin() + std::ssize(held_))) {
    certain.push_back(held_.front());
    held_.erase(held_.begin());
  }
  return held_.size() == end_.size();
}

Chat::Chat(std::filesystem::path model, DeviceKind device, Options options)
    : model_(std::move(model)),
      device_(device),
      options_(std::move(options)),
      engine_(train::open_model(model_, device, kFirstWindow)) {
  const std::string spec = train::tokenizer_of_model(model_, engine_->model().config());
  demand(!spec.empty(), ExitCode::data, model_.string(),
         ": no tokenizer: there is no tokenizer file here, and config.json names none");
  tokenizer_ = data::make_tokenizer(spec);
  format_ = data::chat_format(options_.format, data::TrainOn::assistant, *tokenizer_);
  if (!options_.system.empty()) conversation_.push_back({"system", options_.system});
}

std::int64_t Chat::context() const {
  const std::int64_t multiple = recipes::token_multiple(engine_->options().recipe);
  return std::max(multiple, engine_->model().config().max_position / multiple * multiple);
}

void Chat::make_room(std::int64_t tokens) {
  const std::int64_t window = engine_->options().seq_len;
  if (tokens <= window) return;
  engine_.reset();
  engine_ = train::open_model(model_, device_, std::max(tokens, 2 * window));
}

// Returns the ids of the conversation with its last question, after dropping the oldest questions and answers if necessary.
std::vector<std::int32_t> Chat::ids_that_fit() {
  const std::int64_t answer = std::min(options_.generate.max_tokens, context() / 2);
  const auto first = conversation_.front().role == "system" ? 1 : 0;
  data::Conversation shorter = conversation_;
  std::vector<std::int32_t> ids;
  for (;;) {
    ids.clear();
    data::encode_question(shorter, format_, *tokenizer_, ids);
    const bool alone = std::ssize(shorter) == first + 1;
    demand(!alone || std::ssize(ids) < context(), ExitCode::config,
           first == 0 ? "the message alone makes " : "the system message and the message alone make ", ids.size(),
           " tokens, and the model's context has ", context());
    if (alone || std::ssize(ids) + answer <= context()) break;
    shorter.erase(shorter.begin() + first, shorter.begin() + first + 2);
  }
  if (const std::size_t forgotten = conversation_.size() - shorter.size(); forgotten > 0) {
    log_info(concat("the conversation no longer fits into the model's context of ", context(), " tokens: its oldest ", forgotten,
                    " messages are forgotten"));
  }
  conversation_ = std::move(shorter);
  const std::int64_t vocab = engine_->model().config().vocab;
  const auto outside = std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= vocab; });
  if (outside != ids.end()) {
    fail(ExitCode::data, model_.string(), ": token ", *outside, " of the message is outside the model's vocabulary of ", vocab);
  }
  return ids;
}

void Chat::ask(const std::string& question, const std::function<void(std::string_view)>& write) {
  const std::size_t valid = data::valid_utf8(question);
  demand(valid == question.size(), ExitCode::config, "the message is not valid UTF-8 from byte ", valid, " on");
  conversation_.push_back({"user", question});
  std::vector<std::int32_t> ids;
  try {
    ids = ids_that_fit();
  } catch (const Error&) {
    conversation_.pop_back();
    throw;
  }

  train::GenerateOptions options = options_.generate;
  options.max_tokens = std::min(options.max_tokens, context() - std::ssize(ids));
  options.seed += static_cast<std::uint64_t>(asked_++);
  make_room(std::ssize(ids) + options.max_tokens);
  const std::vector<std::int64_t>& eos = engine_->model().config().eos;
  AnswerEnd end(data::end_of_answer(format_, *tokenizer_));
  bool ended = false;
  std::string answer;
  const auto decode = [&](const std::vector<std::int32_t>& certain) {
    const std::size_t before = answer.size();
    tokenizer_->decode(certain, answer);
    write(std::string_view(answer).substr(before));
  };
  train::generate(*engine_, *tokenizer_, std::move(ids), options, [&](std::int32_t id) {
    std::vector<std::int32_t> certain;
    ended = tokenizer_->end_of_document() == id || std::find(eos.begin(), eos.end(), id) != eos.end() || end.take(id, certain);
    decode(certain);
    return !ended;
  });
  if (!ended) {
    decode(end.held());
    log_info(
        concat("the answer is cut off after ", options.max_tokens, " tokens, ",
               options.max_tokens < options_.generate.max_tokens ? "where the model's context ends" : "as --max-tokens says"));
  }
  conversation_.push_back({"assistant", std::move(answer)});
}

}  // namespace octet::app

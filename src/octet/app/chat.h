// A conversation with a model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "octet/data/chat/template.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/train/generate.h"

namespace octet::app {

// Passes on the ids of an answer as soon as they cannot be part of the end marker, which may be several ids.
class AnswerEnd {
 public:
  explicit AnswerEnd(std::vector<std::int32_t> end) : end_(std::move(end)) {}
  // Takes the next id. Appends to `certain` the ids that belong to the answer. Returns whether the answer has ended.
  bool take(std::int32_t id, std::vector<std::int32_t>& certain);
  // The ids that looked like the beginning of the end marker when the answer was cut off.
  const std::vector<std::int32_t>& held() const { return held_; }

 private:
  std::vector<std::int32_t> end_, held_;
};

class Chat {
 public:
  struct Options {
    std::string format;  // a template's name, or auto
    std::string system;  // "": only the template's system message, if it has one
    train::GenerateOptions generate;
  };
  // `model` is a Hugging Face directory or a checkpoint. Throws what make_tokenizer() and chat_format() throw.
  Chat(std::filesystem::path model, DeviceKind device, Options options);

  // Asks the model and passes on the bytes of its answer as they are generated. If the conversation no longer fits into the
  // model's context, drops the oldest questions with their answers, and logs a line that says so. Throws Error{config}, and
  // drops the question, if the question alone does not fit or is not valid UTF-8.
  void ask(const std::string& question, const std::function<void(std::string_view)>& write);

 private:
  std::int64_t context() const;  // the most tokens that the model can read
  void make_room(std::int64_t tokens);
  std::vector<std::int32_t> ids_that_fit();

  std::filesystem::path model_;
  DeviceKind device_;
  Options options_;
  std::unique_ptr<train::Engine> engine_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  data::ChatFormat format_;
  data::Conversation conversation_;
  std::int64_t asked_ = 0;  // questions so far; each answer is sampled with another seed
};

}  // namespace octet::app

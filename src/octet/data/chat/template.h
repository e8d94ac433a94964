// The templates that turn a conversation into the text that a model was trained on. Each gives the text of a published Jinja
// template:
//   llama3    Meta-Llama-3-8B-Instruct
//   llama3.1  Meta-Llama-3.1-8B-Instruct, which begins with two dates in a system message
//   chatml    Qwen 2 and 2.5, without the system message that these add to conversations that have none
//   qwen3     Qwen3, which writes thoughts in the last answer only
//   mistral   Mixtral-8x7B-Instruct-v0.1 and Mistral-7B-Instruct-v0.2
//   zephyr    zephyr-7b-beta and TinyLlama-1.1B-Chat-v1.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/data/chat/conversation.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

struct RenderedChat {
  std::string text;
  // The assistant's turns: text[begin, end), with the token that ends the turn.
  struct Turn {
    std::size_t begin, end;
    bool trained;
  };
  std::vector<Turn> turns;
  std::string lost = {};  // says which text of a message the template does not write; "": none
};

// The names of the tokens that begin and end a text, as tokenizer_config.json has them.
struct ChatTokens {
  std::string bos, eos;
};

struct ChatTemplate {
  std::string_view name;
  ChatTokens tokens;                      // if the tokenizer's files do not name them
  std::vector<std::string_view> markers;  // tokens that the text holds, besides bos and eos
  bool begins, ends;                      // whether the text holds bos, and eos
  std::string_view opening;               // the text before an answer that is still to be written
  std::string_view turn_end;              // the token that ends an answer; "": eos
  // Throws Error{data} with the reason only if the template has no place for a message.
  RenderedChat (*render)(const Conversation&, const ChatTokens&);
};

std::span<const ChatTemplate> chat_templates();
// The template as Jinja, for other programs. It has no place for tools. `--chat auto` knows it. "" if no template has this name.
std::string_view jinja_of(std::string_view name);
// Whether a chat template, known or not, lies beside a tokenizer.
bool has_chat_template(const std::filesystem::path& folder);

// How `data prepare` writes conversations.
enum class TrainOn { all, assistant, last };
std::string_view train_on_name(TrainOn train_on);
struct ChatFormat {
  const ChatTemplate* form = nullptr;
  ChatTokens tokens;
  TrainOn train_on = TrainOn::assistant;
  std::string system = {};     // begins conversations that have no system message; "": none
  bool refuses_tools = false;  // messages of tools have no place in the model's own template
};

// Makes a format. `name` is a template's name, or `auto`: the one in the files next to the tokenizer (chat_template.jinja or
// tokenizer_config.json), which is known by the XXH3 of its text. Throws Error{config} for an unknown name or template, and if a
// token that the template needs is not a single token of the tokenizer (except for the byte tokenizer).
ChatFormat chat_format(std::string_view name, TrainOn train_on, const Tokenizer& tokenizer);

// Returns the format of the published template whose text has this XXH3-64, with the names of tokens in ChatTemplate; nothing if
// no such template is known. `--chat auto` looks for the text's sum here.
std::optional<ChatFormat> published_format(std::string_view xxh3);

// Appends the ids of a conversation, which is not empty, and for each id 1 if it is trained on, else 0. A token that begins
// before the assistant's turn and ends in it is not trained on. Throws Error{data} if the template loses text, and with
// TrainOn::all if a message of another role than the assistant's is not trained on. Throws what ChatTemplate::render throws.
void encode_chat(const Conversation& conversation, const ChatFormat& format, const Tokenizer& tokenizer,
                 std::vector<std::int32_t>& ids, std::vector<std::uint8_t>& trained);

// Appends the ids of a conversation that ends with a question, and of what the template writes before the answer. These are the
// ids that a model reads to answer. Throws what ChatTemplate::render throws.
void encode_question(const Conversation& conversation, const ChatFormat& format, const Tokenizer& tokenizer,
                     std::vector<std::int32_t>& ids);

// The ids with which an answer ends: one token, or with the byte tokenizer the bytes of its name.
std::vector<std::int32_t> end_of_answer(const ChatFormat& format, const Tokenizer& tokenizer);

}  // namespace octet::data

#include "octet/data/chat/template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/data/tokenizer/files.h"
#include "octet/data/tokenizer/utf8.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

// Templates that are known by the XXH3-64 of their text. The texts were compared with published SHA-256 sums of these models'
// templates.
struct Published {
  std::string_view xxh3, name;
  // What a model's own template does and `chatml` does not: it begins a conversation that has no system message with this one,
  // and it writes what tools say in another way.
  std::string_view system = {};
  bool wraps_tools = false;
};
constexpr std::string_view kQwen2System = "You are a helpful assistant.";
constexpr std::string_view kQwen25System = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::array<Published, 8> kPublished = {{{"9799ad6e2dea0594", "llama3"},    // Meta-Llama-3-8B-Instruct
                                                  {"a8344fceb19d98ce", "llama3.1"},  // Meta-Llama-3.1-8B-Instruct and 70B
                                                  {"c9e0155c80737cf2", "qwen3"},     // Qwen3, with and without experts
                                                  {"a04f41d813a07b13", "chatml"},    // the form without a system message
                                                  {"d5d943bd0bd9082f", "chatml", kQwen2System},         // Qwen2-1.5B-Instruct
                                                  {"639547fe4d33fa67", "chatml", kQwen25System, true},  // Qwen2.5-7B-Instruct
                                                  {"d40f466f5b2860c8", "mistral"},   // Mixtral-8x7B-Instruct-v0.1
                                                  {"1db34e9fc60441d8", "zephyr"}}};  // TinyLlama-1.1B-Chat-v1.0, zephyr-7b-beta

bool is_python_space(std::string_view character) {
  if (character.size() == 1)
    return character == " " || (character >= "\t" && character <= "\r") || (character >= "\x1C" && character <= "\x1F");
  constexpr std::array<std::string_view, 17> kOthers = {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
                                                        "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008",
                                                        "\u2009", "\u200a", "\u2028", "\u2029", "\u202f"};
  return std::find(kOthers.begin(), kOthers.end(), character) != kOthers.end() || character == "\u205f" || character == "\u3000";
}

// What Jinja's filter `trim` leaves, which is Python's str.strip().
std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = utf8_char(text, 0).bytes;
    if (!is_python_space(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (!text.empty()) {
    const std::size_t last = character_before(text, text.size());
    if (!is_python_space(text.substr(last))) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

// Appends `content` and `end`, and records them as a turn if the assistant speaks.
void append_turn(const ChatMessage& message, std::string_view content, std::string_view end, RenderedChat& chat) {
  const std::size_t begin = chat.text.size();
  chat.text.append(content).append(end);
  if (message.role == "assistant") chat.turns.push_back({begin, chat.text.size(), message.trained});
}

RenderedChat render_llama3(const Conversation& conversation, const ChatTokens& tokens) {
  RenderedChat chat{.text = tokens.bos, .turns = {}};
  for (const ChatMessage& message : conversation) {
    chat.text += concat("<|start_header_id|>", message.role, "<|end_header_id|>\n\n");
    append_turn(message, trimmed(message.content), "<|eot_id|>", chat);
  }
  return chat;
}

RenderedChat render_llama31(const Conversation& conversation, const ChatTokens& tokens) {
  const bool system = conversation.front().role == "system";
  RenderedChat chat{
      .text = concat(tokens.bos, "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n",
                     "Today Date: 26 Jul 2024\n\n", system ? trimmed(conversation.front().content) : "", "<|eot_id|>"),
      .turns = {}};
  for (std::size_t i = system ? 1 : 0; i < conversation.size(); ++i) {
    const ChatMessage& message = conversation[i];
    demand(message.role != "tool", ExitCode::data, "role \"tool\" has no place in template llama3.1");
    chat.text += concat("<|start_header_id|>", message.role, "<|end_header_id|>\n\n");
    append_turn(message, trimmed(message.content), "<|eot_id|>", chat);
  }
  return chat;
}

RenderedChat render_chatml(const Conversation& conversation, const ChatTokens&) {
  RenderedChat chat;
  for (const ChatMessage& message : conversation) {
    chat.text += concat("<|im_start|>", message.role, "\n");
    append_turn(message, message.content, "<|im_end|>", chat);
    chat.text += '\n';
  }
  return chat;
}

std::string_view without_newlines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  text.remove_suffix(text.size() - (text.find_last_not_of('\n') + 1));
  return text;
}

// The number of the last question. What a user says in <tool_response> is none.
std::size_t last_question(const Conversation& conversation) {
  for (std::size_t i = conversation.size(); i-- > 0;) {
    const std::string& text = conversation[i].content;
    if (conversation[i].role == "user" && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))) return i;
  }
  return conversation.size() - 1;
}

// Writes the last answer with what the model thought before it, which may be nothing, and earlier answers without.
RenderedChat render_qwen3(const Conversation& conversation, const ChatTokens&) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const std::size_t question = last_question(conversation), last = conversation.size() - 1;
  RenderedChat chat;
  for (std::size_t i = 0; i <= last; ++i) {
    const std::string &role = conversation[i].role, &content = conversation[i].content;
    const auto is_tool = [&](std::size_t at) { return at <= last && conversation[at].role == "tool"; };
    if (role == "tool") {
      chat.text += concat(i == 0 || !is_tool(i - 1) ? "<|im_start|>user" : "", "\n<tool_response>\n", content,
                          "\n</tool_response>", is_tool(i + 1) ? "" : "<|im_end|>\n");
      continue;
    }
    chat.text += concat("<|im_start|>", role, "\n");
    std::string text = content;
    if (role == "assistant") {
      std::string_view thought, answer = content;
      if (const std::size_t end = content.find(kEnd); end != std::string::npos) {
        thought = answer.substr(0, end);
        const std::size_t begin = thought.rfind(kBegin);
        if (content.rfind(kEnd) != end || (begin != std::string_view::npos && begin > 0))
          chat.lost = concat("message ", i + 1,
                             ": template qwen3 has a place for one thought, at the beginning; other text would be lost");
        if (begin != std::string_view::npos) thought.remove_prefix(begin + kBegin.size());
        thought = without_newlines(thought);
        answer.remove_prefix(answer.rfind(kEnd) + kEnd.size());
        answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
      }
      const bool thinks = i > question && (i == last || !thought.empty());
      if (thinks) answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
      text = thinks ? concat(kBegin, "\n", thought, "\n", kEnd, "\n\n", answer) : std::string(answer);
      if (!thinks && !thought.empty())
        chat.lost = concat("message ", i + 1,
                           ": template qwen3 writes the text between <think> and </think> only in the last answer, so this "
                           "text would be lost");
    }
    append_turn(conversation[i], text, "<|im_end|>", chat);
    chat.text += '\n';
  }
  return chat;
}

RenderedChat render_mistral(const Conversation& conversation, const ChatTokens& tokens) {
  const bool system = conversation.front().role == "system";
  RenderedChat chat{.text = tokens.bos, .turns = {}};
  for (std::size_t i = system ? 1 : 0; i < conversation.size(); ++i) {
    const ChatMessage& message = conversation[i];
    const bool first = i == (system ? 1 : 0), asks = (i % 2 == 1) == system;
    demand(message.role == (asks ? "user" : "assistant"), ExitCode::data, "message ", i + 1, " has role \"", message.role,
           "\"; template mistral needs user and assistant in turns, after at most one system message");
    if (asks) {
      chat.text += concat(" [INST] ", first && system ? conversation.front().content + "\n\n" : "", message.content, " [/INST]");
    } else {
      append_turn(message, " " + message.content, tokens.eos, chat);
    }
  }
  demand(!system || conversation.size() > 1, ExitCode::data, "template mistral has no place for a system message alone");
  return chat;
}

RenderedChat render_zephyr(const Conversation& conversation, const ChatTokens& tokens) {
  RenderedChat chat;
  for (const ChatMessage& message : conversation) {
    demand(message.role != "tool", ExitCode::data, "role \"tool\" has no place in template zephyr");
    chat.text += concat("<|", message.role, "|>\n");
    append_turn(message, message.content, tokens.eos, chat);
    chat.text += '\n';
  }
  return chat;
}

std::vector<std::string> template_names() {
  std::vector<std::string> names = {"auto"};
  for (const ChatTemplate& known : chat_templates()) names.emplace_back(known.name);
  return names;
}

const ChatTemplate* find_template(std::string_view name) {
  for (const ChatTemplate& known : chat_templates()) {
    if (known.name == name) return &known;
  }
  return nullptr;
}

// A member of the JSON object in `file`, or null.
nlohmann::json member(const fs::path& file, const char* key) {
  if (!path_exists(file)) return {};
  const auto json = read_json(file);
  demand(json.is_object(), ExitCode::data, file.string(), ": not a JSON object");
  return json.value(key, nlohmann::json());
}

// The text of a token such as "bos_token", or `otherwise` if the files in `folder` do not name it.
std::string token_name(const fs::path& folder, const char* key, const std::string& otherwise) {
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    nlohmann::json token = member(folder / file, key);
    if (token.is_object()) token = token.value("content", nlohmann::json());
    if (token.is_string()) return token.get<std::string>();
  }
  return otherwise;
}

struct Found {
  fs::path file;
  std::string text;
};
// Returns the Jinja template in a tokenizer's folder. The places are tried in transformers' order.
std::optional<Found> jinja_beside(const fs::path& folder) {
  if (const fs::path file = folder / "chat_template.jinja"; is_file(file)) return Found{file, read_file(file)};
  const fs::path file = folder / "tokenizer_config.json";
  nlohmann::json text = member(file, "chat_template");
  if (text.is_array()) {  // several templates, by name
    for (const auto& named : nlohmann::json(text)) {
      if (named.is_object() && named.value("name", nlohmann::json()) == "default")
        text = named.value("template", nlohmann::json());
    }
  }
  return text.is_string() ? std::optional(Found{file, text.get<std::string>()}) : std::nullopt;
}

ChatFormat format_of(const Published& published) {
  const ChatTemplate* const form = find_template(published.name);
  return {.form = form,
          .tokens = form ? form->tokens : ChatTokens{},
          .system = std::string(published.system),
          .refuses_tools = published.wraps_tools};
}

ChatFormat format_of_model(const fs::path& folder, const Tokenizer& tokenizer) {
  const std::string advice = "give --chat with one of: llama3, llama3.1, chatml, qwen3, mistral, zephyr";
  const auto found = jinja_beside(folder);
  demand(found.has_value(), ExitCode::config, "--chat auto: no chat template beside tokenizer ", tokenizer.name(), "; ", advice);
  for (const ChatTemplate& known : chat_templates()) {
    if (found->text == jinja_of(known.name)) return format_of({.xxh3 = {}, .name = known.name});
  }
  RunningChecksum sum;
  sum.update(found->text);
  if (const std::optional<ChatFormat> format = published_format(sum.hex())) return *format;
  fail(ExitCode::config, found->file.string(), ": its chat template (XXH3 ", sum.hex(), ") is not one that --chat auto knows; ",
       advice);
}

RenderedChat rendered(const Conversation& conversation, const ChatFormat& format) {
  demand(!format.refuses_tools ||
             std::none_of(conversation.begin(), conversation.end(), [](const ChatMessage& m) { return m.role == "tool"; }),
         ExitCode::data,
         "--chat auto: this model's template writes a message of a tool in a way that octet does not know; --chat chatml "
         "writes it as a turn of its own");
  Conversation whole = conversation;
  if (!format.system.empty() && conversation.front().role != "system") whole.insert(whole.begin(), {"system", format.system});
  return format.form->render(whole, format.tokens);
}

}  // namespace

std::span<const ChatTemplate> chat_templates() {
  static const std::array<ChatTemplate, 6> kTemplates = {{
      {"llama3",
       {"<|begin_of_text|>", "<|end_of_text|>"},
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       true,
       false,
       "<|start_header_id|>assistant<|end_header_id|>\n\n",
       "<|eot_id|>",
       render_llama3},
      {"llama3.1",
       {"<|begin_of_text|>", "<|eot_id|>"},
       {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       true,
       false,
       "<|start_header_id|>assistant<|end_header_id|>\n\n",
       "<|eot_id|>",
       render_llama31},
      {"chatml",
       {"<|endoftext|>", "<|im_end|>"},
       {"<|im_start|>", "<|im_end|>"},
       false,
       false,
       "<|im_start|>assistant\n",
       "<|im_end|>",
       render_chatml},
      {"qwen3",
       {"<|endoftext|>", "<|im_end|>"},
       {"<|im_start|>", "<|im_end|>"},
       false,
       false,
       "<|im_start|>assistant\n",
       "<|im_end|>",
       render_qwen3},
      {"mistral", {"<s>", "</s>"}, {}, true, true, "", "", render_mistral},
      {"zephyr", {"<s>", "</s>"}, {}, false, true, "<|assistant|>\n", "", render_zephyr},
  }};
  return kTemplates;
}

bool has_chat_template(const fs::path& folder) { return jinja_beside(folder).has_value(); }

std::optional<ChatFormat> published_format(std::string_view xxh3) {
  for (const Published& published : kPublished) {
    if (published.xxh3 == xxh3) return format_of(published);
  }
  return std::nullopt;
}

std::string_view train_on_name(TrainOn train_on) {
  return train_on == TrainOn::all ? "all" : train_on == TrainOn::last ? "last" : "assistant";
}

ChatFormat chat_format(std::string_view name, TrainOn train_on, const Tokenizer& tokenizer) {
  const auto file = tokenizer_file(tokenizer.name());
  const fs::path folder = file ? file->parent_path() : fs::path(tokenizer.name());
  ChatFormat format = name == "auto" ? format_of_model(folder, tokenizer) : format_of({.xxh3 = {}, .name = name});
  const ChatTemplate* const form = format.form;
  demand(form != nullptr, ExitCode::config, "--chat ", name, ": no such template", did_you_mean(name, template_names()),
         "; known: auto, llama3, llama3.1, chatml, qwen3, mistral, zephyr");
  format.train_on = train_on;
  if (!file) return format;  // bytes: the names of tokens are text
  format.tokens = {token_name(folder, "bos_token", form->tokens.bos), token_name(folder, "eos_token", form->tokens.eos)};
  std::vector<std::string_view> needed = form->markers;
  if (form->begins) needed.push_back(format.tokens.bos);
  if (form->ends) needed.push_back(format.tokens.eos);
  for (const std::string_view token : needed) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(token, ids);
    demand(ids.size() == 1, ExitCode::config, file->string(), ": the tokenizer has no token \"", token, "\", which template ",
           form->name, " needs");
  }
  return format;
}

void encode_chat(const Conversation& conversation, const ChatFormat& format, const Tokenizer& tokenizer,
                 std::vector<std::int32_t>& ids, std::vector<std::uint8_t>& trained) {
  const RenderedChat chat = rendered(conversation, format);
  demand(chat.lost.empty(), ExitCode::data, chat.lost);
  for (std::size_t i = 0; i < conversation.size() && format.train_on == TrainOn::all; ++i) {
    demand(conversation[i].trained || conversation[i].role == "assistant", ExitCode::data, "message ", i + 1, ", of role \"",
           conversation[i].role, "\", has weight 0, but --train-on all trains on it; only answers can be left out");
  }
  std::vector<std::size_t> places;
  for (const RenderedChat::Turn& turn : chat.turns) places.insert(places.end(), {turn.begin, turn.end});
  const std::size_t before = ids.size();
  const std::vector<std::size_t> counts = tokenizer.encode_counting(chat.text, places, ids);
  const bool all = format.train_on == TrainOn::all;
  trained.resize(ids.size(), all ? 1 : 0);
  const std::size_t first = format.train_on == TrainOn::last && !chat.turns.empty() ? chat.turns.size() - 1 : 0;
  for (std::size_t i = first; i < chat.turns.size(); ++i) {
    if (chat.turns[i].trained == all) continue;
    const auto at = trained.begin() + static_cast<std::ptrdiff_t>(before);
    std::fill(at + static_cast<std::ptrdiff_t>(counts[2 * i]), at + static_cast<std::ptrdiff_t>(counts[2 * i + 1]),
              static_cast<std::uint8_t>(all ? 0 : 1));
  }
}

void encode_question(const Conversation& conversation, const ChatFormat& format, const Tokenizer& tokenizer,
                     std::vector<std::int32_t>& ids) {
  tokenizer.encode(rendered(conversation, format).text + std::string(format.form->opening), ids);
}

std::vector<std::int32_t> end_of_answer(const ChatFormat& format, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(format.form->turn_end.empty() ? format.tokens.eos : format.form->turn_end, ids);
  return ids;
}

}  // namespace octet::data

#include "octet/app/manual/values.h"

#include <algorithm>

namespace octet::app {

std::string name_in_shell(const Command& root, const Command& command) {
  return command.name.substr(std::min(command.name.size(), root.name.size() + 1));
}

std::string value_of(const KeyDescription& key) {
  if (key.type == "true or false") return "true|false";
  if (key.field.choices.empty()) return std::string(key.field.value);
  std::string value;
  for (const std::string& word : cut_choices(key.field.choices)) value += (value.empty() ? "" : "|") + word;
  return value;
}

std::string words_text(std::string_view value) {
  std::string text;
  for (const std::string& word : words_of(value)) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string escaped(std::string_view text, std::string_view characters) {
  std::string result;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::string single_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

}  // namespace octet::app

#include "octet/app/manual/values.h"

#include <algorithm>
#include <utility>

#include "octet/app/manual/manual.h"

namespace octet::app {

std::string name_in_shell(const Command& root, const Command& command) {
  return command.name.substr(std::min(command.name.size(), root.name.size() + 1));
}

std::string value_of(const KeyDescription& key) {
  if (key.type == "true or false") return "true|false";
  return key.field.choices.empty() ? std::string(key.field.value) : joined(cut_choices(key.field.choices), "|");
}

std::string value_of(const CommandOption& option) {
  return option.argument && option.names.front().ends_with(".toml") ? option.names.front() : option.value;
}

Command with_topics(Command root) {
  const auto manual = std::find_if(root.commands.begin(), root.commands.end(),
                                   [&](const Command& command) { return command.name == root.name + " manual"; });
  if (manual == root.commands.end()) return root;
  std::vector<Command> topics;
  for (const std::string& topic : cut_choices(kManualTopics)) {
    const std::string parts = joined(manual_parts(root, topic), "|");
    topics.push_back(
        {.name = manual->name + " " + topic, .summary = "", .example = "", .notes = "", .options = {}, .commands = {}});
    if (!parts.empty())
      topics.back().options.push_back({.names = {"NAME"}, .value = parts, .help = "", .default_value = "", .argument = true});
  }
  std::erase_if(manual->options, [](const CommandOption& option) { return option.argument; });
  manual->commands = std::move(topics);
  return root;
}

std::string words_text(std::string_view value) { return joined(words_of(value), " "); }

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

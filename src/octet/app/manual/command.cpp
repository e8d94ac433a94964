#include "octet/app/manual/command.h"

#include <algorithm>

#include "octet/base/fields.h"
#include "octet/base/require.h"
#include "octet/data/chat/template.h"
#include "octet/recipes/registry.h"
#include "octet/train/config.h"

namespace octet::app {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kHelpColumn = 28;

// "  --output DIR              Folder to write."
std::string entry(const std::string& name, const std::string& help) {
  std::string line = "  " + name;
  if (line.size() + 2 > kHelpColumn) {
    line += "\n" + std::string(kHelpColumn, ' ');
  } else {
    line.resize(kHelpColumn, ' ');
  }
  return line + wrapped(help, kWidth - kHelpColumn, kHelpColumn) + "\n";
}

std::string options_text(const Command& command, bool arguments, const std::string& title) {
  std::string text;
  for (const CommandOption& option : command.options) {
    if (option.argument != arguments) continue;
    const std::string remark = !option.default_value.empty()         ? " (default: " + option.default_value + ")"
                               : option.required && !option.argument ? " (required)"
                                                                     : "";
    text += entry(spelling_of(option), option.help + remark);
  }
  return text.empty() ? "" : "\n" + title + ":\n" + text;
}

}  // namespace

Offer offer_of(std::string_view value) {
  if (value == "FILE" || value == "PATH") return Offer::files;
  if (value == "PREFIX") return Offer::prefixes;
  if (value.ends_with(".toml")) return Offer::runs;
  if (value == "DIR") return Offer::folders;
  if (value.ends_with(",...")) return words_of(value).empty() ? Offer::nothing : Offer::list;
  return words_of(value).empty() ? Offer::nothing : Offer::words;
}

std::vector<std::string> words_of(std::string_view value) {
  if (value == "RECIPE,...") {  // of --recipes
    std::vector<std::string> words = recipes::recipe_names();
    words.emplace_back("all");
    return words;
  }
  if (value.ends_with(",...")) value.remove_suffix(4);
  if (value == "RECIPE") return recipes::recipe_names();
  if (value == "FP8_RECIPE") {  // of `octet quantize`
    std::vector<std::string> words = recipes::recipe_names();
    std::erase_if(words, [](const std::string& name) { return !recipes::make_recipe(name, {}).is_fp8(); });
    return words;
  }
  if (value == "PRESET") return train::preset_names();
  if (value == "TEMPLATE") {  // of --chat
    std::vector<std::string> words = {"auto"};
    for (const data::ChatTemplate& known : data::chat_templates()) words.emplace_back(known.name);
    return words;
  }
  if (value.find('|') == std::string_view::npos) return {};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t bar = std::min(value.find('|', begin), value.size());
    words.emplace_back(value.substr(begin, bar - begin));
    begin = bar + 1;
  }
  return words;
}

std::string spelling_of(const CommandOption& option) {
  return joined(option.names) + (option.value.empty() || option.argument ? "" : " " + option.value) +
         (option.repeats ? "..." : "");
}

std::string usage_of(const Command& command) {
  std::string text = command.name;
  if (!command.commands.empty()) text += " COMMAND";
  for (const CommandOption& option : command.options) {
    if (option.argument) text += option.required ? " " + spelling_of(option) : " [" + spelling_of(option) + "]";
  }
  for (const CommandOption& option : command.options) {
    if (!option.argument && option.required) text += " " + option.names.back() + " " + option.value + (option.repeats ? "..." : "");
  }
  text += command.takes_keys ? " [OPTIONS] [--section.key=value...]" : " [OPTIONS]";
  return text + (command.tail.empty() ? "" : " " + command.tail);
}

std::string help_of(const Command& command) {
  std::string text = wrapped(command.summary, kWidth) + "\n\nUsage: " + usage_of(command) + "\n";
  text += options_text(command, true, "Arguments");
  text += options_text(command, false, "Options");
  std::string commands;
  for (const Command& child : command.commands) commands += entry(child.name.substr(command.name.size() + 1), child.summary);
  if (!commands.empty()) text += "\nCommands:\n" + commands;
  if (!command.example.empty()) text += "\nExample:\n  " + command.example + "\n";
  if (!command.notes.empty()) text += "\n" + wrapped(command.notes, kWidth) + "\n";
  return text;
}

std::vector<const Command*> all_of(const Command& root) {
  std::vector<const Command*> all = {&root};
  for (const Command& child : root.commands) {
    const std::vector<const Command*> below = all_of(child);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string result;
  std::size_t column = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (begin > 0) {
      result += "\n" + (line.empty() ? "" : std::string(indent, ' '));
      column = 0;
    }
    begin = end + 1;
    if (line.starts_with("  ")) {
      result += line;
      continue;
    }
    while (!line.empty()) {
      const std::string_view word = line.substr(0, line.find(' '));
      line.remove_prefix(std::min(word.size() + 1, line.size()));
      if (column > 0 && column + 1 + word.size() > width) {
        result += "\n" + std::string(indent, ' ');
        column = 0;
      }
      if (column > 0) result += ' ', ++column;
      result += word;
      column += word.size();
    }
  }
  return result;
}

}  // namespace octet::app

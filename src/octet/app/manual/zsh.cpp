#include "octet/app/manual/manual.h"
#include "octet/app/manual/values.h"

namespace octet::app {
namespace {

constexpr const char* kZshHead = R"zsh(#compdef octet
# zsh completion of octet. Printed by `octet completion zsh`.

_octet() {
  local command= word
  local -a keys children
  integer i start=1
  # The command is the longest run of words that names one; `launch ... --` begins another.
  for ((i = 2; i < CURRENT; i++)); do
    if [[ $command == launch && ${words[i]} == -- ]]; then
      command= start=$i
      continue
    fi
    word="${command:+$command }${words[i]}"
    if (( ${_octet_commands[(Ie)$word]} )); then
      command=$word start=$i
    fi
  done
  words=("${(@)words[start,-1]}")
  (( CURRENT -= start - 1 ))

  keys=(
)zsh";

constexpr const char* kZshTail = R"zsh(  esac
}

)zsh";

// Sourced, the script registers itself; in a folder of fpath it is the function itself.
constexpr const char* kZshEnd = R"zsh(
if [[ ${funcstack[1]} == _octet ]]; then
  _octet "$@"
else
  compdef _octet octet
fi
)zsh";

// ":message:action" of a value.
std::string zsh_action(std::string_view value) {
  const std::string words = words_text(value);
  std::string text = ":" + escaped(value, ":");
  switch (offer_of(value)) {
    case Offer::nothing: return text + ": ";
    case Offer::files:
    case Offer::prefixes:
      return text + ":_files";
    case Offer::runs:
      return text + ":_files -g \"*.toml\"";
    case Offer::folders: return text + ":_files -/";
    case Offer::words: return text + ":(" + words + ")";
    case Offer::list: return text + ":_sequence compadd - " + words;
  }
  return text;
}

std::string zsh_help(std::string_view help) { return "[" + escaped(help, "[]:\\") + "]"; }

// The arguments of _arguments for one option.
std::string zsh_specs(const CommandOption& option) {
  std::string text;
  if (option.argument) return " " + single_quoted((option.repeats ? "*" : "") + zsh_action(value_of(option)));
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    const std::string repeat = option.repeats ? "*" : "";
    text += " " + single_quoted(repeat + name +
                                (option.value.empty() ? ""
                                 : is_long            ? "="
                                                      : "+") +
                                zsh_help(option.help) + (option.value.empty() ? "" : zsh_action(option.value)));
  }
  return text;
}

}  // namespace

std::string zsh_completion(const Command& root) {
  std::string text = kZshHead, names;
  for (const KeyDescription& key : train::config_keys())
    text += "    " + single_quoted("*--" + key.option + "=-" + zsh_help(key.field.help) + zsh_action(value_of(key))) + "\n";
  text += "  )\n  case $command in\n";
  for (const Command* command : all_of(root)) {
    const std::string name = name_in_shell(root, *command);
    if (!name.empty()) names += " " + single_quoted(name);
    text += "    " + single_quoted(name) + ")\n";
    if (!command->commands.empty()) {
      text += "      children=(";
      for (const Command& child : command->commands)
        text += " " + single_quoted(child.name.substr(command->name.size() + 1) + ":" + escaped(child.summary, ":\\"));
      text += " )\n";
    }
    text += "      _arguments";
    for (const CommandOption& option : command->options) text += zsh_specs(option);
    if (command->takes_keys) text += " $keys";
    if (!command->commands.empty()) text += " '1:command:{_describe command children}'";
    if (name == "launch") text += " '*: : '";
    text += "\n      ;;\n";
  }
  return text + kZshTail + "typeset -ga _octet_commands=(" + names + " )\n" + kZshEnd;
}

}  // namespace octet::app

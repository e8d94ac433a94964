#include "octet/app/manual/manual.h"
#include "octet/app/manual/values.h"

namespace octet::app {
namespace {

constexpr const char* kFishHead = R"fish(# fish completion of octet. Printed by `octet completion fish`.

# The command before the cursor, for example `data prepare`; `launch ... --` begins another.
function __octet_command
    set -l command ''
    for word in (commandline -opc)[2..]
        if test "$command $word" = 'launch --'
            set command ''
            continue
        end
        set -l longer (string trim -- "$command $word")
        if contains -- "$longer" $__octet_commands
            set command $longer
        end
    end
    echo $command
end

function __octet_is
    test "$(__octet_command)" = "$argv[1]"
end

# fish offers no options after `--`, so those of a launched command are arguments.
function __octet_launches
    contains -- -- (commandline -opc)
    and __octet_is $argv[1]
end

# A key of a run ends in `=`, so that its value follows without a space.
function __octet_in_key
    contains -- "$(__octet_command)" $__octet_commands_with_keys
    and not string match -q -- '--*=*' (commandline -ct)
end

function __octet_in_value
    contains -- "$(__octet_command)" $__octet_commands_with_keys
    and string match -q -- '--*=*' (commandline -ct)
end

)fish";

std::string fish_quoted(std::string_view text) { return "'" + escaped(text, "\\'") + "'"; }

// The candidates as arguments of `complete`.
std::string fish_arguments(std::string_view value) {
  switch (offer_of(value)) {
    case Offer::nothing: return " -x";
    case Offer::files:
    case Offer::runs:
    case Offer::prefixes:
      return " -r -F";
    case Offer::folders: return " -x -a '(__fish_complete_directories)'";
    case Offer::words: return " -x -a " + fish_quoted(words_text(value));
    case Offer::list: return " -x -a '(__fish_append , " + words_text(value) + ")'";
  }
  return "";
}

std::string fish_option(const std::string& condition, const CommandOption& option) {
  std::string text = "complete -c octet -n " + condition;
  if (!option.argument) {
    for (const std::string& name : option.names) text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  const std::string arguments = fish_arguments(option.value);
  if (!option.value.empty()) text += option.argument && arguments == " -r -F" ? " -F" : arguments;
  if (option.argument && offer_of(option.value) == Offer::nothing) return "";
  if (!option.argument) text += " -d " + fish_quoted(option.help);
  return text + "\n";
}

}  // namespace

std::string fish_completion(const Command& root) {
  std::string text = kFishHead, names, with_keys, lines;
  for (const KeyDescription& key : train::config_keys()) {
    const std::string help = " -d " + fish_quoted(key.field.help) + "\n";
    lines += "complete -c octet -n __octet_in_key -a --" + key.option + "=" + help;
    lines += "complete -c octet -n __octet_in_value -l " + key.option + fish_arguments(value_of(key)) + help;
  }
  for (const Command* command : all_of(root)) {
    const std::string name = name_in_shell(root, *command);
    const std::string condition = fish_quoted("__octet_is " + fish_quoted(name));
    if (!name.empty()) names += " " + fish_quoted(name);
    if (command->takes_keys) with_keys += " " + fish_quoted(name);
    for (const Command& child : command->commands)
      lines += "complete -c octet -n " + condition + " -a " + child.name.substr(command->name.size() + 1) + " -d " +
               fish_quoted(child.summary) + "\n";
    for (const CommandOption& option : command->options) {
      lines += fish_option(condition, option);
      if (!command->takes_keys || option.argument) continue;
      for (const std::string& spelling : option.names)
        lines += "complete -c octet -n " + fish_quoted("__octet_launches " + fish_quoted(name)) + " -a " + spelling + " -d " +
                 fish_quoted(option.help) + "\n";
    }
  }
  return text + "set -g __octet_commands" + names + "\nset -g __octet_commands_with_keys" + with_keys + "\n\ncomplete -c octet -f\n" +
         lines;
}

}  // namespace octet::app

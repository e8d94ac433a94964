#include "octet/app/manual/manual.h"
#include "octet/app/manual/values.h"

namespace octet::app {
namespace {

constexpr const char* kBashHead = R"bash(# bash completion of octet. Printed by `octet completion bash`.

# Sets `words`, what may stand after the command, and `argument`, what its arguments are.
_octet_command() {
  words= argument= keys=
  case $1 in
)bash";

constexpr const char* kBashOffers = R"bash(  esac
}

# Sets `offer`, what may stand after the option $2 of the command $1.
_octet_offer() {
  offer=
  case "$1 $2" in
)bash";

constexpr const char* kBashTail = R"bash(  esac
}

_octet() {
  # bash splits words at `=` and `:`; the line itself does not.
  local line=${COMP_LINE:0:COMP_POINT} command= current previous word
  local -a typed
  read -ra typed <<<"$line"
  [[ $line == *[[:space:]] ]] && typed+=("")
  local count=${#typed[@]}
  current=${typed[count - 1]} previous=${typed[count - 2]}
  for word in "${typed[@]:1:count-2}"; do
    if [[ $command == launch && $word == -- ]]; then
      command=
      continue
    fi
    word="${command:+$command }$word"
    case "|$_octet_commands|" in *"|$word|"*) command=$word ;; esac
  done

  local words argument keys offer prefix= filter=()
  _octet_command "$command"
  if [[ $current == --*=* ]]; then
    _octet_offer "$command" "${current%%=*}"
    [[ $COMP_WORDBREAKS == *=* ]] || prefix=${current%%=*}=
    current=${current#*=}
  else
    _octet_offer "$command" "$previous"
    if [[ -z $offer ]]; then
      if [[ $current == -* || -z $argument ]]; then offer="words $words"; else offer=$argument; fi
      [[ $current == --* && -n $keys ]] && offer+=" $_octet_keys"
    fi
  fi
  COMPREPLY=()
  case $offer in
    files) filter=(-f) ;;
    folders) filter=(-d) ;;
    list\ *)
      offer=" ${offer#list } "
      if [[ $current == *,* ]]; then  # what is chosen already is not offered again
        local -a chosen
        IFS=, read -ra chosen <<<"all,${current%,*}"
        for word in "${chosen[@]}"; do offer=${offer/ $word / }; done
        prefix+=${current%,*}, current=${current##*,}
      fi
      compopt -o nospace 2>/dev/null
      filter=(-W "$offer")
      ;;
    runs | prefixes) ;;
    words\ *) filter=(-W "${offer#words }") ;;
    *) return ;;
  esac
  [[ ${filter[0]} == -W ]] || compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(
    case $offer in
      runs) compgen -d -P "$prefix" -- "$current"; compgen -f -X '!*.toml' -P "$prefix" -- "$current" ;;
      prefixes)
        compgen -d -P "$prefix" -- "$current"
        compgen -f -X '!*.idx' -P "$prefix" -- "$current" | sed -e '/\.loss\.idx$/d' -e 's/\.idx$//'
        ;;
      *) compgen "${filter[@]}" -P "$prefix" -- "$current" ;;
    esac
  )
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -F _octet octet
)bash";

// The arguments of _octet_offer for a value.
std::string bash_offer(std::string_view value) {
  switch (offer_of(value)) {
    case Offer::nothing: return "nothing";
    case Offer::files: return "files";
    case Offer::folders: return "folders";
    case Offer::runs:
      return "runs";
    case Offer::prefixes:
      return "prefixes";
    case Offer::words: return "words " + words_text(value);
    case Offer::list: return "list " + words_text(value);
  }
  return "";
}

}  // namespace

std::string bash_completion(const Command& root) {
  std::string text = kBashHead, offers, names, keys;
  for (const Command* command : all_of(root)) {
    const std::string name = name_in_shell(root, *command);
    std::string words, argument;
    for (const Command& child : command->commands) argument += " " + child.name.substr(command->name.size() + 1);
    if (!argument.empty()) argument.insert(0, "words");
    for (const CommandOption& option : command->options) {
      if (option.argument) {
        if (argument.empty()) argument = bash_offer(value_of(option));
        continue;
      }
      std::string pattern;
      for (const std::string& spelling : option.names) {
        words += (words.empty() ? "" : " ") + spelling;
        pattern += (pattern.empty() ? "" : "|") + ("\"" + name + " " + spelling + "\"");
      }
      if (!option.value.empty()) offers += "    " + pattern + ") offer='" + bash_offer(option.value) + "' ;;\n";
    }
    text += "    '" + name + "') words='" + words + "' argument='" + argument + "'" + (command->takes_keys ? " keys=1" : "") + " ;;\n";
    if (!name.empty()) names += (names.empty() ? "" : "|") + name;
  }
  for (const KeyDescription& key : train::config_keys()) {
    keys += (keys.empty() ? "--" : " --") + key.option + "=";
    offers += "    *' --" + key.option + "') offer='" + bash_offer(value_of(key)) + "' ;;\n";
  }
  return text + kBashOffers + offers + kBashTail + "_octet_commands='" + names + "'\n_octet_keys='" + keys + "'\n";
}

}  // namespace octet::app

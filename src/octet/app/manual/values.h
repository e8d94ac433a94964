// Shared by the three completion scripts.
#pragma once

#include <string>
#include <string_view>

#include "octet/app/manual/command.h"
#include "octet/train/config.h"

namespace octet::app {

// "data prepare"; "" for octet itself.
std::string name_in_shell(const Command& root, const Command& command);
// Returns the value that a key takes, in the notation of options: "a|b", "DIR", ...
std::string value_of(const KeyDescription& key);
// Returns the value that an option takes. An argument RUN.toml is more specific than FILE.
std::string value_of(const CommandOption& option);
// Returns the commands as completion sees them: each topic of `octet manual` is a command, whose argument is a part of the
// topic.
Command with_topics(Command root);
// The words of a value with spaces between.
std::string words_text(std::string_view value);
// `text` with a backslash before each of `characters`.
std::string escaped(std::string_view text, std::string_view characters);
// `text` in single quotes, as bash and zsh read them.
std::string single_quoted(std::string_view text);

}  // namespace octet::app

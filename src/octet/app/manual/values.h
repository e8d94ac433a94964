// What the three completion scripts share.
#pragma once

#include <string>
#include <string_view>

#include "octet/app/manual/command.h"
#include "octet/train/config.h"

namespace octet::app {

// "data prepare"; "" for octet itself.
std::string name_in_shell(const Command& root, const Command& command);
// What a key takes, as an option says it: "a|b", "DIR", ...
std::string value_of(const KeyDescription& key);
// The words of a value with spaces between.
std::string words_text(std::string_view value);
// `text` with a backslash before each of `characters`.
std::string escaped(std::string_view text, std::string_view characters);
// `text` in single quotes, as bash and zsh read them.
std::string single_quoted(std::string_view text);

}  // namespace octet::app

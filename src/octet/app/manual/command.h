// The command tree as data. `--help`, the reference pages, the man pages and shell completion are printed from it, so that none of them
// can differ from what the program accepts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::app {

// An option ("--output DIR"), or an argument that has no name of its own ("DIR").
struct CommandOption {
  std::vector<std::string> names;  // "-n", "--ranks"; of an argument its placeholder
  std::string value;               // what it takes: one of kPlaceholders, "a|b|c" or another word; "" for a flag
  std::string help;                // one or two plain sentences
  std::string default_value;       // "" if there is none to show
  bool argument = false;
  bool required = false;
  bool repeats = false;  // takes several values
};

struct Command {
  std::string name;     // "octet data prepare"
  std::string summary;  // one sentence
  std::string example;  // a command line that works
  std::string notes;    // paragraphs, a blank line between them; lines that begin with two spaces are kept as they are
  std::vector<CommandOption> options;
  std::vector<Command> commands;
  bool takes_keys = false;  // every key of a run's file is an option: --section.key=value
  std::string tail = "";    // what follows the options, for example another command
};

// What shell completion offers for a value. A placeholder has the same meaning in every option and every key. `runs` are files
// of runs, *.toml; `prefixes` are corpora, PREFIX of PREFIX.idx.
enum class Offer { nothing, words, list, files, folders, runs, prefixes };
Offer offer_of(std::string_view value);
// The words of "a|b|c", of RECIPE and FP8_RECIPE, of PRESET and of TEMPLATE.
std::vector<std::string> words_of(std::string_view value);

// "octet train RUN.toml [OPTIONS]".
std::string usage_of(const Command& command);
// "--output DIR", "-n, --ranks N", "DIR...".
std::string spelling_of(const CommandOption& option);
// The text of `octet COMMAND --help`.
std::string help_of(const Command& command);

// Returns this command and all commands below it, each after its parent.
std::vector<const Command*> all_of(const Command& root);

// Wraps the text to lines of at most `width` characters and indents all lines except the first by `indent` spaces. Lines that
// begin with two spaces, and breaks between paragraphs, stay.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0);

}  // namespace octet::app

// `octet manual` and `octet completion`: the reference as Markdown, man pages and completion scripts. All of it is printed from the
// command tree, from the fields of Config and of the telemetry records, and from ExitCode.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "octet/app/manual/command.h"
#include "octet/base/require.h"

namespace octet::app {

inline constexpr const char* kManualTopics = "commands | configuration | files | exit-codes";
// One line for each topic, for --help.
std::string manual_topics();

struct ManualArgs {
  std::string topic = "commands";
  std::vector<std::string> name;  // "data prepare", "precision", "metrics.jsonl"; empty: all of the topic
  std::filesystem::path output;   // "": print
};
int run_manual(const ManualArgs& args, const Command& root);
int run_completion(const std::string& shell, const Command& root);

// Markdown. `name` is one command, section or file, or "" for all of them; an unknown one throws Error{config} with the nearest.
std::string commands_page(const Command& root, const std::string& name);
std::string configuration_page(const std::string& section);
std::string files_page(const std::string& file);
std::string exit_codes_page();
// Returns the names for which a topic's page can be asked: commands, sections or files. Exit codes have none.
std::vector<std::string> manual_parts(const Command& root, const std::string& topic);

// Returns the meaning of a code for scripts, or "" for a number that the program does not return.
std::string_view meaning(ExitCode code);
std::vector<std::pair<int, std::string_view>> exit_codes();

struct ManualFile {
  std::string path;  // below /usr/share or its like
  std::string text;
};
// octet(1), octet-COMMAND(1) and octet-configuration(5).
std::vector<ManualFile> man_pages(const Command& root);

std::string bash_completion(const Command& root);
std::string zsh_completion(const Command& root);
std::string fish_completion(const Command& root);

}  // namespace octet::app

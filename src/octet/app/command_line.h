// The mechanics of the command line: adds commands and options, parses them, and refuses unknown ones. cli.cpp declares the
// commands and options.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "octet/app/commands.h"
#include "octet/app/manual/command.h"
#include "octet/base/fields.h"
#include "octet/base/require.h"

namespace octet::app {

// A mistake on the command line. The message begins with the command: "octet train: ...".
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(ExitCode::config, message) {}
};

// The type of one value of an option; for a list, the type of an element.
template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};
template <class T>
struct ValueOf<std::vector<T>> {
  using type = T;
};

class CommandLine {
 public:
  struct Text {
    std::string name;
    std::string summary;     // one sentence
    std::string example;     // a command line that works, or several with "\n  " between them
    std::string notes = "";  // further paragraphs
    std::string tail = "";   // what follows the options, for the usage
  };
  // An action returns the exit code. A command without one holds other commands and prints its help.
  using Action = std::function<int()>;

  explicit CommandLine(Text program);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App& root() { return root_; }
  CLI::App& add(CLI::App& parent, Text text, Action action = {});
  // An option ("--output", "-n,--ranks") or an argument ("DIR"); type, choices and range are checked as they are for a key of a run.
  template <class T>
  CLI::Option* option(CLI::App& command, const Field& field, T& member) {
    CLI::Option* option = command.add_option(std::string(field.name), member, std::string(field.help));
    using Value = typename ValueOf<T>::type;
    constexpr bool is_number = std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>;
    Field checked = field;
    if (std::is_unsigned_v<Value>) checked.range.min = std::max(checked.range.min, 0.0);
    if constexpr (is_number && std::is_integral_v<Value> && sizeof(Value) < sizeof(std::int64_t))
      checked.range.max = std::min(checked.range.max, static_cast<double>(std::numeric_limits<Value>::max()));
    if (is_number || !field.choices.empty()) option->check(check_of(checked, is_number, std::is_integral_v<Value>));
    if (is_path(field)) option->check(CLI::Validator([field](std::string& text) { return refusal_of_path(field, text); }, ""));
    option->type_name(placeholder_of(field));
    return option;
  }
  // An option for a number of bytes, at least 1, as people write it: 500MB, 4GiB.
  CLI::Option* size_option(CLI::App& command, const Field& field, std::int64_t& bytes);
  // Adds the argument RUN.toml, and an option for each of its keys.
  void takes_run(CLI::App& command, RunFile& run);
  void takes_keys(CLI::App& command, RunFile& run);

  int run(int argc, const char* const* argv);
  // Prints the help of the command with these names, such as {"data", "prepare"}. Returns 0.
  int help(const std::vector<std::string>& names) const;
  Command describe() const { return describe(root_); }
  // Returns `name`, which is an option or the name of a command. Throws UsageError for another name.
  const std::string& known_command(const std::string& name) const;

 private:
  struct Entry {
    Text text;
    Action action;
    std::vector<std::string>* keys = nullptr;  // where --section.key=value goes
  };
  static std::string refusal_of_path(const Field& field, const std::string& text);
  static CLI::Validator check_of(const Field& field, bool number, bool whole);
  static std::string placeholder_of(const Field& field);

  Command describe(const CLI::App& command) const;
  const CLI::App& chosen() const;
  void refuse_mistakes(const CLI::App& command, const std::vector<std::string>& arguments) const;
  void refuse_separate_values(const CLI::App& command, const std::vector<std::string>& arguments) const;
  void refuse_missing_values(const CLI::App& command, const std::vector<std::string>& arguments) const;
  void refuse_empty_elements(const CLI::App& command, const std::vector<std::string>& arguments) const;
  void refuse_values_of_flags(const CLI::App& command, const std::vector<std::string>& arguments) const;
  void refuse_extras(const CLI::App& command) const;
  [[noreturn]] void refuse_extra(const CLI::App& command, const std::string& extra) const;

  CLI::App root_;
  std::map<const CLI::App*, Entry> entries_;
};

}  // namespace octet::app

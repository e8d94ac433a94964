#include "octet/app/command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "octet/base/names.h"
#include "octet/base/visible.h"
#include "octet/telemetry/format.h"
#include "octet/train/config.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

// "octet data prepare".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

template <class... Parts>
[[noreturn]] void refuse(const CLI::App& command, const Parts&... parts) {
  throw UsageError(concat(full_name(command), ": ", parts...));
}

std::string advice(const CLI::App& command) { return concat("See `", full_name(command), " --help`."); }

std::string name_of_key(std::string_view argument) { return std::string(argument.substr(0, argument.find('='))); }

bool looks_like_a_key(std::string_view argument) {
  const std::string name = name_of_key(argument);
  return name.starts_with("--") && name.find('.') != std::string::npos;
}

std::vector<const CLI::App*> children_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

CommandOption describe_option(const CLI::Option& option) {
  CommandOption result{.value = option.get_type_name(),
                       .help = option.get_description(),
                       .default_value = option.get_default_str(),
                       .argument = option.get_positional(),
                       .required = option.get_required(),
                       .repeats = option.get_expected_max() > 1 && option.get_delimiter() == '\0'};
  if (result.argument) result.names.push_back(option.get_name(true));
  for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  if (option.get_items_expected_max() == 0) result.value = "";  // a flag
  return result;
}

}  // namespace

CommandLine::CommandLine(Text program) {
  root_.name(program.name);
  root_.set_help_flag("-h,--help", "Print help. Every command has this option.");
  root_.set_version_flag("--version", train::version_text(), "Print the version and the commit.");
  root_.require_subcommand(0, 1);
  root_.allow_extras();
  entries_[&root_].text = std::move(program);
}

CLI::App& CommandLine::add(CLI::App& parent, Text text, Action action) {
  CLI::App& command = *parent.add_subcommand(text.name);
  command.allow_extras();
  if (!action) command.require_subcommand(0, 1);
  entries_[&command] = {.text = std::move(text), .action = std::move(action)};
  return command;
}

std::string CommandLine::refusal_of_path(const Field& field, const std::string& text) {
  if (text.empty()) return "the path is empty; perhaps a variable of the shell is not set";
  const std::string why = why_no_path(field, text);
  return why.empty() ? "" : "`" + printable(text) + "`: " + why;
}

CLI::Validator CommandLine::check_of(const Field& field, bool number, bool whole) {
  const auto check = [choices = field.choices, range = field.range, number, whole](std::string& text) -> std::string {
    const std::string given = "`" + printable(text) + "` must be ";
    if (!number) {
      const std::vector<std::string> names = cut_choices(choices);
      const bool known = std::find(names.begin(), names.end(), text) != names.end();
      return known ? "" : given + "one of " + choices + did_you_mean(text, names);
    }
    double value = 0;
    std::int64_t integer = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = whole ? std::from_chars(text.data(), end, integer) : std::from_chars(text.data(), end, value);
    if (error == std::errc::result_out_of_range && stop == end) return "`" + printable(text) + "` is too large";
    if (error != std::errc() || stop != end) return given + (whole ? "a whole number" : "a number");
    if (whole) value = static_cast<double>(integer);
    return contains(range, value) ? "" : given + requirement(range, value);
  };
  return CLI::Validator(check, "");
}

CLI::Option* CommandLine::size_option(CLI::App& command, const Field& field, std::int64_t& bytes) {
  const auto read = [](std::string& text) -> std::string {
    const auto size = telemetry::parse_bytes(text);
    const std::string given = "`" + printable(text) + "` must be ";
    if (!size) return given + "a number of bytes with or without a unit, such as 500MB, 5GB or 4GiB";
    if (*size < 1) return given + "at least 1";
    text = std::to_string(*size);
    return "";
  };
  return command.add_option(std::string(field.name), bytes, std::string(field.help))
      ->transform(CLI::Validator(read, ""))
      ->type_name("SIZE");
}

std::string CommandLine::placeholder_of(const Field& field) {
  return field.choices.empty() ? std::string(field.value) : joined(cut_choices(field.choices), "|");
}

void CommandLine::takes_run(CLI::App& command, RunFile& run) {
  option(command, {.name = "RUN.toml", .help = "File of the run; `octet manual configuration` lists its keys.", .value = "FILE"}, run.path)
      ->required();
  takes_keys(command, run);
}

void CommandLine::takes_keys(CLI::App& command, RunFile& run) {
  Entry& entry = entries_[&command];
  entry.keys = &run.overrides;
  const std::string own = entry.text.notes;
  entry.text.notes =
      "Every key of the file is also an option: --section.key=value, for example --training.steps=100 or "
      "--precision.skip=a,b. If a key is given twice, the last one counts. Paths in the file are relative to the current "
      "directory.";
  if (!own.empty()) entry.text.notes += "\n\n" + own;
}

int CommandLine::run(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  try {
    root_.parse(argc, argv);
  } catch (const CLI::CallForVersion&) {
    if (arguments.size() > 1) refuse(root_, "`--version` takes no other arguments");
    std::fputs(concat("octet ", train::version_text(), "\n").c_str(), stdout);
    return 0;
  } catch (const CLI::Success&) {
    const CLI::App& command = chosen();
    for (const std::string& extra : command.remaining()) {
      if (!entries_.at(&command).action && !extra.starts_with("-")) refuse_extra(command, extra);  // `octet trian --help`
    }
    std::fputs(help_of(describe(command)).c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    const CLI::App& command = chosen();
    refuse_mistakes(command, arguments);
    refuse_values_of_flags(command, arguments);
    refuse_extras(root_);  // a mistyped option explains a missing one
    const std::string message = error.what();
    if (const std::size_t end = message.find(": At Most 1 required but received"); end != std::string::npos)
      refuse(command, "`", message.substr(0, end), "` is given more than once; give it once. ", advice(command));
    refuse(command, message.substr(0, message.find('\n')), ". ", advice(command));
  }
  const CLI::App& command = chosen();
  refuse_mistakes(command, arguments);
  refuse_extras(root_);
  const Entry& entry = entries_.at(&command);
  if (!entry.action) {  // `octet`, or a group such as `octet data`
    std::fputs(help_of(describe(command)).c_str(), stdout);
    return 0;
  }
  return entry.action();
}

int CommandLine::help(const std::vector<std::string>& names) const {
  const CLI::App* command = &root_;
  for (const std::string& name : names) {
    if (name == "--help" || name == "-h") continue;
    const std::vector<const CLI::App*> children = children_of(*command);
    const auto child = std::find_if(children.begin(), children.end(), [&](const CLI::App* c) { return c->get_name() == name; });
    if (child == children.end()) refuse_extra(*command, name);
    command = *child;
  }
  std::fputs(help_of(describe(*command)).c_str(), stdout);
  return 0;
}

const std::string& CommandLine::known_command(const std::string& name) const {
  const std::vector<const CLI::App*> commands = children_of(root_);
  const bool known = std::any_of(commands.begin(), commands.end(), [&](const CLI::App* c) { return c->get_name() == name; });
  if (!known && !name.starts_with("-")) refuse_extra(root_, name);
  return name;
}

Command CommandLine::describe(const CLI::App& command) const {
  const Entry& entry = entries_.at(&command);
  Command result{.name = full_name(command),
                 .summary = entry.text.summary,
                 .example = entry.text.example,
                 .notes = entry.text.notes,
                 .options = {},
                 .commands = {},
                 .takes_keys = entry.keys != nullptr,
                 .tail = entry.text.tail};
  for (const CLI::Option* option : command.get_options()) result.options.push_back(describe_option(*option));
  // --help comes first out of CLI11 and is read last.
  std::stable_partition(result.options.begin(), result.options.end(),
                        [](const CommandOption& option) { return option.names.back() != "--help"; });
  for (const CLI::App* child : children_of(command)) result.commands.push_back(describe(*child));
  return result;
}

const CLI::App& CommandLine::chosen() const {
  const CLI::App* command = &root_;
  for (auto next = command->get_subcommands(); !next.empty(); next = command->get_subcommands()) command = next.front();
  return *command;
}

// Refuses arguments that the parser would misread or leave out.
void CommandLine::refuse_mistakes(const CLI::App& command, const std::vector<std::string>& arguments) const {
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end())
    refuse(command, "unexpected argument `--`. Leave it out: only `octet launch` has one, before the command of the ranks.");
  refuse_separate_values(command, arguments);
  refuse_missing_values(command, arguments);
  refuse_empty_elements(command, arguments);
}

// `--training.steps 5`: the parser would take 5 for the run's file.
void CommandLine::refuse_separate_values(const CLI::App& command, const std::vector<std::string>& arguments) const {
  if (!entries_.at(&command).keys) return;
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    const std::string &key = arguments[i], &value = arguments[i + 1];
    if (!looks_like_a_key(key) || key.find('=') != std::string::npos || value.starts_with("-") || value.ends_with(".toml")) continue;
    refuse(command, "unexpected argument `", printable(value), "`. Options take a value with `=`: `", printable(key), "=", printable(value),
           "`.");
  }
}

// `--chat --input FILE`: the parser would take --input for the value of --chat.
void CommandLine::refuse_missing_values(const CLI::App& command, const std::vector<std::string>& arguments) const {
  const std::vector<std::string> names = option_names(command);
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    const std::string &name = arguments[i], &value = arguments[i + 1];
    if (std::find(names.begin(), names.end(), name) == names.end() || std::find(names.begin(), names.end(), value) == names.end()) continue;
    const CLI::Option& option = *command.get_option(name);
    if (option.get_items_expected_min() > 0) refuse(command, "`", name, "` needs a value: ", name, "=", option.get_type_name());
  }
}

// `--recipes bf16,,fp32`: the parser would leave the empty name out.
void CommandLine::refuse_empty_elements(const CLI::App& command, const std::vector<std::string>& arguments) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = name_of_key(arguments[i]);
    const CLI::Option* const option = name.starts_with("--") ? command.get_option_no_throw(name) : nullptr;
    if (!option || option->get_delimiter() == '\0') continue;
    const bool has_value = name.size() < arguments[i].size();
    if (!has_value && i + 1 == arguments.size()) continue;
    const std::string value = has_value ? arguments[i].substr(name.size() + 1) : arguments[i + 1];
    const char comma = option->get_delimiter();
    if (value.empty() || value.front() == comma || value.back() == comma ||
        value.find(std::string(2, comma)) != std::string::npos)
      refuse(command, name, ": `", printable(value), "` has an empty element. ", advice(command));
  }
}

// `--dry-run=now`: the parser takes only true and false, and does not say so.
void CommandLine::refuse_values_of_flags(const CLI::App& command, const std::vector<std::string>& arguments) const {
  for (const std::string& argument : arguments) {
    const std::string name = name_of_key(argument);
    const CLI::Option* const option = name.starts_with("--") && name != argument ? command.get_option_no_throw(name) : nullptr;
    const bool is_taken = argument.ends_with("=true") || argument.ends_with("=false");
    if (option && option->get_items_expected_max() == 0 && !is_taken)
      refuse(command, "`", printable(argument), "`: ", name, " takes no value. ", advice(command));
  }
}

void CommandLine::refuse_extras(const CLI::App& command) const {
  std::vector<std::string>* const keys = entries_.at(&command).keys;
  for (const std::string& extra : command.remaining()) {
    if (!keys || !looks_like_a_key(extra)) refuse_extra(command, extra);
    keys->push_back(extra.substr(2));
  }
  for (const CLI::App* child : command.get_subcommands()) refuse_extras(*child);
}

// Refuses an argument that no option and no command has taken.
void CommandLine::refuse_extra(const CLI::App& command, const std::string& extra) const {
  const std::string shown = "`" + printable(extra) + "`";
  if (extra.size() > 1 && extra[0] == '-') {
    const bool keys = entries_.at(&command).keys != nullptr;
    const std::string name = name_of_key(extra);
    const bool is_letter = name.size() == 2;
    std::vector<std::string> options = option_names(command);
    if (is_letter) std::erase_if(options, [&](const std::string& option) { return !option.starts_with("-" + name); });
    std::string near = did_you_mean(is_letter ? "-" + name : name, options);
    // A key without its section, or another program's name for it: --steps=5. A key in full is a better answer than a similar
    // option, unless one letter makes the option.
    const std::string option = nearest_name(name, option_names(command));
    const bool is_slip = !option.empty() && edit_distance(name, option) == 1;
    const std::string key = keys && !is_slip && name.size() > 2 ? train::nearest_key(name) : "";
    if (key.find('.') != std::string::npos) near = concat(" (did you mean --", key, "?)");
    if (near.empty() && keys) near = train::advise_key(name);
    if (!near.empty()) refuse(command, "unknown option ", shown, near);
    refuse(command, "unknown option ", shown, keys ? ". Keys of the run have the form `--section.key=value`. " : ". ",
           advice(command));
  }
  std::vector<std::string> names;
  for (const CLI::App* child : children_of(command)) names.push_back(child->get_name());
  if (!names.empty()) {
    const bool is_option = command.get_option_no_throw("--" + extra) != nullptr;
    const std::string near = is_option ? concat(" (did you mean --", extra, "?)") : did_you_mean(extra, names);
    refuse(command, "unknown command ", shown, near.empty() ? ". " + advice(command) : near);
  }
  if (command.get_name() == "launch") {
    refuse(command, "unexpected argument ", shown,
           ". The command of the ranks comes after `--`: `octet launch -n 2 -- train RUN.toml`.");
  }
  refuse(command, "unexpected argument ", shown, ". ", advice(command));
}

}  // namespace octet::app

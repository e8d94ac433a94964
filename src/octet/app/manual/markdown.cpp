// The reference pages. tools/reference.py puts what is printed here between the paragraphs of docs/reference.
#include <algorithm>

#include "octet/app/manual/manual.h"
#include "octet/base/names.h"
#include "octet/base/visible.h"
#include "octet/telemetry/metrics.h"
#include "octet/telemetry/stragglers.h"
#include "octet/train/config.h"

namespace octet::app {
namespace {

std::string code_span(const std::string& text) { return "`" + text + "`"; }

// A row of a table; a bar inside a cell would end it.
std::string table_row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    line += ' ';
    for (const char c : cell) line += c == '|' ? "\\|" : std::string(1, c);
    line += " |";
  }
  return line + "\n";
}

std::string markdown_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  std::string text = table_row(titles) + "|";
  for (std::size_t i = 0; i < titles.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& cells : rows) text += table_row(cells);
  return text + "\n";
}

std::string shell_block(const std::string& text) { return "```sh\n" + text + "\n```\n\n"; }

// Lines of examples stand two spaces deep in --help.
std::string without_indent(std::string text) {
  for (std::size_t at = text.find("\n  "); at != std::string::npos; at = text.find("\n  ", at + 1)) text.erase(at + 1, 2);
  return text;
}

// Lines that begin with two spaces become a block.
std::string markdown_notes(const std::string& text) {
  std::string result;
  bool block = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const bool indented = line.starts_with("  ");
    if (indented != block) result += indented ? "\n```\n" : "```\n\n";
    block = indented;
    result += (indented ? line.substr(2) : line) + "\n";
  }
  return result + (block ? "```\n\n" : "\n");
}

std::string section_of(const Command& command) {
  std::string text = "## " + code_span(command.name) + "\n\n" + command.summary + "\n\n" + shell_block(usage_of(command));
  std::vector<std::vector<std::string>> options, commands;
  for (const CommandOption& option : command.options) {
    if (option.names.back() == "--help") continue;  // every command has it; the page says so once
    options.push_back({code_span(spelling_of(option)), option.help + (option.required ? " Required." : ""),
                       option.default_value.empty() ? "" : code_span(option.default_value)});
  }
  for (const Command& child : command.commands) commands.push_back({code_span(child.name), child.summary});
  text += markdown_table({"command", "what it does"}, commands);
  text += markdown_table({"argument or option", "what it is", "default"}, options);
  if (!command.example.empty()) text += "Example:\n\n" + shell_block(without_indent(command.example));
  if (!command.notes.empty()) text += markdown_notes(command.notes);
  return text;
}

// The one that is called `name`, or all of them.
template <class T, class NameOf>
std::vector<T> selected(const std::vector<T>& all, const std::string& name, const char* topic, NameOf&& name_of) {
  if (name.empty()) return all;
  std::vector<std::string> names;
  for (const T& item : all) {
    if (name_of(item) == name) return {item};
    names.push_back(name_of(item));
  }
  fail(ExitCode::config, "nothing in `octet manual ", topic, "` is called `", printable(name), "`", did_you_mean(name, names));
}

std::string type_of(const KeyDescription& key) {
  std::string text = key.type;
  if (!key.field.choices.empty()) {
    text.clear();
    for (const std::string& word : cut_choices(key.field.choices)) text += (text.empty() ? "" : ", ") + code_span(word);
  } else if (!key.field.value.empty()) {
    text += " (" + std::string(key.field.value) + ")";
  }
  const std::string range = describe(key.field.range);
  return range.empty() ? text : text + ", " + range;
}

struct Section {
  std::string name, help;
};

std::vector<Section> sections() {
  std::vector<Section> result;
  const train::Config config;
  visit_fields(config, [&](const Field& field, const auto&) { result.push_back({std::string(field.name), std::string(field.help)}); });
  return result;
}

std::string json_type(std::int64_t) { return "whole number"; }
std::string json_type(double) { return "number or null"; }
std::string json_type(const std::optional<double>&) { return "number or null"; }
std::string json_type(const std::string&) { return "string"; }
std::string json_type(const std::vector<std::int64_t>&) { return "list of numbers"; }
std::string json_type(const telemetry::NamedNumbers&) { return "object of numbers, or null"; }

std::string json_type(const telemetry::JsonText&) { return "object"; }

struct RecordFile {
  std::string name, help;
  std::string text;
};

template <class Record>
RecordFile record_file(const std::string& name, const std::string& help) {
  std::vector<std::vector<std::string>> rows;
  bool tags = false;
  const Record record;
  visit_fields(record, [&](const telemetry::FieldName& field, const auto& member) {
    tags |= *field.tensorboard != '\0';
    rows.push_back({code_span(field.json), json_type(member), field.help, *field.tensorboard ? code_span(field.tensorboard) : ""});
  });
  std::vector<std::string> titles = {"field", "type", "what it is", "TensorBoard"};
  if (!tags) {
    titles.pop_back();
    for (auto& cells : rows) cells.pop_back();
  }
  return {name, help, "## " + code_span(name) + "\n\n" + help + "\n\n" + markdown_table(titles, rows)};
}

std::vector<RecordFile> record_files() {
  return {
      record_file<telemetry::StepMetrics>("metrics.jsonl", "One JSON object in each line, for each step that is logged."),
      record_file<telemetry::HealthSample>("fp8_health.jsonl",
                                           "One JSON object in each line, for each quantised tensor of each sampled step, "
                                           "and in mxfp8 for each norm."),
      record_file<telemetry::AttentionSample>("attention_health.jsonl",
                                              "One JSON object in each line, for each attention layer of each sampled step."),
      record_file<telemetry::ExpertSample>(
          "expert_loads.jsonl",
          "One JSON object in each line, for each mixture of experts of each sampled step. Models "
          "without experts have no such file."),
      record_file<telemetry::StragglerRecord>("stragglers.jsonl",
                                              "One JSON object in each line, when a rank has become slower than the others "
                                              "(health.straggler) and when it has recovered. There is no such file before."),
      record_file<telemetry::RunInfo>(
          "run.json",
          "One JSON object with the facts of the run. Written before the first step, after each checkpoint "
          "and at the end."),
  };
}

}  // namespace

std::vector<std::string> manual_parts(const Command& root, const std::string& topic) {
  std::vector<std::string> parts;
  if (topic == "commands") {
    for (const Command& command : root.commands) parts.push_back(command.name.substr(root.name.size() + 1));
  } else if (topic == "configuration") {
    for (const Section& section : sections()) parts.push_back(section.name);
  } else if (topic == "files") {
    for (const RecordFile& file : record_files()) parts.push_back(file.name);
  }
  return parts;
}

std::string commands_page(const Command& root, const std::string& name) {
  std::vector<Command> all;
  for (const Command* command : all_of(root)) all.push_back(*command);
  std::string text;
  const auto short_name = [&](const Command& c) { return c.name.substr(std::min(c.name.size(), root.name.size() + 1)); };
  for (const Command& command : selected(all, name, "commands", short_name)) text += section_of(command);
  return text;
}

std::string configuration_page(const std::string& section) {
  std::string text;
  for (const Section& part : selected(sections(), section, "configuration", [](const Section& s) { return s.name; })) {
    std::vector<std::vector<std::string>> rows;
    for (const KeyDescription& key : train::config_keys()) {
      if (!key.path.starts_with(part.name + ".")) continue;
      rows.push_back(
          {code_span(key.path), type_of(key), key.default_value.empty() ? "" : code_span(key.default_value), std::string(key.field.help)});
    }
    text += "## " + code_span("[" + part.name + "]") + "\n\n" + part.help + "\n\n" +
            markdown_table({"key", "type", "default", "what it is"}, rows);
  }
  return text;
}

std::string files_page(const std::string& file) {
  std::string text;
  for (const RecordFile& record : selected(record_files(), file, "files", [](const RecordFile& f) { return f.name; }))
    text += record.text;
  return text;
}

std::string exit_codes_page() {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [number, sentence] : exit_codes()) rows.push_back({std::to_string(number), std::string(sentence)});
  return markdown_table({"code", "meaning"}, rows);
}

}  // namespace octet::app

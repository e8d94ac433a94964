// Man pages in the man(7) macros, which man-db, groff and mandoc read.
#include <algorithm>

#include "octet/app/manual/manual.h"
#include "octet/train/config.h"
#include "octet/train/version.h"

namespace octet::app {
namespace {

// roff reads a backslash anywhere and a dot or an apostrophe at the beginning of a line as its own; a bare hyphen may be broken.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool at_line_begin = result.empty() || result.back() == '\n';
    if (at_line_begin && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::string heading(const char* title) { return std::string(".SH ") + title + "\n"; }
std::string man_item(const std::string& name, const std::string& text) { return ".TP\n.B " + roff(name) + "\n" + roff(text) + "\n"; }
std::string man_block(const std::string& text) { return ".RS 4\n.nf\n" + roff(text) + "\n.fi\n.RE\n"; }

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string man_title(const std::string& name, const char* number) {
  std::string upper = name;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return ".TH " + roff(upper) + " " + number + " \"\" \"octet " + train::version() + "\" \"Octet manual\"\n";
}

// "Trains a model." as whatis(1) shows it: no full stop.
std::string name_line(const std::string& name, std::string summary) {
  if (summary.ends_with('.')) summary.pop_back();
  return heading("NAME") + roff(name) + " \\- " + roff(summary) + "\n";
}

// Paragraphs; lines that begin with two spaces are a block.
std::string paragraphs(const std::string& text) {
  std::string result, lines;
  const auto end_block = [&] {
    if (!lines.empty()) result += (result.empty() ? "" : ".PP\n") + man_block(lines);
    lines.clear();
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("  ")) {
      lines += (lines.empty() ? "" : "\n") + line.substr(2);
    } else {
      end_block();
      if (!line.empty()) result += ".PP\n" + roff(line) + "\n";
    }
  }
  end_block();
  return result;
}

std::string exit_status() {
  std::string text = heading("EXIT STATUS");
  for (const auto& [code, sentence] : exit_codes()) text += man_item(std::to_string(code), std::string(sentence));
  return text;
}

std::string man_page(const Command& command) {
  const std::string name = dashed(command.name);
  std::string text = man_title(name, "1") + name_line(name, command.summary) + heading("SYNOPSIS") + ".B " + roff(usage_of(command)) + "\n";
  if (!command.notes.empty()) text += heading("DESCRIPTION") + roff(command.summary) + "\n" + paragraphs(command.notes);
  if (!command.commands.empty()) text += heading("COMMANDS");
  for (const Command& child : command.commands) text += man_item(dashed(child.name) + "(1)", child.summary);
  text += heading("OPTIONS");
  for (const CommandOption& option : command.options) {
    const std::string remark = !option.default_value.empty() ? " Default: " + option.default_value + "."
                               : option.required             ? " Required."
                                                             : "";
    text += man_item(spelling_of(option), option.help + remark);
  }
  if (!command.example.empty()) text += heading("EXAMPLES") + paragraphs("  " + command.example);
  text += exit_status() + heading("SEE ALSO");
  const std::size_t last = command.name.rfind(' ');
  if (last != std::string::npos) text += ".BR " + roff(dashed(command.name.substr(0, last))) + " (1),\n";
  return text + ".BR octet\\-configuration (5)\n";
}

std::string configuration_man_page() {
  const std::string name = "octet-configuration";
  std::string text = man_title(name, "5") + name_line(name, "file of a run, and its keys") + heading("DESCRIPTION") +
                     "A run is one TOML file. Every key has a default, and every key is also an option: \\-\\-section.key=value.\n";
  std::string open;
  for (const KeyDescription& key : train::config_keys()) {
    const std::string table = key.path.substr(0, key.path.find('.'));
    if (table != open) text += ".SH [" + table + "]\n";
    open = table;
    const std::string choices = key.field.choices.empty() ? ""
                                : (key.type.starts_with("list") ? " Any of " : " One of ") + key.field.choices + ".";
    text += man_item(key.path,
                     std::string(key.field.help) + choices + (key.default_value.empty() ? "" : " Default: " + key.default_value + "."));
  }
  return text + heading("SEE ALSO") + ".BR octet\\-train (1)\n";
}

}  // namespace

std::vector<ManualFile> man_pages(const Command& root) {
  std::vector<ManualFile> pages;
  for (const Command* command : all_of(root)) pages.push_back({"man/man1/" + dashed(command->name) + ".1", man_page(*command)});
  pages.push_back({"man/man5/octet-configuration.5", configuration_man_page()});
  return pages;
}

}  // namespace octet::app

// TOML text to a tree that remembers lines, and back. The only door to the parser, which is slow to compile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet {

struct TomlEntry;

struct TomlNode {
  enum class Kind : std::uint8_t { absent, boolean, integer, real, string, array, table };
  Kind kind = Kind::absent;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string string;
  std::vector<TomlNode> items;      // of an array
  std::vector<TomlEntry> entries;   // of a table, in the order of the text
  int line = 0;                     // from 1; 0 when it does not come from a file
  std::string raw;                  // of an override: the text as it was typed

  static TomlNode of(bool value);
  static TomlNode of(std::int64_t value);
  static TomlNode of(double value);
  static TomlNode of(std::string value);
  const TomlNode* find(std::string_view key) const;  // null when this is no table or has no such key
};

struct TomlEntry {
  std::string key;
  TomlNode value;
  std::string comment;  // printed behind or above it
};

// "a whole number", "a string", ...
std::string_view describe(TomlNode::Kind kind);

// The table of a whole document. Throws Error{config} "SOURCE:LINE: reason" in one line.
TomlNode parse_toml(std::string_view text, const std::string& source);

// The value of an option KEY=TEXT: TEXT as a TOML value, or a bare string. Throws Error{config} "SOURCE: reason" for a quoted
// string, list or table that does not end, and for text that is not UTF-8.
TomlNode parse_toml_value(const std::string& text, const std::string& source);

// A value in one line. Reals keep their value exactly.
std::string to_toml(const TomlNode& value);

// A table as a document that parse_toml reads back: plain keys first, then sections. Absent values become comments.
std::string to_toml_document(const TomlNode& table);

}  // namespace octet

// Parsing of TOML into a tree that keeps line numbers, and writing of such a tree. Only toml.cpp includes the TOML parser,
// because the parser takes long to compile.
#pragma once

#include <cstddef>
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
  std::vector<TomlNode> items;      // elements of an array
  std::vector<TomlEntry> entries;   // entries of a table, in the order of the text; or those that an absent table would have
  int line = 0;                     // line in the file, from 1; 0 if the value does not come from a file
  std::string raw;                  // for an override: its text as the user typed it

  static TomlNode of(bool value);
  static TomlNode of(std::int64_t value);
  static TomlNode of(double value);
  static TomlNode of(std::string value);
  const TomlNode* find(std::string_view key) const;  // null if this is not a table or has no such key
};

struct TomlEntry {
  std::string key;
  TomlNode value;
  std::string comment;  // to_toml_document prints it after the value
};

// A kind in words for messages: "a whole number", "a string", ...
std::string_view describe(TomlNode::Kind kind);

// The limits of a document. The parser's trees are destroyed recursively, so that a few hundred thousand dotted keys would overflow
// the stack. tools/check_layers.py finds other calls of the parser.
inline constexpr int kTomlDepth = 64;  // keys of a path, lists and inline tables within each other
inline constexpr std::size_t kTomlBytes = std::size_t{1} << 22;

// Parses a whole document into a table. Throws Error{config} with the one-line message "SOURCE:LINE: reason", also if a key
// occurs twice.
TomlNode parse_toml(std::string_view text, const std::string& source);

// Parses the TEXT of an option KEY=TEXT as a TOML value. Text that is not a TOML value becomes a string. Throws Error{config}
// "SOURCE: reason" if a quoted string, list or inline table is not valid TOML, or if the text is not UTF-8.
TomlNode parse_toml_value(const std::string& text, const std::string& source);

// Writes a value on one line. Reals are written with enough digits to be read back exactly.
std::string to_toml(const TomlNode& value);

// Writes a table as a document that parse_toml can read: first the plain keys, then the sections. Absent values and
// sections become comments.
std::string to_toml_document(const TomlNode& table);

}  // namespace octet

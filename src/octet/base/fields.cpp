#include "octet/base/fields.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/base/visible.h"

namespace octet {
namespace {

std::string number_text(double number) {
  std::ostringstream out;
  out.precision(15);
  out << number;
  return out.str();
}

std::string value_text(const TomlNode& value) {
  constexpr std::size_t kLongest = 80;
  std::string text = to_toml(value);
  if (text.size() > kLongest) {
    std::size_t cut = kLongest;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // does not cut inside a UTF-8 character
    text = text.substr(0, cut) + "...";
  }
  return text;
}

// Whether this is a whole number, of any size.
bool is_digits(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789_") == std::string_view::npos;
}

std::string file_and_line(const FieldSource& source, const TomlNode& value) {
  return value.line > 0 && !source.is_override ? concat(source.name, ":", value.line) : source.name;
}

}  // namespace

bool is_path(const Field& field) {
  constexpr std::string_view kPaths[] = {"DIR", "FILE", "PATH", "PREFIX", "PRESET"};
  return std::find(std::begin(kPaths), std::end(kPaths), field.value) != std::end(kPaths);
}

std::string why_no_path(const Field& field, std::string_view text) {
  if (text == "~" || text.starts_with("~/")) return "`~` is not your home folder here; give the whole path";
  const std::size_t colon = text.find("://");
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto of_scheme = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.'; };
  if (colon == std::string_view::npos || colon == 0 || !is_letter(text[0])) return "";
  const std::string_view scheme = text.substr(0, colon);
  if (!std::all_of(scheme.begin(), scheme.end(), of_scheme)) return "";
  if (field.s3 && scheme == "s3") return "";
  return concat(scheme, ":// is not supported; give ", field.s3 ? "s3://BUCKET/PREFIX or " : "",
                "a path of a file system that is mounted here");
}

bool contains(const Range& range, double number) {
  return (range.above_min ? number > range.min : number >= range.min) && (range.below_max ? number < range.max : number <= range.max) &&
         std::isfinite(number);
}

std::string describe(const Range& range) {
  const bool low = std::isfinite(range.min), high = std::isfinite(range.max);
  const std::string from = (range.above_min ? "above " : "at least ") + number_text(range.min);
  const std::string to = (range.below_max ? "below " : "at most ") + number_text(range.max);
  return low && high ? from + " and " + to : low ? from : high ? to : "";
}

std::string requirement(const Range& range, double number) {
  const std::string limits = describe(range);
  const bool says_it = std::isfinite(range.min) && std::isfinite(range.max);
  return std::isfinite(number) || says_it ? limits : limits.empty() ? "finite" : limits + " and finite";
}

std::vector<std::string> cut_choices(std::string_view choices) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < choices.size();) {
    const std::size_t bar = std::min(choices.find(" | ", begin), choices.size());
    result.emplace_back(choices.substr(begin, bar - begin));
    begin = bar + 3;
  }
  return result;
}

std::string place_of(const FieldSource& source, const std::string& path, const TomlNode& value) {
  const std::string_view own_key = std::string_view(source.name).substr(0, source.name.find('='));
  if (source.is_override && (own_key.ends_with(path) || value.kind == TomlNode::Kind::table)) return source.name;
  if (source.is_override) return concat(source.name, ": ", printable(path), " = ", value_text(value));
  return file_and_line(source, value) + ": " + printable(path) + " = " + value_text(value);
}

void fail_unknown_key(const FieldSource& source, const std::string& path, const TomlNode& value) {
  std::string full = path;  // an override gives one key, which says more than the section that is unknown
  for (const TomlNode* at = &value; source.is_override && at->kind == TomlNode::Kind::table && !at->entries.empty();) {
    full = detail::join(full, at->entries.front().key);
    at = &at->entries.front().value;
  }
  const std::string where = file_and_line(source, value);
  fail(ExitCode::config, where, ": ", printable(full), ": unknown key", source.advise ? source.advise(full) : "");
}

void fail_unknown_element(const FieldSource& source, const std::string& path, std::string_view key, std::size_t size) {
  const bool number = !key.empty() && key.find_first_not_of("0123456789") == key.npos;
  if (!number)
    fail(ExitCode::config, source.name, ": ", path, " is a list; give the number of an element: --", path, ".0.", printable(key));
  fail(ExitCode::config, source.name, ": there is no ", path, ".", key, "; ", path, ".", size, " adds one");
}

void fail_wrong_type(const FieldSource& source, const std::string& path, const TomlNode& value, std::string_view wanted) {
  const std::string_view kind = describe(value.kind);
  const bool whole = wanted == describe(TomlNode::Kind::integer);
  demand(!whole || !is_digits(value.raw), ExitCode::config, place_of(source, path, value), ": too large for a number of 64 bits");
  const bool says_nothing = kind == wanted || wanted.find(kind) == 0 || (whole && value.kind == TomlNode::Kind::real);
  const std::string found = says_nothing ? "" : ", not " + std::string(kind);
  fail(ExitCode::config, place_of(source, path, value), ": must be ", wanted, found);
}

void check_range(const FieldSource& source, const std::string& path, const TomlNode& value, const Range& range, double number) {
  if (contains(range, number)) return;
  fail(ExitCode::config, place_of(source, path, value), ": must be ", requirement(range, number));
}

void check_path(const FieldSource& source, const std::string& path, const TomlNode& value, const Field& field,
                const std::string& text) {
  const std::string why = why_no_path(field, text);
  if (!why.empty()) fail(ExitCode::config, place_of(source, path, value), ": ", why);
}

void check_choice(const FieldSource& source, const std::string& path, const TomlNode& value, const std::string& choices,
                  const std::string& text) {
  if (choices.empty()) return;
  const std::vector<std::string> names = cut_choices(choices);
  for (const std::string& name : names) {
    if (name == text) return;
  }
  fail(ExitCode::config, place_of(source, path, value), ": must be one of ", choices, did_you_mean(text, names));
}

std::vector<TomlNode> split_list(const TomlNode& value) {
  std::vector<TomlNode> result;
  if (value.raw.empty()) return result;
  // Commas inside a quoted value or an inline table do not separate elements.
  if (value.raw[0] == '"' || value.raw[0] == '\'' || value.kind == TomlNode::Kind::table) return {value};
  for (std::size_t begin = 0; begin <= value.raw.size();) {
    const std::size_t comma = std::min(value.raw.find(',', begin), value.raw.size());
    result.push_back(parse_toml_value(value.raw.substr(begin, comma - begin), printable(value.raw)));
    begin = comma + 1;
  }
  return result;
}

}  // namespace octet

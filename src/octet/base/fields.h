// One declaration of a struct's members serves reading, type checks, ranges, printing, suggestions and the reference:
//     template <FieldsOf<Run> R> void visit_fields(R& run, auto&& visit) {
//       visit(Field{.name = "seed", .help = "Seed of everything random."}, run.seed);
//     }
// Members are bool, integers, double, std::string, records (structs with visit_fields), and std::optional, std::vector
// and std::array of these.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "octet/base/require.h"
#include "octet/base/toml.h"

namespace octet {

template <class T, class Record>
concept FieldsOf = std::is_same_v<std::remove_const_t<T>, Record>;

// The limits of a number, or of each number of a list.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is outside
  bool below_max = false;  // max itself is outside
};
inline constexpr Range kAnyNumber{};
inline constexpr Range kPositive{.min = 0, .above_min = true};
inline constexpr Range kNotNegative{.min = 0};
inline constexpr Range kAtLeastOne{.min = 1};
inline constexpr Range kFraction{.min = 0, .max = 1};
// A range for settings that FP32 computes with. Its limit is far below FP32's largest number, so that results do not overflow.
inline constexpr Range kPositiveFp32{.min = 0, .max = 1e30, .above_min = true};
inline constexpr Range kNotNegativeFp32{.min = 0, .max = 1e30};
// An epsilon is added to a number of moderate size. If it were larger than 1, it would drown that number, and a run would learn
// nothing.
inline constexpr Range kEpsilon{.min = std::numeric_limits<float>::min(), .max = 1};

struct Field {
  std::string_view name;
  std::string_view help = "";   // one plain sentence: --print-config, the reference page and shell completion show it
  std::string_view value = "";  // what a value is: the unit of a number ("steps"), what a string names ("DIR": is_path()), or ""
  std::string choices = "";     // the strings that are allowed: "a | b | c"; "" for any string
  Range range = kAnyNumber;
  bool number = false;          // a string may also be given as a number without quotes
  bool single = false;          // a list of strings may be one string, its only element; a record may be one for all members
  bool s3 = false;              // a path may also be given as s3://BUCKET/PREFIX
};

// A key as the reference describes it.
struct KeyDescription {
  std::string path;           // "data.source.weight"
  std::string option;         // "data.source.0.weight": an option names one element of a list of tables
  Field field;
  std::string type;           // "whole number", "list of strings", ...
  std::string default_value;  // as TOML; "" if the key has none
};

// Whether a field's `value` says that the user gives a path: DIR, FILE, PATH, PREFIX, or PRESET, which may also be a file.
bool is_path(const Field& field);
// Why text cannot be the path of this field, or "". URLs are refused, except those of field.s3: gs://bucket/x would become the
// folder "gs:" here. So is ~/x, which would become a folder "~".
std::string why_no_path(const Field& field, std::string_view text);
bool contains(const Range& range, double number);
// "at least 0 and below 1", or "" if any number is in the range.
std::string describe(const Range& range);
// What `range` requires of a number outside it: "at least 1", "finite".
std::string requirement(const Range& range, double number);
// "a | b | c" cut at its bars.
std::vector<std::string> cut_choices(std::string_view choices);

// The source of values, and the advice that the message about an unknown key gives.
struct FieldSource {
  std::string name;                                               // a file, or "--section.key=value"
  bool is_override = false;
  std::function<std::string(const std::string& path)> advise = {};  // the advice for an unknown key: " (did you mean X?)" or ""
};

// "FILE:12: section.key = value", "--section.key=value": the beginning of every message about a value.
std::string place_of(const FieldSource& source, const std::string& path, const TomlNode& value);
[[noreturn]] void fail_unknown_key(const FieldSource& source, const std::string& path, const TomlNode& value);
[[noreturn]] void fail_wrong_type(const FieldSource& source, const std::string& path, const TomlNode& value, std::string_view wanted);
[[noreturn]] void fail_unknown_element(const FieldSource& source, const std::string& path, std::string_view key,
                                       std::size_t size);
void check_range(const FieldSource& source, const std::string& path, const TomlNode& value, const Range& range, double number);
void check_path(const FieldSource& source, const std::string& path, const TomlNode& value, const Field& field,
                const std::string& text);
void check_choice(const FieldSource& source, const std::string& path, const TomlNode& value, const std::string& choices,
                  const std::string& text);
// The typed text of an override "a,b" cut at its commas.
std::vector<TomlNode> split_list(const TomlNode& value);

namespace detail {
struct AnyVisitor {
  template <class T> void operator()(const Field&, T&) const {}
};
template <class T> inline constexpr bool kIsOptional = false;
template <class T> inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T> inline constexpr bool kIsVector = false;
template <class T> inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T> inline constexpr bool kIsArray = false;
template <class T, std::size_t N> inline constexpr bool kIsArray<std::array<T, N>> = true;
inline std::string join(const std::string& prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : prefix + "." + std::string(name);
}
}  // namespace detail

template <class T>
concept Record = requires(T& record, detail::AnyVisitor visitor) { visit_fields(record, visitor); };

template <class T>
void read_field(T& member, const Field& field, const TomlNode& value, const FieldSource& source, const std::string& path);

// Sets the members that `table` names and leaves the others. Throws Error{config}.
template <Record R>
void read_record(R& record, const TomlNode& table, const FieldSource& source, const std::string& path) {
  if (table.kind != TomlNode::Kind::table) fail_wrong_type(source, path, table, "a table ([" + path + "])");
  for (const TomlEntry& entry : table.entries) {
    bool known = false;
    visit_fields(record, [&](const Field& field, auto& member) {
      if (field.name != entry.key) return;
      known = true;
      read_field(member, field, entry.value, source, detail::join(path, entry.key));
    });
    if (!known) fail_unknown_key(source, detail::join(path, entry.key), entry.value);
  }
}

namespace detail {

template <std::integral T>
void read_integer(T& member, const Field& field, const TomlNode& value, const FieldSource& source, const std::string& path) {
  if (value.kind != TomlNode::Kind::integer) fail_wrong_type(source, path, value, "a whole number");
  Range range = field.range;
  if (range.min < 0 && std::is_unsigned_v<T>) range.min = 0;
  check_range(source, path, value, range, static_cast<double>(value.integer));
  if (!std::in_range<T>(value.integer)) {
    range = {.min = static_cast<double>(std::numeric_limits<T>::min()), .max = static_cast<double>(std::numeric_limits<T>::max())};
    check_range(source, path, value, range, static_cast<double>(value.integer));
  }
  member = static_cast<T>(value.integer);
}

template <class T>
void read_list(std::vector<T>& member, const Field& field, const TomlNode& value, const FieldSource& source, const std::string& path) {
  if constexpr (Record<T>) {
    // An override names an element by its number: data.source.0.path=...
    if (source.is_override && value.kind == TomlNode::Kind::table) {
      for (const TomlEntry& entry : value.entries) {
        const bool next = entry.key == std::to_string(member.size());
        std::size_t i = next ? member.size() : 0;
        while (i < member.size() && entry.key != std::to_string(i)) ++i;
        if (i == member.size() && !next) fail_unknown_element(source, path, entry.key, member.size());
        if (next) member.emplace_back();
        read_record(member[i], entry.value, source, join(path, entry.key));
      }
      return;
    }
    if (value.kind != TomlNode::Kind::array) fail_wrong_type(source, path, value, "a list of tables ([[" + path + "]])");
  }
  const bool typed = source.is_override && value.kind != TomlNode::Kind::array;
  const bool alone = !typed && field.single && value.kind == TomlNode::Kind::string;
  if (!typed && !alone && value.kind != TomlNode::Kind::array) fail_wrong_type(source, path, value, "a list");
  const std::vector<TomlNode> cut = typed ? split_list(value) : alone ? std::vector{value} : std::vector<TomlNode>();
  std::vector<T> result;
  for (const TomlNode& item : typed || alone ? cut : value.items) {
    if constexpr (Record<T>) {
      read_record(result.emplace_back(), item, source, path);
    } else {
      T element{};
      read_field(element, field, item, source, path);
      result.push_back(std::move(element));
    }
  }
  member = std::move(result);
}

}  // namespace detail

template <class T>
void read_field(T& member, const Field& field, const TomlNode& value, const FieldSource& source, const std::string& path) {
  using Kind = TomlNode::Kind;
  if constexpr (detail::kIsOptional<T>) {
    if (!member) member.emplace();
    read_field(*member, field, value, source, path);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (value.kind != Kind::boolean) fail_wrong_type(source, path, value, "true or false");
    member = value.boolean;
  } else if constexpr (std::is_integral_v<T>) {
    detail::read_integer(member, field, value, source, path);
  } else if constexpr (std::is_same_v<T, double>) {
    if (value.kind != Kind::real && value.kind != Kind::integer) fail_wrong_type(source, path, value, "a number");
    const double number = value.kind == Kind::real ? value.real : static_cast<double>(value.integer);
    check_range(source, path, value, field.range, number);
    member = number;
  } else if constexpr (std::is_same_v<T, std::string>) {
    // `auto | true | false` may be written with or without quotes; an override's bare text is a string whatever it looks like.
    std::string text = value.string;
    if (value.kind == Kind::boolean && field.choices.find("true") != std::string::npos) {
      text = value.boolean ? "true" : "false";
    } else if (field.number && value.raw.empty() && (value.kind == Kind::real || value.kind == Kind::integer)) {
      text = value.kind == Kind::real ? concat(value.real) : concat(value.integer);
    } else if (value.kind != Kind::string) {
      if (value.raw.empty()) fail_wrong_type(source, path, value, "a string");
      text = value.raw;
    }
    check_choice(source, path, value, field.choices, text);
    if (is_path(field)) check_path(source, path, value, field, text);
    member = std::move(text);
  } else if constexpr (detail::kIsVector<T>) {
    detail::read_list(member, field, value, source, path);
  } else if constexpr (detail::kIsArray<T>) {
    std::vector<typename T::value_type> list;
    detail::read_list(list, field, value, source, path);
    if (list.size() != member.size()) {
      fail_wrong_type(source, path, value, "a list of " + std::to_string(member.size()));
    }
    for (std::size_t i = 0; i < list.size(); ++i) member[i] = list[i];
  } else {
    static_assert(Record<T>, "a member of a type that fields.h does not know");
    if (field.single && value.kind != Kind::table) {
      visit_fields(member, [&](const Field& inner, auto& each) { read_field(each, inner, value, source, path); });
    } else {
      read_record(member, value, source, path);
    }
  }
}

namespace detail {
inline TomlNode single_node(TomlNode table) {
  const std::string& first = table.entries.front().value.string;
  for (const TomlEntry& entry : table.entries) {
    if (entry.value.string != first) return table;
  }
  return TomlNode::of(first);
}
}  // namespace detail

// Returns the value as a tree. A record's fields are in the order of their declaration, with their help as comments; empty
// optionals and empty lists of records are absent, and an absent record has its defaults as entries. A record that may be given
// as one string becomes this string if all of its members are equal.
template <class T>
TomlNode to_node(const T& value) {
  TomlNode node;
  if constexpr (detail::kIsOptional<T>) {
    if (value) {
      node = to_node(*value);
    } else if constexpr (Record<typename T::value_type>) {
      node.entries = to_node(typename T::value_type{}).entries;
    }
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    node = TomlNode::of(static_cast<std::int64_t>(value));
  } else if constexpr (detail::kIsVector<T> || detail::kIsArray<T>) {
    if (Record<typename T::value_type> && value.empty()) return node;
    node.kind = TomlNode::Kind::array;
    for (const auto& item : value) node.items.push_back(to_node(item));
  } else if constexpr (Record<const T>) {
    node.kind = TomlNode::Kind::table;
    visit_fields(value, [&](const Field& field, const auto& member) {
      std::string comment(field.help);
      const char* const among = detail::kIsVector<std::remove_cvref_t<decltype(member)>> ? "Any of " : "One of ";
      if (!field.choices.empty()) comment += (comment.empty() ? "" : " ") + (among + field.choices) + ".";
      TomlNode inner = to_node(member);
      if (field.single && inner.kind == TomlNode::Kind::table) inner = detail::single_node(std::move(inner));
      node.entries.push_back({.key = std::string(field.name), .value = std::move(inner), .comment = std::move(comment)});
    });
  } else {
    node = TomlNode::of(value);
  }
  return node;
}

namespace detail {

template <class T>
concept HolderOfRecords = (kIsOptional<T> || kIsVector<T>) && Record<typename T::value_type>;

template <class T>
std::string type_name() {
  if constexpr (kIsOptional<T>) {
    return type_name<typename T::value_type>();
  } else if constexpr (kIsVector<T>) {
    return "list of " + type_name<typename T::value_type>() + "s";
  } else if constexpr (kIsArray<T>) {
    return std::to_string(T{}.size()) + " " + type_name<typename T::value_type>() + "s";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<T>) {
    return "whole number";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else {
    static_assert(std::is_same_v<T, std::string>);
    return "string";
  }
}

template <class T>
void describe_key(std::vector<KeyDescription>& keys, const T& value, const Field& field, const std::string& path,
                  const std::string& option) {
  const auto describe_members = [&](const auto& record, const std::string& prefix) {
    visit_fields(record, [&](const Field& inner, const auto& member) {
      describe_key(keys, member, inner, join(path, inner.name), join(prefix, inner.name));
    });
  };
  if constexpr (Record<T>) {
    if (field.single) {
      const std::string value_text = to_toml(single_node(to_node(value)));
      keys.push_back({.path = path, .option = option, .field = field, .type = "string or table", .default_value = value_text});
    }
    describe_members(value, option);
  } else if constexpr (HolderOfRecords<T>) {
    describe_members(typename T::value_type{}, kIsVector<T> ? option + ".0" : option);
  } else {
    keys.push_back({.path = path, .option = option, .field = field, .type = type_name<T>(), .default_value = to_toml(to_node(value))});
  }
}

}  // namespace detail

// Every key of a record, in the order of its declaration.
template <Record R>
std::vector<KeyDescription> describe_keys() {
  std::vector<KeyDescription> keys;
  detail::describe_key(keys, R{}, Field{}, "", "");
  return keys;
}

}  // namespace octet

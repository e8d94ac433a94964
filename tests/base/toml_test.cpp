#include "octet/base/toml.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "support/errors.h"

namespace octet {
namespace {

using Kind = TomlNode::Kind;

std::string toml_error(const std::string& text) {
  return testing::error_if_any(ExitCode::config, [&] { parse_toml(text, "run.toml"); });
}

TEST(Toml, KeepsKindsLinesAndOrder) {
  const TomlNode root = parse_toml("z = 1\n[b]\ny = 2.5\nx = 'text'\n\n[a]\nlist = [1, 'two']\nyes = true\n", "run.toml");
  ASSERT_EQ(root.entries.size(), 3u);
  EXPECT_EQ(root.entries[0].key, "z");
  EXPECT_EQ(root.entries[1].key, "b");
  EXPECT_EQ(root.entries[2].key, "a");
  const TomlNode& b = root.entries[1].value;
  EXPECT_EQ(b.entries[0].key, "y");
  EXPECT_EQ(b.entries[0].value.kind, Kind::real);
  EXPECT_EQ(b.entries[0].value.line, 3);
  EXPECT_EQ(b.find("x")->string, "text");
  EXPECT_EQ(b.find("none"), nullptr);
  const TomlNode& a = root.entries[2].value;
  EXPECT_EQ(a.find("list")->items[1].string, "two");
  EXPECT_EQ(a.find("yes")->line, 8);
  EXPECT_TRUE(a.find("yes")->boolean);
}

TEST(Toml, BrokenTextGetsOneLineWithItsPlace) {
  EXPECT_EQ(toml_error("[optimizer]\nlr == 3\n").rfind("run.toml:2: ", 0), 0u) << toml_error("[optimizer]\nlr == 3\n");
  EXPECT_EQ(toml_error("a = 1\na = 2\n").rfind("run.toml:2: ", 0), 0u);
  EXPECT_EQ(toml_error("a = [1, 2\n").rfind("run.toml:", 0), 0u);
  EXPECT_EQ(toml_error("a = \"\xff\"\n").rfind("run.toml:1: ", 0), 0u);
  EXPECT_EQ(toml_error("day = 2024-01-01\n"), "run.toml:1: a date or time, which no key takes; put quotes around it");
  EXPECT_NE(toml_error("a = " + std::string(100000, '[')), "");  // nesting is limited, so that the stack does not overflow
}

TEST(Toml, RefusesStringsThatNoNameCanBe) {
  EXPECT_EQ(toml_error("[run]\noutput_dir = \"w/nul\\u0000x\"\n"),
            "run.toml:2: a string with a NUL character, \\u0000; remove it");
}

TEST(Toml, RefusesWhatTheParserCannotSurvive) {
  const auto repeat = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  const std::string dotted = repeat("a.", 200'000) + "a = 1";
  const std::vector<std::pair<std::string, int>> texts = {
      {dotted, 1},
      {"x = '''\n\n'''\n[" + repeat("a.", 200'000) + "a]", 4},
      {"[[" + repeat("a.", 200'000) + "a]]", 1},
      {"a = " + repeat("[", 200'000), 1},
      {"a = " + repeat("[\n", 200'000), 65},
      {"a = " + repeat("{b = ", 200'000), 1},
      {"a = " + repeat("{b.c.d = ", 100), 1},
      {repeat("\"a\" . ", 200'000) + "a = 1", 1},
      {"s = \"\\\"\" # a.b\n" + dotted, 2},
      {"s = \"\"\"x\"\"\"\"\"\n" + dotted, 2},
  };
  for (const auto& [text, line] : texts)
    EXPECT_EQ(toml_error(text), concat("run.toml:", line, ": nested deeper than 64 levels")) << text.substr(0, 40);
  EXPECT_EQ(toml_error(std::string(kTomlBytes + 1, '\n')), concat("run.toml: ", kTomlBytes + 1, " bytes of TOML are more than ", kTomlBytes));
}

// Dots and brackets in strings and comments are no depth, and what ends gives its depth back.
TEST(Toml, AllowsWhatOnlyLooksDeep) {
  const std::string dots(1000, '.'), brackets(1000, '[');
  std::string text = "# " + dots + brackets + "\na = \"" + dots + brackets + "\" # " + brackets + "\nb = '" + dots + "'\nc = '''\n" +
                     brackets + "\n'''\nd = \"\"\"\n" + dots + "\\\"\"\"\"\nreals = [";
  for (int i = 0; i < 1000; ++i) text += "1.5, ";
  text += "]\n";
  for (int i = 0; i < 1000; ++i) text += concat("x", i, ".y.z = { p.q = [[1], [2.5]] } # .\n");
  text += "deep = " + std::string(62, '[') + "1.5" + std::string(62, ']') + "\n";
  EXPECT_EQ(toml_error(text), "");
}

TEST(Toml, ValuesOfOptions) {
  const auto kind = [](const std::string& text) { return parse_toml_value(text, "--a=" + text).kind; };
  EXPECT_EQ(kind("3"), Kind::integer);
  EXPECT_EQ(kind("3e-4"), Kind::real);
  EXPECT_EQ(kind("true"), Kind::boolean);
  EXPECT_EQ(kind("fp8_block"), Kind::string);
  EXPECT_EQ(kind("[1, 2]"), Kind::array);
  EXPECT_EQ(kind("2024-01-01x"), Kind::string);
  EXPECT_EQ(kind("1\nb = 2"), Kind::string);  // the text must not add a second key
  EXPECT_EQ(kind(""), Kind::string);
  EXPECT_EQ(parse_toml_value("a=b # c", "").string, "a=b # c");
  EXPECT_EQ(parse_toml_value("'quoted'", "").string, "quoted");
  for (const char* broken : {"[1, 2", "\"abc", "{a = 1", "[1]\nb=2"}) EXPECT_THROW(parse_toml_value(broken, "--a"), Error) << broken;
  EXPECT_THROW(parse_toml_value("\xff\xfe", "--a"), Error);
}

TEST(Toml, WritesWhatItReads) {
  const std::string text =
      "whole = -9223372036854775808\nreal = 0.1\nlist = [\"a\\\"b\\\\\", \"\\u0001\\n\\t\"]\n"
      "[section]\nyes = false\n\"odd key\" = 1\n[section.inner]\nx = 1e300\n[[many]]\na = 1\n[[many]]\na = 2\n";
  const TomlNode root = parse_toml(text, "a");
  const std::string written = to_toml_document(root);
  const TomlNode again = parse_toml(written, "b");
  EXPECT_EQ(to_json(again), to_json(root)) << written;
  EXPECT_EQ(to_toml_document(again), written);
  EXPECT_EQ(again.find("whole")->integer, std::numeric_limits<std::int64_t>::min());
}

TEST(Toml, CommentsStandInAColumn) {
  const auto entry = [](const std::string& key, const std::string& comment, TomlNode value) {
    return TomlEntry{.key = key, .value = std::move(value), .comment = comment};
  };
  TomlNode table;
  table.kind = TomlNode::Kind::table;
  table.entries = {entry("a", "one", TomlNode::of(true)), entry(std::string(30, 'k'), "two", TomlNode()),
                   entry("b", "three", TomlNode())};
  EXPECT_EQ(to_toml_document(table), "a = true" + std::string(37, ' ') + "# one\n# " + std::string(30, 'k') +
                                         " is not set  two\n# b is not set" + std::string(31, ' ') + "three\n");
}

TEST(Toml, RealsKeepTheirBits) {
  for (const double value : {0.1, 1.0, 1e-8, 3e-4, 1e300, 5e-324, -0.0, 1.0 / 3, 123456789012345680.0}) {
    const TomlNode root = parse_toml("v = " + to_toml(TomlNode::of(value)), "a");
    ASSERT_EQ(root.entries[0].value.kind, Kind::real) << value;
    EXPECT_EQ(std::signbit(root.entries[0].value.real), std::signbit(value));
    EXPECT_EQ(root.entries[0].value.real, value);
  }
}

TEST(Toml, JsonHasNoNumbersThatAreNone) {
  EXPECT_EQ(to_json(parse_toml("a = inf\nb = nan\nc = 1", "x")).dump(), R"({"a":null,"b":null,"c":1})");
}

}  // namespace
}  // namespace octet

#include "octet/base/json.h"

#include <gtest/gtest.h>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "support/errors.h"
#include "support/folder.h"

namespace octet {
namespace {

std::string json_error(const std::string& text) {
  return testing::error_if_any(ExitCode::data, [&] { parse_json(text, "f.json"); });
}

// Remembers its events as text.
class Recorder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return note("null"); }
  bool boolean(bool value) override { return note(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override { return note(std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) override { return note(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return note(text); }
  bool string(std::string& value) override { return note(value); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return note("{"); }
  bool key(std::string& name) override { return note(name + ":") && name != "stop"; }
  bool end_object() override { return note("}"); }
  bool start_array(std::size_t) override { return note("["); }
  bool end_array() override { return note("]"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }
  std::string events;

 private:
  bool note(const std::string& event) {
    events += event + " ";
    return true;
  }
};

TEST(GuardedJson, ReadsWhatTheLibraryReads) {
  const std::string text = R"({"a": [1, -2, 2.5e3, "x\u00e9", null, true], "b": {"c": {}}, "d": [[]]})";
  EXPECT_EQ(parse_json(text, "f"), nlohmann::json::parse(text));
  EXPECT_EQ(parse_ordered_json(R"({"b": 1, "a": 2})", "f").dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(json_of("[1]"), Json::array({1}));
  const testing::TemporaryFolder folder;
  write_file_atomically(folder / "x.json", text);
  EXPECT_EQ(read_json(folder / "x.json"), nlohmann::json::parse(text));
  EXPECT_EQ(read_ordered_json(folder / "x.json").dump(), nlohmann::ordered_json::parse(text).dump());
}

TEST(GuardedJson, SaysWhereItIsWrong) {
  EXPECT_EQ(json_error("{\n  \"a\": 1,\n  \"b\": 2,\n  \"a\": 3\n}"), "f.json: line 4, column 5: \"a\" occurs twice");
  EXPECT_EQ(json_error(R"({"a": 1, "\u0061": 2})"), "f.json: line 1, column 17: \"a\" occurs twice");
  EXPECT_EQ(json_error(R"([{"a": 1}, {"a": 2}, {"b": {"a": 1}, "a": 1}])"), "");
  EXPECT_EQ(json_error("[1,\n 2,\n x]").rfind("f.json: line 3, column 2: not valid JSON: syntax error", 0), 0u) << json_error("[1,\n 2,\n x]");
  EXPECT_EQ(json_error(""), "f.json: line 1, column 1: not valid JSON: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal");
  EXPECT_NE(json_error("[1e999]").find("not valid JSON: number overflow"), std::string::npos) << json_error("[1e999]");
  EXPECT_EQ(json_error("[\"\x1b[31m\"]").find('\x1b'), std::string::npos);
  EXPECT_LT(json_error("[\"" + std::string(100'000, 'x')).size(), 400u);
  EXPECT_EQ(json_error(std::string("[1]\0[2]", 7)), "f.json: line 1, column 4: not valid JSON: a NUL byte");
}

// The library's trees are copied and destroyed recursively: so many levels overflow the stack.
TEST(GuardedJson, DepthIsBounded) {
  const auto nested = [](int levels) { return std::string(static_cast<std::size_t>(levels), '[') + std::string(static_cast<std::size_t>(levels), ']'); };
  EXPECT_EQ(json_error(nested(64)), "");
  EXPECT_EQ(json_error(nested(65)), "f.json: line 1, column 65: nested deeper than 64 levels");
  EXPECT_EQ(json_error(nested(200'000)), "f.json: line 1, column 65: nested deeper than 64 levels");
  std::string objects;
  for (int i = 0; i < 200'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(json_error(objects), "f.json: line 1, column 321: nested deeper than 64 levels");
  EXPECT_EQ(testing::error_of(ExitCode::data, [&] { parse_json("[[]]", "f", 1); }), "f: line 1, column 2: nested deeper than 1 levels");
  EXPECT_TRUE(json_of(nested(200'000)).is_discarded());
  Recorder recorder;
  const auto fault = read_json_events(nested(200'000), recorder);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->byte, 65u);
}

// Keys in order are found one by one: a hundred thousand of them would take minutes.
TEST(GuardedJson, KeysInOrderAreBounded) {
  std::string text = "{\"k\":0";
  for (int i = 0; i < 100'000; ++i) text += ",\"" + std::to_string(i) + "\":0";
  text += "}";
  EXPECT_EQ(parse_json(text, "f").size(), 100'001u);
  const std::string message = testing::error_of(ExitCode::data, [&] { parse_ordered_json(text, "f"); });
  EXPECT_NE(message.find("more than 10000 keys in one object"), std::string::npos) << message;
}

TEST(GuardedJson, TextNeedsNoUtf8) { EXPECT_EQ(json_text({{"file", "a\xFF"}}), "{\"file\":\"a\uFFFD\"}"); }

TEST(GuardedJson, EventsComeInOrderUntilOneRefuses) {
  Recorder all;
  EXPECT_FALSE(read_json_events(R"({"a": [1, -2, 2.5, "x", null, true]})", all));
  EXPECT_EQ(all.events, "{ a: [ 1 -2 2.5 x null true ] } ");
  Recorder some;
  const auto fault = read_json_events(R"({"stop": 1})", some);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->byte, 7u);
  EXPECT_EQ(some.events, "{ stop: ");
}

}  // namespace
}  // namespace octet

#include "octet/data/jsonl.h"

#include "data/files.h"

namespace octet::data {
namespace {

std::string text(const std::string& line) { return jsonl_text(line, "text", "f.jsonl", 12); }
std::string refusal(const std::string& line) {
  const std::string message = error_of(ExitCode::data, [&] { text(line); });
  EXPECT_EQ(message.substr(0, 12), "f.jsonl:12: ") << line;
  return message;
}

TEST(Jsonl, FindsTheField) {
  EXPECT_EQ(text(R"({"text": "hello"})"), "hello");
  EXPECT_EQ(text(R"({"id": 7, "text": "a\n\"b\" \u00e9 \ud83d\ude00", "meta": {"text": "inner"}})"),
            "a\n\"b\" \xC3\xA9 \xF0\x9F\x98\x80");
  EXPECT_EQ(text(R"({"meta": {"text": "inner"}, "list": ["text", {"text": 5}], "text": ""})"), "");
  EXPECT_EQ(text("{\"text\": \"x\"}\r"), "x");
  EXPECT_EQ(text(R"({"a": {}, "text": "after an object"})"), "after an object");
  EXPECT_EQ(jsonl_text(R"({"text": 1, "body": "b"})", "body", "f", 1), "b");
}

TEST(Jsonl, RefusesDeepAndDoubledObjects) {
  EXPECT_EQ(refusal(R"({"text": "first", "text": "last"})"), R"(f.jsonl:12: column 24: "text" occurs twice)");
  EXPECT_EQ(refusal(R"({"meta": )" + std::string(200'000, '[')), "f.jsonl:12: column 73: nested deeper than 64 levels");
  EXPECT_EQ(text(R"({"meta": )" + std::string(63, '[') + std::string(63, ']') + R"(, "text": "x"})"), "x");
  EXPECT_EQ(refusal(std::string("{\"text\": \"x\"}\0", 14)), "f.jsonl:12: column 14: not valid JSON: a NUL byte");
}

TEST(Jsonl, SaysWhatIsWrong) {
  EXPECT_TRUE(contains(refusal("{\"text\": \"x\""), "not valid JSON"));
  EXPECT_TRUE(contains(refusal("nonsense"), "f.jsonl:12: column 2: not valid JSON"));
  EXPECT_TRUE(contains(refusal("{\"text\": \"x\"} {}"), "not valid JSON"));
  EXPECT_TRUE(contains(refusal("{\"text\": \"\xFF\"}"), "not valid JSON"));
  EXPECT_TRUE(contains(refusal(R"({"text": "\ud83d"})"), "not valid JSON"));
  EXPECT_TRUE(contains(refusal(R"({"title": "x"})"), "no field \"text\""));
  EXPECT_TRUE(contains(refusal("{}"), "no field \"text\""));
  EXPECT_TRUE(contains(refusal(R"(["text", "x"])"), "not a JSON object"));
  EXPECT_TRUE(contains(refusal(R"([{"text": "x"}])"), "not a JSON object"));
  EXPECT_TRUE(contains(refusal("\"text\""), "not a JSON object"));
  EXPECT_TRUE(contains(refusal("17"), "not a JSON object"));
  EXPECT_TRUE(contains(refusal(R"({"text": 3})"), "field \"text\" is a number, not a string"));
  EXPECT_TRUE(contains(refusal(R"({"text": null})"), "is null"));
  EXPECT_TRUE(contains(refusal(R"({"text": true})"), "is a boolean"));
  EXPECT_TRUE(contains(refusal(R"({"text": ["x"]})"), "is an array"));
  EXPECT_TRUE(contains(refusal(R"({"text": {"text": "x"}})"), "is an object"));
}

// Datasets are also published as one array, in one line or in many.
TEST(Jsonl, AnArrayIsAdvisedOf) {
  for (const char* line : {R"([{"text": "x"}])", "[", " [\r", R"([{"text": "x"},)"}) {
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { jsonl_text(line, "text", "f.jsonl", 1); }),
                         "; if the file is one JSON array, `jq -c '.[]'` writes its members one a line"))
        << line;
    EXPECT_FALSE(contains(refusal(line), "jq")) << line;
  }
}

TEST(Jsonl, Blank) {
  EXPECT_TRUE(is_blank(""));
  EXPECT_TRUE(is_blank(" \t\r"));
  EXPECT_FALSE(is_blank(" x "));
}

}  // namespace
}  // namespace octet::data

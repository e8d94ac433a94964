#include "octet/data/chat/conversation.h"

#include "data/files.h"

namespace octet::data {
namespace {

// "user: Hi | assistant: Hello"
std::string shown_conversation(std::string_view json, const std::string& field = "") {
  std::string text;
  for (const ChatMessage& message : read_conversation(json, field, "talks.jsonl", 7))
    text += (text.empty() ? "" : " | ") + message.role + ": " + message.content;
  return text;
}

TEST(Conversation, ItsForms) {
  const std::string expected = "system: Be kind. | user: Hi | assistant: Hello\n | tool: 7";
  EXPECT_EQ(
      shown_conversation(R"({"id": 3, "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
                                   {"role": "assistant", "content": "Hello\n", "tool_calls": [], "reasoning_content": ""}, {"role": "tool", "content": "7", "name": "f"}]})"),
      expected);
  EXPECT_EQ(shown_conversation(R"({"conversations": [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hi"},
                                   {"from": "gpt", "value": "Hello\n", "weight": 1}, {"from": "observation", "value": "7"}]})"),
            expected);
  EXPECT_EQ(shown_conversation(R"([{"role": "user", "content": ""}])"), "user: ");
  EXPECT_EQ(shown_conversation(R"({"talk": [{"role": "user", "content": "a"}], "messages": 3})", "talk"), "user: a");
}

TEST(Conversation, AlpacaIsAQuestionAndAnAnswer) {
  EXPECT_EQ(shown_conversation(R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "s"})"),
            "system: s | user: Add.\n\n1 2 | assistant: 3");
  EXPECT_EQ(shown_conversation(R"({"instruction": "Add.", "input": "", "output": ""})"), "user: Add. | assistant: ");
  EXPECT_EQ(shown_conversation(R"({"instruction": "Add.", "output": "3", "system": null})"), "user: Add. | assistant: 3");
  EXPECT_EQ(shown_conversation(R"({"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]})"),
            "system: s | user: a | assistant: b | user: c | assistant: d");
}

TEST(Conversation, ASystemMessageBesideItComesFirst) {
  const std::string talk = R"("conversations": [{"from": "human", "value": "Hi"}])";
  EXPECT_EQ(shown_conversation("{\"system\": \"s\", " + talk + "}"), "system: s | user: Hi");
  EXPECT_EQ(shown_conversation("{\"system\": \"s\", " + talk + "}", "conversations"), "system: s | user: Hi");
  EXPECT_EQ(shown_conversation("{\"system\": \"\", \"tools\": \"[]\", \"functions\": [], " + talk + "}"), "user: Hi");
  const std::string begins = R"("messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]})";
  EXPECT_EQ(shown_conversation("{\"system\": \"s\", " + begins), "system: s | user: Hi");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { shown_conversation("{\"system\": \"other\", " + begins); }),
                       "talks.jsonl:7: \"system\" would be lost"));
}

TEST(Conversation, WeightsSayWhatIsTrainedOn) {
  const Conversation talk = read_conversation(
      R"([{"role": "user", "content": "q", "weight": null}, {"role": "assistant", "content": "a", "weight": 0},
          {"role": "assistant", "content": "b", "weight": 1.0}, {"role": "assistant", "content": "c"},
          {"role": "assistant", "content": "d", "train": false}, {"role": "assistant", "content": "e", "loss": false, "weight": 1},
          {"role": "assistant", "content": "f", "train": true, "loss": null, "mask": false, "masked": null}])",
      "", "talks.jsonl", 7);
  std::vector<bool> trained;
  for (const ChatMessage& message : talk) trained.push_back(message.trained);
  EXPECT_EQ(trained, (std::vector<bool>{true, false, true, true, false, false, true}));
}

// Tables that were joined write so what a row does not have.
TEST(Conversation, NullIsNothing) {
  EXPECT_EQ(shown_conversation(R"({"messages": null, "conversations": [{"from": "human", "value": "Hi"}]})"), "user: Hi");
  EXPECT_EQ(shown_conversation(R"({"messages": null, "conversations": null, "instruction": "a", "output": "b"})"),
            "user: a | assistant: b");
  EXPECT_EQ(shown_conversation(R"([{"from": null, "value": null, "role": "user", "content": "Hi", "thinking": null,
                                    "tool_calls": [{"name": null}], "function_call": {"name": ""}}])"),
            "user: Hi");
}

TEST(Conversation, SaysWhatIsWrongAndWhere) {
  const auto refusal = [](const char* json, const std::string& field = "") {
    return error_of(ExitCode::data, [&] { shown_conversation(json, field); });
  };
  EXPECT_EQ(refusal(R"({"messages": []})"), "talks.jsonl:7: a conversation without messages");
  EXPECT_EQ(refusal(R"({"messages": {"role": "user"}})"), "talks.jsonl:7: the messages are {\"role\":\"user\"}, not a list");
  EXPECT_EQ(refusal(R"({"messages": ["Hi"]})"), "talks.jsonl:7: a message is \"Hi\", not an object");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "bot", "content": "Hi"}]})"),
            "talks.jsonl:7: role \"bot\" is not known; known: system, user (human), assistant (gpt), tool (observation)");
  EXPECT_EQ(refusal(R"({"messages": [{"content": "Hi"}]})"), "talks.jsonl:7: \"role\" is missing");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})"),
            "talks.jsonl:7: \"content\" is [{\"type\":\"text\"}], not a string");
  EXPECT_TRUE(contains(refusal(R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]})"),
                       "talks.jsonl:7: \"tool_calls\" would be lost"));
  EXPECT_TRUE(contains(refusal(R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]})"),
                       "talks.jsonl:7: \"reasoning_content\" would be lost"));
  EXPECT_TRUE(contains(refusal(R"({"messages": [{"role": "assistant", "content": "a", "thinking": "b"}]})"),
                       "talks.jsonl:7: \"thinking\" would be lost"));
  EXPECT_TRUE(contains(refusal(R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})"),
                       "talks.jsonl:7: \"weight\" is 0.5, and Octet knows the weights 0 and 1"));
  for (const std::string name : {"reasoning", "thought"}) {
    EXPECT_TRUE(contains(refusal((R"([{"role": "assistant", "content": "a", ")" + name + R"(": "b"}])").c_str()),
                         "talks.jsonl:7: \"" + name + "\" would be lost; write it into \"content\""));
  }
  EXPECT_TRUE(contains(refusal(R"([{"role": "assistant", "content": "a", "train": "no"}])"),
                       "talks.jsonl:7: \"train\" is \"no\", and Octet knows the weights 0 and 1, false and true"));
  EXPECT_TRUE(contains(refusal(R"([{"role": "assistant", "content": "a", "mask": true}])"),
                       "talks.jsonl:7: \"mask\" would be lost; give messages that are not trained on \"weight\": 0"));
  EXPECT_TRUE(contains(refusal(R"({"instruction": "a", "output": "b", "system_prompt": "c"})"),
                       "talks.jsonl:7: \"system_prompt\" would be lost; write it into a system message"));
  for (const std::string name : {"tools", "functions"}) {
    EXPECT_TRUE(
        contains(refusal(("{\"" + name + R"(": [{"name": "f"}], "messages": [{"role": "user", "content": "a"}]})").c_str()),
                 "talks.jsonl:7: \"" + name + "\" would be lost; write it into a system message"));
  }
  EXPECT_TRUE(contains(refusal(R"({"instruction": "a", "output": "b", "history": [["a"]]})"),
                       "talks.jsonl:7: a turn of \"history\" is [\"a\"], not a list of a question and an answer"));
  EXPECT_TRUE(contains(refusal(R"({"text": "Hi"})"), "talks.jsonl:7: no conversation: none of \"messages\""));
  EXPECT_TRUE(
      contains(refusal(R"({"messages": [{"role": "user", "content": "a"}], "conversations": [{"from": "human", "value": "b"}]})"),
               "both \"messages\" and \"conversations\"; --field names the one to read"));
  EXPECT_EQ(refusal(R"({"instruction": "Add."})"), "talks.jsonl:7: \"output\" is missing");
  EXPECT_EQ(refusal(R"({"messages": []})", "talk"), "talks.jsonl:7: no field \"talk\"");
  EXPECT_EQ(refusal("7"), "talks.jsonl:7: neither a JSON object nor a list of messages");
  EXPECT_TRUE(contains(refusal("{\"messages\": ["), "talks.jsonl:7: line 1, column "));
  EXPECT_EQ(refusal(R"([{"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d"}])"),
            "talks.jsonl:7: a JSON array of conversations; `jq -c '.[]'` writes them one a line");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { read_conversation("[", "", "talks.json", 1); }),
                       "; if the file is one JSON array, `jq -c '.[]'` writes its members one a line"));
}

}  // namespace
}  // namespace octet::data

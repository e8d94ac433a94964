#include "octet/data/chat/template.h"

#include "data/files.h"
#include "data/tokenizer/definitions.h"
#include "support/paths.h"

namespace octet::data {
namespace {

const Conversation kTalk = {{"system", "Be kind."}, {"user", "Hi"}, {"assistant", " Hello\n"}, {"user", "?"}, {"assistant", "!"}};

ChatFormat format_of_bytes(std::string_view name, TrainOn train_on = TrainOn::assistant) {
  return chat_format(name, train_on, ByteTokenizer());
}

// The text of a conversation, with [ and ] around what is trained on.
std::string marked(const Conversation& conversation, std::string_view name, TrainOn train_on = TrainOn::assistant) {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;
  encode_chat(conversation, format_of_bytes(name, train_on), ByteTokenizer(), ids, trained);
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool before = i > 0 && trained[i - 1] == 1;
    if (trained[i] == 1 && !before) text += '[';
    if (trained[i] == 0 && before) text += ']';
    text += static_cast<char>(ids[i]);
  }
  return text + (!trained.empty() && trained.back() == 1 ? "]" : "");
}

// Goldens: what transformers 5.24 gives for these models' templates. tests/data/chat_oracle.py compares many more conversations.
TEST(ChatTemplate, Goldens) {
  EXPECT_EQ(
      marked(kTalk, "llama3"),
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\n[Hello<|eot_id|>]"
      "<|start_header_id|>user<|end_header_id|>\n\n?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n[!<|eot_id|>]");
  EXPECT_EQ(
      marked(kTalk, "chatml"),
      "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[ Hello\n<|im_end|>]\n"
      "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n[!<|im_end|>]\n");
  EXPECT_EQ(marked(kTalk, "mistral"), "<s> [INST] Be kind.\n\nHi [/INST][  Hello\n</s>] [INST] ? [/INST][ !</s>]");
  EXPECT_EQ(
      marked(kTalk, "zephyr"),
      "<|system|>\nBe kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\n[ Hello\n</s>]\n<|user|>\n?</s>\n<|assistant|>\n[!</s>]\n");
}

// tools/make_chat_goldens.py renders conversations with transformers and the published texts, which it knows by their sums.
TEST(ChatTemplate, PublishedTemplatesGiveTheSameText) {
  int templates = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::golden_dir() + "/chat")) {
    const Json golden = Json::parse(read_file(entry.path()));
    std::optional<ChatFormat> format = published_format(golden["xxh3"].get<std::string>());
    ASSERT_TRUE(format) << entry.path();
    ++templates;
    EXPECT_EQ(format->form->name, golden["template"].get<std::string>());
    format->train_on = TrainOn::all;
    ASSERT_GE(golden["conversations"].size(), 4u);
    for (const Json& talk : golden["conversations"]) {
      std::vector<std::int32_t> ids;
      std::vector<std::uint8_t> trained;
      encode_chat(read_conversation(talk["messages"].dump(), "", "golden", 1), *format, ByteTokenizer(), ids, trained);
      EXPECT_EQ(std::string(ids.begin(), ids.end()), talk["text"].get<std::string>()) << entry.path() << talk["messages"];
    }
  }
  EXPECT_EQ(templates, 8);
}

TEST(ChatTemplate, TrainsOnTheLastTurnOrOnAll) {
  EXPECT_EQ(marked({kTalk.begin() + 1, kTalk.end()}, "mistral", TrainOn::last),
            "<s> [INST] Hi [/INST]  Hello\n</s> [INST] ? [/INST][ !</s>]");
  EXPECT_EQ(marked({{"user", "a"}}, "zephyr", TrainOn::all), "[<|user|>\na</s>\n]");
  EXPECT_EQ(marked({{"user", "a"}}, "zephyr", TrainOn::last), "<|user|>\na</s>\n");
  EXPECT_EQ(marked({{"user", "a"}, {"tool", "b"}, {"assistant", ""}}, "chatml"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>tool\nb<|im_end|>\n<|im_start|>assistant\n[<|im_end|>]\n");
}

TEST(ChatTemplate, DoesNotTrainOnAnAnswerOfNoWeight) {
  const Conversation talk = {{"user", "a"}, {"assistant", "b", false}, {"user", "c"}, {"assistant", "d"}};
  EXPECT_EQ(marked(talk, "zephyr"), "<|user|>\na</s>\n<|assistant|>\nb</s>\n<|user|>\nc</s>\n<|assistant|>\n[d</s>]\n");
  EXPECT_EQ(marked(talk, "zephyr", TrainOn::all),
            "[<|user|>\na</s>\n<|assistant|>\n]b</s>[\n<|user|>\nc</s>\n<|assistant|>\nd</s>\n]");
  EXPECT_EQ(marked({talk.begin(), talk.begin() + 2}, "zephyr", TrainOn::last), "<|user|>\na</s>\n<|assistant|>\nb</s>\n");
  EXPECT_TRUE(contains(error_of(ExitCode::data,
                                [&] {
                                  marked({{"user", "a", false}, {"assistant", "b"}}, "zephyr", TrainOn::all);
                                }),
                       "message 1, of role \"user\", has weight 0"));
}

// Python's str.strip() removes these; other blanks, such as U+200B, stay.
TEST(ChatTemplate, Llama3TrimsAsPythonDoes) {
  EXPECT_EQ(marked({{"user", "\u3000\x1c\u00a0\t\u200b a\u200b\u0085\n"}}, "llama3"),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n\u200b a\u200b<|eot_id|>");
  EXPECT_EQ(marked({{"user", " \n"}}, "llama3"), "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>");
}

TEST(ChatTemplate, RefusesWhatWouldBeLost) {
  EXPECT_EQ(error_of(ExitCode::data, [] { marked({{"tool", "7"}}, "zephyr"); }), "role \"tool\" has no place in template zephyr");
  for (const Conversation& talk : {Conversation{{"assistant", "a"}}, Conversation{{"user", "a"}, {"user", "b"}},
                                   Conversation{{"system", "a"}, {"system", "b"}}, Conversation{{"user", "a"}, {"tool", "b"}}}) {
    EXPECT_TRUE(
        contains(error_of(ExitCode::data, [&] { marked(talk, "mistral"); }), "\"; template mistral needs user and assistant"));
  }
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { marked({{"system", "a"}}, "mistral"); }), "a system message alone"));
}

// The folder of a tokenizer whose added tokens are <|begin|>, <|end|> and `more`.
struct ChatModel {
  explicit ChatModel(const std::vector<std::string>& more, const Json& config) {
    Json json = byte_level_json({"Ċ Ċ"});
    for (const std::string& token : more)
      json["added_tokens"].push_back(added_token(token, 257 + static_cast<int>(json["added_tokens"].size())));
    folder.write("model/tokenizer.json", json.dump());
    folder.write("model/tokenizer_config.json", config.dump());
  }
  std::unique_ptr<Tokenizer> tokenizer() const { return make_tokenizer((folder / "model").string()); }
  TemporaryFolder folder;
};

TEST(ChatTemplate, TokensAreThoseOfTheTokenizersFiles) {
  const ChatModel model({}, {{"eos_token", {{"content", "<|end|>"}}}, {"bos_token", "<|begin|>"}});
  const auto tokenizer = model.tokenizer();
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;
  encode_chat({{"user", "a"}, {"assistant", "b"}}, chat_format("mistral", TrainOn::assistant, *tokenizer), *tokenizer, ids,
              trained);
  EXPECT_EQ(text_of(*tokenizer, ids), "<|begin|> [INST] a [/INST] b<|end|>");
  EXPECT_EQ(ids.front(), 257);
  EXPECT_EQ(ids.back(), 258);
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { chat_format("chatml", TrainOn::all, *tokenizer); }),
                       "tokenizer.json: the tokenizer has no token \"<|im_start|>\", which template chatml needs"));
}

// "\n\n" is one token, which begins in the template's text.
TEST(ChatTemplate, ATokenThatBeginsBeforeTheTurnIsNotTrainedOn) {
  const ChatModel model({"<|im_start|>", "<|im_end|>"}, {{"eos_token", "<|im_end|>"}});
  const auto tokenizer = model.tokenizer();
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;
  encode_chat({{"assistant", "\nb"}}, chat_format("chatml", TrainOn::assistant, *tokenizer), *tokenizer, ids, trained);
  EXPECT_EQ(std::vector<std::int32_t>(ids.end() - 4, ids.end()), (std::vector<std::int32_t>{256, 'b', 260, '\n'}));
  EXPECT_EQ(std::vector<std::uint8_t>(trained.end() - 4, trained.end()), (std::vector<std::uint8_t>{0, 1, 1, 0}));
}

// As Qwen's own templates, which --chat auto knows: a default system message, and no place for tools.
TEST(ChatTemplate, ADefaultSystemMessageBeginsConversationsThatHaveNone) {
  ChatFormat format = format_of_bytes("chatml");
  const auto text_of = [&](const Conversation& conversation) {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> trained;
    encode_chat(conversation, format, ByteTokenizer(), ids, trained);
    return std::string(ids.begin(), ids.end());
  };
  const Conversation own = {{"system", "s"}, {"user", "a"}, {"assistant", "b"}}, none = {{"user", "a"}, {"assistant", "b"}};
  const std::string plain = text_of(own);
  format.system = "s";
  EXPECT_EQ(text_of(none), plain);
  EXPECT_EQ(text_of(own), plain);
  format.refuses_tools = true;
  EXPECT_TRUE(contains(error_of(ExitCode::data,
                                [&] {
                                  text_of({{"user", "a"}, {"tool", "1"}, {"assistant", "b"}});
                                }),
                       "writes a message of a tool in a way"));
}

TEST(ChatTemplate, UnknownNamesAndTemplates) {
  EXPECT_EQ(
      error_of(ExitCode::config, [] { format_of_bytes("chatlm"); }),
      "--chat chatlm: no such template (did you mean chatml?); known: auto, llama3, llama3.1, chatml, qwen3, mistral, zephyr");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [] { format_of_bytes("auto"); }), "no chat template beside tokenizer byte"));
  const ChatModel model({}, {{"chat_template", "{{ messages }}"}, {"eos_token", "<|end|>"}});
  const std::string error = error_of(ExitCode::config, [&] { chat_format("auto", TrainOn::all, *model.tokenizer()); });
  EXPECT_TRUE(contains(error, "tokenizer_config.json: its chat template (XXH3 "));
  EXPECT_TRUE(contains(error, "give --chat with one of: llama3"));
}

// What Octet writes beside a model that is trained on chats.
TEST(ChatTemplate, AutoKnowsWhatOctetWrites) {
  for (const ChatTemplate& known : chat_templates()) {
    const std::string_view jinja = jinja_of(known.name);
    EXPECT_FALSE(jinja.empty()) << known.name;
    const ChatModel model({"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                          {{"bos_token", "<|begin|>"}, {"eos_token", "<|end|>"}});
    EXPECT_FALSE(has_chat_template(model.folder / "model"));
    model.folder.write("model/chat_template.jinja", std::string(jinja));
    EXPECT_TRUE(has_chat_template(model.folder / "model"));
    EXPECT_EQ(chat_format("auto", TrainOn::assistant, *model.tokenizer()).form->name, known.name);
  }
  EXPECT_EQ(jinja_of("chatlm"), "");
}

// A template that would not write a part of a message refuses the message.
TEST(ChatTemplate, Qwen3RefusesThoughtsThatWouldBeLost) {
  const ByteTokenizer bytes;
  const ChatFormat format = chat_format("qwen3", TrainOn::assistant, bytes);
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;
  const auto text_of_ids = [](const std::vector<std::int32_t>& some) { return std::string(some.begin(), some.end()); };
  const std::string thought = "<think>\nt\n</think>\n\na";
  encode_chat({{"user", "q"}, {"assistant", "b"}, {"user", "q"}, {"assistant", thought}}, format, bytes, ids, trained);
  EXPECT_EQ(text_of_ids(ids),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" +
                thought + "<|im_end|>\n");
  const auto refusal = [&](const Conversation& talk) {
    return error_of(ExitCode::data, [&] { encode_chat(talk, format, bytes, ids, trained); });
  };
  EXPECT_TRUE(
      contains(refusal({{"user", "q"}, {"assistant", thought}, {"user", "q"}, {"assistant", "b"}}), "message 2: template qwen3"));
  EXPECT_TRUE(
      contains(refusal({{"user", "q"}, {"assistant", "before " + thought}}), "message 2: template qwen3 has a place for one"));
  ids.clear();
  encode_question({{"user", "q"}, {"assistant", thought}, {"user", "r"}}, format, bytes, ids);
  EXPECT_EQ(text_of_ids(ids),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
            "<|im_start|>assistant\n");
}

}  // namespace
}  // namespace octet::data

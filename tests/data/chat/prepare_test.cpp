// Corpora of conversations: `data prepare` with a chat template.
#include "octet/data/prepare.h"

#include <sys/wait.h>

#include <csignal>
#include <random>

#include "data/acting_tokenizer.h"
#include "data/files.h"
#include "octet/base/json.h"

namespace octet::data {
namespace {

// A line with a question and an answer.
std::string talk(const std::string& question, const std::string& answer) {
  return Json{{"conversations", {{{"from", "human"}, {"value", question}}, {{"from", "gpt"}, {"value", answer}}}}}.dump() + "\n";
}

PrepareOptions chat_options(const TemporaryFolder& folder, const std::string& lines) {
  folder.write("in/talks.jsonl", lines);
  return {.inputs = {folder / "in"},
          .output = folder / "c",
          .field = "",
          .chat = chat_format("zephyr", TrainOn::assistant, ByteTokenizer()),
          .workers = 1};
}

// The tokens of a document that are trained on, as text.
std::string trained_text(const Corpus& corpus, std::int64_t document) {
  const std::string all = text_of(corpus, document);
  std::vector<std::uint8_t> mask(all.size());
  corpus.read_loss_mask(corpus.document_start(document), mask);
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) text += mask[i] == 1 ? std::string(1, all[i]) : "";
  return text;
}

std::vector<std::string> all_files(const std::filesystem::path& prefix) {
  std::vector<std::string> files = files_of_corpus(prefix);
  for (const char* suffix : {".loss.bin", ".loss.idx"}) files.push_back(read_file(prefix.string() + suffix));
  return files;
}

TEST(PrepareChat, WritesAMaskBesideTheTokens) {
  const TemporaryFolder folder;
  const PrepareSummary summary = prepare(chat_options(folder, talk("a", "bc") + "\n" + talk("d", "")), ByteTokenizer());
  const Corpus corpus(folder / "c");
  ASSERT_EQ(corpus.documents(), 2);
  EXPECT_EQ(text_of(corpus, 0), "<|user|>\na</s>\n<|assistant|>\nbc</s>\n");
  EXPECT_EQ(trained_text(corpus, 0), "bc</s>");
  EXPECT_EQ(trained_text(corpus, 1), "</s>");
  EXPECT_TRUE(corpus.verify());
  EXPECT_EQ(summary.corpus.loss->trained_tokens, 10);
  EXPECT_TRUE(contains(to_text(summary), "10 tokens are trained on, 60 are masked\n"));
  // The mask is an indexed dataset by itself.
  const Corpus mask((folder / "c.loss.bin"));
  EXPECT_EQ(mask.type(), TokenType::u8);
  EXPECT_EQ(mask.document_start(1), corpus.document_start(1));
}

TEST(PrepareChat, CountsWhatIsCutAndLeftOut) {
  const TemporaryFolder folder;
  const std::string question = R"({"messages": [{"role": "user", "content": "nobody answers"}]})";
  PrepareOptions options =
      chat_options(folder, talk("a", "bcdefghij") + question + "\n" + talk("a long question", "b") + talk("a", "bcdefghij"));
  options.max_tokens = 32;
  options.duplicates = Duplicates::drop;
  const PrepareSummary summary = prepare(options, ByteTokenizer());
  const Corpus corpus(folder / "c");
  ASSERT_EQ(corpus.documents(), 1);
  EXPECT_EQ(text_of(corpus, 0), "<|user|>\na</s>\n<|assistant|>\nbcd");
  EXPECT_EQ(trained_text(corpus, 0), "bcd");
  const ChatInfo& chat = *corpus.info()->chat;
  EXPECT_EQ(chat.form, "zephyr");
  EXPECT_EQ(chat.train_on, "assistant");
  EXPECT_EQ(chat.cut_tokens, 11);  // of the first; its duplicate is left out
  EXPECT_EQ(chat.no_answer, 1);
  EXPECT_EQ(chat.answer_cut, 1);
  EXPECT_EQ(chat.duplicates, 1);
  EXPECT_TRUE(contains(to_text(summary), "1 conversation is left out: no answer that is trained on\n"));
  options.duplicates = Duplicates::count;
  EXPECT_EQ(prepare(options, ByteTokenizer()).corpus.chat->cut_tokens, 22);
}

TEST(PrepareChat, CountsFieldsThatItDoesNotRead) {
  const TemporaryFolder folder;
  const std::string named =
      R"({"id": 1, "source": "s", "images": ["a.png"], "messages": [{"role": "user", "name": "Ann", "content": "a", "images": []},)"
      R"( {"role": "assistant", "content": "b", "weight": 1, "audio": {"id": "x"}, "name": null}]})";
  const PrepareSummary summary = prepare(chat_options(folder, named + "\n" + talk("c", "d")), ByteTokenizer());
  EXPECT_EQ(summary.corpus.chat->dropped_fields, 3) << "images of the conversation, a name and an audio";
  EXPECT_TRUE(contains(to_text(summary), "\n3 fields of messages are not read, such as a name or images; "));
  EXPECT_EQ(Corpus(folder / "c").info()->chat->dropped_fields, 3);
  const std::string both =
      R"({"conversations": [{"from": "human", "value": "a", "content": "lost"}, {"from": "gpt", "value": "b"}]})";
  EXPECT_EQ(prepare(chat_options(folder, both), ByteTokenizer()).corpus.chat->dropped_fields, 1);
  const PrepareSummary none = prepare(chat_options(folder, talk("c", "d")), ByteTokenizer());
  EXPECT_EQ(none.corpus.chat->dropped_fields, 0);
  EXPECT_FALSE(contains(to_text(none), "not read"));
}

// Other answers of the same conversation may be trained on.
TEST(PrepareChat, AnotherMaskMakesAnotherConversation) {
  const TemporaryFolder folder;
  const auto weighed = [](int first, int second) {
    return Json{{"messages",
                 {{{"role", "user"}, {"content", "a"}},
                  {{"role", "assistant"}, {"content", "b"}, {"weight", first}},
                  {{"role", "assistant"}, {"content", "c"}, {"weight", second}}}}}
               .dump() +
           "\n";
  };
  PrepareOptions options = chat_options(folder, weighed(1, 0) + weighed(0, 1) + weighed(1, 0));
  options.duplicates = Duplicates::drop;
  EXPECT_EQ(prepare(options, ByteTokenizer()).duplicates, 1);
  const Corpus corpus(folder / "c");
  ASSERT_EQ(corpus.documents(), 2);
  EXPECT_EQ(text_of(corpus, 0), text_of(corpus, 1));
  EXPECT_EQ(trained_text(corpus, 0), "b</s>");
  EXPECT_EQ(trained_text(corpus, 1), "c</s>");
}

TEST(PrepareChat, NothingToTrainOnIsAnError) {
  const TemporaryFolder folder;
  EXPECT_TRUE(
      contains(error_of(ExitCode::data,
                        [&] { prepare(chat_options(folder, "[{\"role\": \"user\", \"content\": \"a\"}]"), ByteTokenizer()); }),
               "no conversation to train on here: 1 without an answer to train on, "));
}

TEST(PrepareChat, SaysFileAndLine) {
  const TemporaryFolder folder;
  const std::string good = talk("a", "b");
  const auto refusal = [&](const std::string& line) {
    return error_of(ExitCode::data, [&] { prepare(chat_options(folder, good + line), ByteTokenizer()); });
  };
  EXPECT_TRUE(contains(refusal("{\"messages\": []}"), "in/talks.jsonl:2: a conversation without messages"));
  EXPECT_TRUE(contains(refusal(R"([{"role": "tool", "content": "a"}])"),
                       "in/talks.jsonl:2: role \"tool\" has no place in template zephyr"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c.loss.bin.part"));
  PrepareOptions options = chat_options(folder, good);
  folder.write("in/talks.txt", "a: b");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { prepare(options, ByteTokenizer()); }),
                       "in/talks.txt: a text, but conversations are read from JSONL and Parquet"));
  options.inputs = {folder / "in/talks.txt"};
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { prepare(options, ByteTokenizer()); }),
                       "in/talks.txt: not a file of conversations"));
}

TEST(PrepareChat, AnInterruptedRunGoesOn) {
  const TemporaryFolder folder;
  std::mt19937 random(4);
  std::string lines;
  for (int i = 0; i < 24'000; ++i) {
    const std::string answer(random() % 100, static_cast<char>('a' + i % 26));
    lines += i % 7 == 0 ? "[{\"role\": \"user\", \"content\": \"a\"}]\n" : talk(std::to_string(random() % 3000), answer);
  }
  PrepareOptions options = chat_options(folder, lines);
  options.duplicates = Duplicates::drop;
  options.max_tokens = 100;
  prepare(options, ByteTokenizer());
  const std::vector<std::string> whole = all_files(folder / "c");
  options.output = folder / "k";
  options.journal_interval_s = 0;
  const ByteTokenizer plain;
  for (const int calls : {18'000, 3'000}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prepare(options, ActingTokenizer(plain, calls, [] { ::raise(SIGKILL); }));
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_FALSE(contains(read_file(folder / "k.json.part"), "\"documents\":0,"));
  }
  prepare(options, plain);
  EXPECT_TRUE(all_files(folder / "k") == whole);

  // Another choice of turns is another job.
  std::atomic<bool> stop{false};
  options.stop = &stop;
  error_of(ExitCode::preempted, [&] { prepare(options, ActingTokenizer(plain, 18'000, [&] { stop.store(true); })); });
  options.stop = nullptr;
  options.chat->train_on = TrainOn::all;
  EXPECT_GT(prepare(options, plain).corpus.loss->trained_tokens, Corpus(folder / "c").info()->loss->trained_tokens);
  EXPECT_EQ(Corpus(folder / "k").info()->loss->trained_tokens, Corpus(folder / "k").tokens());

  // The later corpus has no mask, so the mask of the earlier one must go.
  options.chat.reset();
  options.field = "conversations";
  folder.write("in/talks.jsonl", "{\"conversations\": \"a text\"}");
  prepare(options, plain);
  EXPECT_FALSE(Corpus(folder / "k").has_loss_mask());
}

TEST(PrepareChat, AMaskMustFitItsCorpus) {
  const TemporaryFolder folder;
  prepare(chat_options(folder, talk("a", "b")), ByteTokenizer());
  const std::string mask = read_file(folder / "c.loss.bin"), idx = read_file(folder / "c.loss.idx");
  folder.write("c.loss.bin", "\2" + mask.substr(1));
  std::vector<std::uint8_t> some(4);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c").read_loss_mask(0, some); }),
                       "c.loss.bin: 2 at position 0 is neither"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { (void)Corpus(folder / "c").verify(); }), "c.loss.bin: damaged"));
  folder.write("c.loss.bin", mask);
  write_corpus(folder / "other", {"ab", "c"});
  std::filesystem::copy(folder / "c.loss.bin", folder / "other.loss.bin");
  std::filesystem::copy(folder / "c.loss.idx", folder / "other.loss.idx");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "other"); }), "other.loss.idx: not the loss mask of"));
  std::filesystem::remove(folder / "c.loss.idx");
  error_of(ExitCode::data, [&] { Corpus(folder / "c"); });
  // Nor may half of a mask be taken for none where no PREFIX.json tells of it.
  std::filesystem::remove(folder / "c.json");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c"); }), "c.loss.bin: a loss mask without its index, "));
  EXPECT_FALSE(Corpus(folder / "c", Corpus::Mask::ignored).has_loss_mask());
  std::filesystem::remove(folder / "c.loss.bin");
  EXPECT_FALSE(Corpus(folder / "c").has_loss_mask());
}

}  // namespace
}  // namespace octet::data

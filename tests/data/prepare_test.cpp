#include "octet/data/prepare.h"

#include "data/acting_tokenizer.h"
#include "data/files.h"
#include "data/packed.h"
#include "octet/base/log.h"

namespace octet::data {
namespace {

// Makes a folder of small and large texts, JSONL, binary files and empty files.
void fill(const TemporaryFolder& folder) {
  for (int i = 0; i < 60; ++i) {
    std::string text;
    for (int w = 0; w < i * i; ++w) text += "w\xC3\xB6rd " + std::to_string(w * 7919 % (i + 1)) + (w % 9 == 0 ? "\n" : " ");
    folder.write("in/" + std::to_string(i % 7) + "/" + std::to_string(i) + ".md", text);
  }
  std::string large;
  while (large.size() < 3500000) large += "a long document, cut into several tasks " + std::to_string(large.size()) + " ";
  folder.write("in/large.txt", large);
  std::string lines;
  for (int i = 0; i < 20000; ++i) {
    lines +=
        "{\"id\": " + std::to_string(i) + ", \"text\": \"line " + std::string(static_cast<std::size_t>(i % 200), 'y') + "\"}\n";
  }
  folder.write("in/lines.jsonl", lines + "{\"text\": \"\"}\n");
  folder.write("in/image.png", std::string("\x89PNG\0", 5));
}

TEST(Prepare, TheSameBytesWhateverTheWorkers) {
  const TemporaryFolder folder;
  fill(folder);
  const auto run = [&](const std::string& output, int workers, const Tokenizer& tokenizer) {
    return prepare({.inputs = {folder / "in"}, .output = folder / output, .workers = workers}, tokenizer);
  };
  for (const std::int32_t vocab_size : {300, 70000}) {
    const LetterTokenizer tokenizer(vocab_size);
    const PrepareSummary one = run("one", 1, tokenizer);
    EXPECT_EQ(one.files, 62);
    EXPECT_EQ(one.skipped_files, 1);
    EXPECT_EQ(one.empty_documents, 2);  // 0.md and the last line
    EXPECT_EQ(one.corpus.documents, 59 + 1 + 20000);
    for (const int workers : {2, 4, 7}) {
      run("many", workers, tokenizer);
      for (const char* suffix : {".bin", ".idx", ".json"}) {
        EXPECT_TRUE(read_file(folder / ("one" + std::string(suffix))) == read_file(folder / ("many" + std::string(suffix))))
            << suffix << " with " << workers << " workers";
      }
    }
  }
  EXPECT_TRUE(Corpus(folder / "many").verify());
}

TEST(Prepare, DocumentsAreTheFiles) {
  const TemporaryFolder folder;
  fill(folder);
  const PrepareSummary summary =
      prepare({.inputs = {folder / "in/large.txt", folder / "in/lines.jsonl", folder / "in/1/1.md"}, .output = folder / "c"},
              ByteTokenizer());
  const Corpus corpus(folder / "c");
  EXPECT_EQ(corpus.documents(), 20002);
  EXPECT_TRUE(text_of(corpus, 0) == read_file(folder / "in/large.txt"));
  EXPECT_EQ(text_of(corpus, 1), "line ");
  EXPECT_EQ(text_of(corpus, 1 + 19999), "line " + std::string(199, 'y'));
  EXPECT_EQ(text_of(corpus, 20001), read_file(folder / "in/1/1.md"));
  EXPECT_TRUE(contains(to_text(summary), "20,002 documents"));
  EXPECT_TRUE(contains(to_text(summary), "from 3 files"));
  EXPECT_TRUE(contains(to_text(summary), "left out 1 empty"));
}

TEST(Prepare, TakesAnotherField) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", R"({"text": 5, "body": "b"})");
  prepare({.inputs = {file}, .output = folder / "c", .field = "body"}, ByteTokenizer());
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "b");
}

TEST(Prepare, IsIdempotentWithTheOutputAmongTheInputs) {
  const TemporaryFolder folder;
  folder.write("a.txt", "text");
  const auto run = [&] { return prepare({.inputs = {folder.path()}, .output = folder / "corpus"}, ByteTokenizer()); };
  const CorpusInfo first = run().corpus, second = run().corpus;
  EXPECT_EQ(to_json(first), to_json(second));
  EXPECT_EQ(second.documents, 1);
}

TEST(Prepare, TheFirstBadLineIsNamedWhateverTheWorkers) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 1; i <= 60000; ++i) {
    lines += i == 41234                   ? "{\"text\": 1}\n"
             : i > 41234 && i % 1000 == 0 ? "broken\n"
                                          : "{\"text\": \"" + std::string(90, 'z') + "\"}\n";
  }
  const auto file = folder.write("a.jsonl", lines);
  write_corpus(folder / "c", {"earlier"});
  for (const int workers : {1, 4}) {
    EXPECT_EQ(error_of(ExitCode::data,
                       [&] { prepare({.inputs = {file}, .output = folder / "c", .workers = workers}, ByteTokenizer()); }),
              file.string() + ":41234: field \"text\" is a number, not a string");
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a.jsonl", "c.bin", "c.idx", "c.json"}));
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "earlier");
}

TEST(Prepare, RefusesNothing) {
  const TemporaryFolder folder;
  const auto refuse = [&](ExitCode code, const std::vector<std::filesystem::path>& inputs) {
    const std::string message = error_of(code, [&] { prepare({.inputs = inputs, .output = folder / "c"}, ByteTokenizer()); });
    EXPECT_FALSE(std::filesystem::exists(folder / "c.bin"));
    return message;
  };
  refuse(ExitCode::config, {});
  EXPECT_TRUE(contains(refuse(ExitCode::data, {folder / "none"}), "none: "));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_TRUE(contains(refuse(ExitCode::data, {folder / "empty"}), "empty: no documents here: 0 text files"));
  EXPECT_TRUE(contains(refuse(ExitCode::data, {folder.write("a.txt", "")}), "1 text file, 1 empty document,"));
  EXPECT_TRUE(contains(refuse(ExitCode::data, {folder.write("bad/a.txt", "\xFF").parent_path()}), "1 file not in UTF-8"));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a.txt", "bad", "empty"}));
}

const LetterTokenizer kLetters;

TEST(Prepare, GoesOnWhereItWasInterrupted) {
  for (const Duplicates duplicates : {Duplicates::count, Duplicates::drop}) {
    const TemporaryFolder folder;
    fill(folder);
    folder.write("in/1/more.txt.gz", gzipped(read_file(folder / "in/large.txt") + "."));
    const PrepareSummary whole =
        prepare({.inputs = {folder / "in"}, .output = folder / "whole", .duplicates = duplicates}, LetterTokenizer());
    EXPECT_GT(whole.duplicates, 10000);  // many lines have the same text
    int interruptions = 0;
    PrepareSummary last;
    for (bool done = false; !done;) {
      std::atomic<bool> stop{false};
      const ActingTokenizer tokenizer(kLetters, 6000, [&] { stop.store(true); });  // a run needs 20,000
      try {
        last = prepare({.inputs = {folder / "in"},
                        .output = folder / "c",
                        .duplicates = duplicates,
                        .workers = 1 + interruptions % 3,
                        .stop = &stop},
                       tokenizer);
        done = true;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ExitCode::preempted) << error.what();
        ASSERT_TRUE(contains(error.what(), "the same command continues from there"));
        ASSERT_LT(++interruptions, 40);
      }
    }
    EXPECT_GE(interruptions, 2);
    EXPECT_TRUE(files_of_corpus(folder / "c") == files_of_corpus(folder / "whole"));
    EXPECT_EQ(last.duplicates, whole.duplicates);
    EXPECT_EQ(last.files, whole.files);
    EXPECT_EQ(last.skipped_files, whole.skipped_files);
    EXPECT_EQ(last.empty_documents, whole.empty_documents);
    EXPECT_EQ(last.input_bytes, whole.input_bytes);
    EXPECT_EQ(names_in(folder.path()).size(), 7u);
  }
}

// Kills the run with SIGKILL again and again.
TEST(Prepare, GoesOnWhereItWasKilled) {
  const TemporaryFolder folder;
  fill(folder);
  PrepareOptions options{.inputs = {folder / "in"}, .output = folder / "whole", .duplicates = Duplicates::drop};
  prepare(options, LetterTokenizer());
  options.output = folder / "c";
  EXPECT_GE(kills_until_prepared(options, kLetters, 3000), 3);
  EXPECT_TRUE(files_of_corpus(folder / "c") == files_of_corpus(folder / "whole"));
  EXPECT_EQ(names_in(folder.path()).size(), 7u);
}

TEST(Prepare, CountsOneDocumentInTheSingular) {
  const TemporaryFolder folder;
  folder.write("one.txt", "text");
  std::atomic<bool> stop{false};
  const std::string message = error_of(ExitCode::preempted, [&] {
    prepare({.inputs = {folder / "one.txt"}, .output = folder / "c", .workers = 1, .stop = &stop},
            ActingTokenizer(kLetters, 1, [&] { stop.store(true); }));
  });
  EXPECT_EQ(message, "data prepare: interrupted after 1 document; the same command continues from there");
}

TEST(Prepare, StartsOverWhenItIsAnotherJob) {
  const TemporaryFolder folder;
  fill(folder);
  const auto interrupt = [&] {
    std::atomic<bool> stop{false};
    error_of(ExitCode::preempted, [&] {
      prepare({.inputs = {folder / "in"}, .output = folder / "c", .workers = 1, .stop = &stop},
              ActingTokenizer(kLetters, 5000, [&] { stop.store(true); }));
    });
    EXPECT_EQ(names_in(folder.path()).size(), 5u);
  };
  const auto expect_fresh = [&](const PrepareOptions& options, const Tokenizer& tokenizer) {
    PrepareOptions other = options;
    prepare(options, tokenizer);
    other.output = folder / "fresh";
    prepare(other, tokenizer);
    EXPECT_TRUE(files_of_corpus(folder / "c") == files_of_corpus(folder / "fresh"));
    for (const char* name : {"c", "fresh"}) {
      for (const char* suffix : {".bin", ".idx", ".json"}) std::filesystem::remove(folder / (std::string(name) + suffix));
    }
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"in"});
  };
  const PrepareOptions options{.inputs = {folder / "in"}, .output = folder / "c"};
  interrupt();
  expect_fresh(options, ByteTokenizer());
  interrupt();
  folder.write("in/0/0.md", "a file that was empty is not now");
  expect_fresh(options, LetterTokenizer());
  interrupt();
  folder.write("c.json.part", "{\"job\": 5");
  expect_fresh(options, LetterTokenizer());
}

TEST(Prepare, StandardInputCannotBeResumed) {
  const TemporaryFolder folder;
  const StandardInput input(folder.write("lines", "{\"text\": \"a\"}\n"));
  const std::atomic<bool> stop{true};
  const std::string message = error_of(ExitCode::interrupted, [&] {
    prepare({.inputs = {"-"}, .format = InputFormat::jsonl, .output = folder / "c", .stop = &stop}, ByteTokenizer());
  });
  EXPECT_TRUE(contains(message, "nothing was written"));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"lines"});
}

// The letters without a token after a document, as with --no-append-eod.
class EndlessLetters : public LetterTokenizer {
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
};

TEST(Prepare, KeepsTheCorpusOfAnotherEndToken) {
  const TemporaryFolder folder;
  const PrepareOptions options{.inputs = {folder.write("a.txt", "text")}, .output = folder / "c"};
  prepare(options, kLetters);
  const auto with = files_of_corpus(folder / "c");
  prepare(options, EndlessLetters());
  EXPECT_TRUE(files_of_corpus(folder / "c-1") == with);
  EXPECT_EQ(Corpus(folder / "c").tokens(), 4);
  prepare(options, EndlessLetters());  // the same command makes its corpus anew
  EXPECT_EQ(names_in(folder.path()).size(), 7u);
}

TEST(Prepare, KeepsTheCorpusOfOtherStandardInput) {
  const TemporaryFolder folder;
  const auto prepare_text = [&](const std::string& text) {
    const StandardInput input(folder.write("stream", text));
    prepare({.inputs = {"-"}, .output = folder / "c"}, kLetters);
    return files_of_corpus(folder / "c");
  };
  const auto first = prepare_text("first");
  prepare_text("other");
  EXPECT_TRUE(files_of_corpus(folder / "c-1") == first);
  prepare_text("other");
  EXPECT_EQ(names_in(folder.path()).size(), 7u);
}

TEST(Prepare, ReportsProgressToTheEnd) {
  const TemporaryFolder folder;
  fill(folder);
  std::vector<PrepareProgress> calls;
  const PrepareSummary summary = prepare({.inputs = {folder / "in"},
                                          .output = folder / "c",
                                          .progress = [&](const PrepareProgress& progress) { calls.push_back(progress); }},
                                         ByteTokenizer());
  ASSERT_FALSE(calls.empty());
  for (std::size_t i = 1; i + 1 < calls.size(); ++i) EXPECT_GE(calls[i].elapsed_s, calls[i - 1].elapsed_s + 1);
  EXPECT_TRUE(calls.back().last);
  EXPECT_EQ(calls.back().bytes_done, calls.back().bytes_total);
  EXPECT_EQ(calls.back().bytes_done, summary.input_bytes + 5);
  EXPECT_EQ(calls.back().documents, summary.corpus.documents);
  EXPECT_EQ(calls.back().tokens, summary.corpus.tokens);
}

TEST(ConsoleProgress, IsRareWhereNobodyWatches) {
  ::testing::internal::CaptureStderr();
  ConsoleProgress console;
  PrepareProgress progress{.bytes_done = 50, .bytes_total = 100, .documents = 3, .tokens = 12345};
  for (int second = 1; second <= 25; ++second) {
    progress.elapsed_s = second;
    console(progress);
  }
  progress.last = true;
  progress.bytes_done = 100;
  console(progress);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);  // after 1, 11 and 21 seconds, and at the end
  EXPECT_TRUE(contains(text, " 50%"));
  EXPECT_TRUE(contains(text, "12,345 tokens"));
  EXPECT_TRUE(contains(text, "eta 1"));
  EXPECT_TRUE(contains(text, "100%"));
  EXPECT_TRUE(contains(text, "done in 25s"));
}

}  // namespace
}  // namespace octet::data

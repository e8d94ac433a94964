#include "octet/data/input.h"

#include "data/files.h"

namespace octet::data {
namespace {

std::vector<std::string> files_of(const TempFolder& folder, const std::vector<std::filesystem::path>& inputs) {
  InputFiles files(inputs, CorpusPaths(folder / "corpus"));
  std::vector<std::string> names;
  while (const auto file = files.next()) names.push_back(file->path.lexically_relative(folder.path()).string());
  return names;
}

TEST(InputFiles, WalksInByteOrderAndLeavesOut) {
  const TempFolder folder;
  for (const char* name :
       {"b.txt", "a/z.txt", "a/B.txt", "a/build/x", "a/b/out/x", "a/b/deep.txt", ".hidden", ".git/config", "out/x", "build",
        "a.txt", "corpus.bin", "corpus.idx", "corpus.json", "corpus.bin.tmp-12", "a/corpus.json", "\xC3\xA4.txt"}) {
    folder.write(name, "text");
  }
  std::filesystem::create_directory_symlink(folder.path(), folder / "cycle");
  std::filesystem::create_symlink(folder / "b.txt", folder / "link.txt");
  std::filesystem::create_symlink(folder / "nowhere", folder / "broken.txt");
  // `build` is left out as a folder, not as a file.
  const std::vector<std::string> expected = {"a/B.txt", "a/b/deep.txt", "a/corpus.json", "a/z.txt",     "a.txt",
                                             "b.txt",   "build",        "link.txt",      "\xC3\xA4.txt"};
  EXPECT_EQ(files_of(folder, {folder.path()}), expected);
  EXPECT_EQ(files_of(folder, {folder / "b.txt", folder / "a/b", folder / ".hidden", folder / "b.txt"}),
            (std::vector<std::string>{"b.txt", "a/b/deep.txt", ".hidden", "b.txt"}));
}

TEST(InputFiles, RefusesWhatIsNotThere) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { files_of(folder, {folder / "none.txt"}); }), "none.txt: "));
  EXPECT_TRUE(
      contains(error_of(ExitCode::data, [&] { files_of(folder, {"/dev/null"}); }), "/dev/null: neither a file nor a folder"));
  folder.write("corpus.json", "{}");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { files_of(folder, {folder / "corpus.json"}); }), "both input and output"));
}

struct Documents {
  std::vector<std::string> texts;
  std::int64_t files = 0, skipped_files = 0, bytes_passed = 0, skipped_bytes = 0;
  std::size_t largest_task = 0;
};

// All documents, put together again from tasks of about `task_bytes`.
Documents documents_of(const TempFolder& folder, const std::vector<std::filesystem::path>& inputs, const Tokenizer& tokenizer,
                       std::size_t task_bytes, std::size_t max_piece = 1 << 20) {
  TaskReader reader(InputFiles(inputs, CorpusPaths(folder / "corpus")), tokenizer, task_bytes, max_piece);
  Documents documents;
  std::string current;
  for (;;) {
    Task task;
    if (!reader.next(task)) break;
    documents.largest_task = std::max(documents.largest_task, task.bytes.size());
    for (const Segment& segment : task.segments) {
      current += task.bytes.substr(segment.begin, segment.end - segment.begin);
      if (segment.ends_document) documents.texts.push_back(std::exchange(current, ""));
    }
    documents.files += task.files;
    documents.skipped_files += task.skipped_files;
    documents.bytes_passed += task.bytes_passed;
    documents.skipped_bytes += task.skipped_bytes;
  }
  EXPECT_EQ(current, "");
  return documents;
}

TEST(TaskReader, CutsLargeFilesAndGathersSmallOnes) {
  const TempFolder folder;
  std::vector<std::string> expected;
  std::int64_t bytes = 0;
  for (int i = 0; i < 40; ++i) {
    std::string text;
    for (int w = 0; w < i * i; ++w) text += "word" + std::to_string(w * i) + " ";
    folder.write("texts/" + std::to_string(100 + i), text);
    bytes += static_cast<std::int64_t>(text.size());
    expected.push_back(text);
  }
  const LetterTokenizer cuts_at_spaces;
  for (const std::size_t task_bytes : std::vector<std::size_t>{1, 7, 64, 1000, 1 << 20}) {
    for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(&cuts_at_spaces), static_cast<const Tokenizer*>(nullptr)}) {
      const ByteTokenizer bytes_only;
      const Documents documents = documents_of(folder, {folder / "texts"}, tokenizer ? *tokenizer : bytes_only, task_bytes);
      EXPECT_EQ(documents.texts, expected);
      EXPECT_EQ(documents.files, 40);
      EXPECT_EQ(documents.bytes_passed, bytes);
      EXPECT_LE(documents.largest_task, 2 * std::max<std::size_t>(task_bytes, 16));
    }
  }
}

TEST(TaskReader, RefusesTextThatCannotBeCut) {
  const TempFolder folder;
  const auto file = folder.write("long", std::string(5000, 'x'));
  EXPECT_EQ(documents_of(folder, {file}, LetterTokenizer(), 100, 6000).texts.size(), 1u);
  EXPECT_TRUE(
      contains(error_of(ExitCode::data, [&] { documents_of(folder, {file}, LetterTokenizer(), 100, 1000); }), "without a place"));
}

TEST(TaskReader, SkipsWhatIsNotText) {
  const TempFolder folder;
  folder.write("in/a.txt", "text");
  folder.write("in/b.png", std::string("\x89PNG\0\0", 6));
  folder.write("in/c.txt", std::string(700000, 'x') + "\xFF");  // wrong far behind the first block
  folder.write("in/d.txt", std::string(700000, 'x'));
  folder.write("in/e.txt", "cut \xE2\x82");
  folder.write("in/f.txt", "");
  const Documents documents = documents_of(folder, {folder / "in"}, ByteTokenizer(), 1 << 16);
  EXPECT_EQ(documents.texts, (std::vector<std::string>{"text", std::string(700000, 'x'), ""}));
  EXPECT_EQ(documents.files, 3);
  EXPECT_EQ(documents.skipped_files, 3);
  EXPECT_EQ(documents.skipped_bytes, 6 + 700001 + 6);
  EXPECT_EQ(documents.bytes_passed, 4 + 700000 + documents.skipped_bytes);
}

TEST(TaskReader, CutsJsonlAtLines) {
  const TempFolder folder;
  std::string file;
  std::vector<std::string> expected;
  for (int i = 0; i < 200; ++i) {
    expected.push_back("{\"text\": \"" + std::string(static_cast<std::size_t>(i * 37 % 101), 'x') + "\"}");
    file += expected.back() + (i % 5 == 0 ? "\n\n  \n" : "\n");
  }
  expected.push_back("last, without an end of line");
  file += expected.back();
  folder.write("in/a.JSONL", file);
  folder.write("in/b.txt", "text");
  folder.write("in/c.ndjson", "one\n\n");
  folder.write("in/d.jsonl", "\n\n\n\n\n\n\n\n\n\n\n\n");
  folder.write("in/e.jsonl", "two");
  expected.insert(expected.end(), {"text", "one", "two"});
  for (const std::size_t task_bytes : std::vector<std::size_t>{1, 5, 100, 5000, 1 << 20}) {
    const Documents documents = documents_of(folder, {folder / "in"}, ByteTokenizer(), task_bytes);
    EXPECT_EQ(documents.texts, expected) << task_bytes;
    EXPECT_EQ(documents.files, 5);
    EXPECT_EQ(documents.bytes_passed, static_cast<std::int64_t>(file.size()) + 4 + 5 + 12 + 3);
  }
  const std::string message =
      error_of(ExitCode::data, [&] { documents_of(folder, {folder / "in/a.JSONL"}, ByteTokenizer(), 20, 60); });
  EXPECT_TRUE(contains(message, "a line of more than 60 bytes"));
}

TEST(TaskReader, NumbersLines) {
  const TempFolder folder;
  const auto file = folder.write("a.jsonl", "1\n\n3\n4\n\n\n7");
  for (const std::size_t task_bytes : std::vector<std::size_t>{1, 3, 100}) {
    TaskReader reader(InputFiles({file}, CorpusPaths(folder / "corpus")), ByteTokenizer(), task_bytes);
    std::vector<std::int64_t> lines;
    for (;;) {
      Task task;
      if (!reader.next(task)) break;
      for (const Segment& segment : task.segments) {
        lines.push_back(segment.line);
        EXPECT_EQ(task.bytes.substr(segment.begin, segment.end - segment.begin), std::to_string(segment.line));
        EXPECT_EQ(task.file, file.string());
      }
    }
    EXPECT_EQ(lines, (std::vector<std::int64_t>{1, 3, 4, 7}));
  }
}

TEST(TaskReader, NamesFormatsThatItCannotRead) {
  const TempFolder folder;
  const auto file = folder.write("in/a.txt.gz", std::string("\x1F\x8B\0", 3));
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { documents_of(folder, {file}, ByteTokenizer(), 100); }),
                       ".gz input is not supported"));
  EXPECT_EQ(documents_of(folder, {folder / "in"}, ByteTokenizer(), 100).skipped_files, 1);
}

}  // namespace
}  // namespace octet::data

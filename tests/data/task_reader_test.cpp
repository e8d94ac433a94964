#include "octet/data/task_reader.h"

#include "data/files.h"
#include "data/packed.h"

namespace octet::data {
namespace {

struct Documents {
  std::vector<std::string> texts;
  std::int64_t files = 0, skipped_files = 0, bytes_passed = 0, skipped_bytes = 0;
  std::size_t largest_task = 0;
};

// Returns all documents, assembled from tasks of about `task_bytes`.
Documents documents_of(const TemporaryFolder& folder, const std::vector<std::filesystem::path>& inputs, const Tokenizer& tokenizer,
                       std::size_t task_bytes, std::size_t max_piece = 1 << 20) {
  TaskReader reader(InputFiles(inputs, CorpusPaths(folder / "corpus")), tokenizer,
                    {.task_bytes = task_bytes, .max_piece = max_piece});
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
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
  const auto file = folder.write("long", std::string(5000, 'x'));
  EXPECT_EQ(documents_of(folder, {file}, LetterTokenizer(), 100, 6000).texts.size(), 1u);
  EXPECT_TRUE(
      contains(error_of(ExitCode::data, [&] { documents_of(folder, {file}, LetterTokenizer(), 100, 1000); }), "without a place"));
}

TEST(TaskReader, SkipsWhatIsNotText) {
  const TemporaryFolder folder;
  folder.write("in/a.txt", "text");
  folder.write("in/b.png", std::string("\x89PNG\0\0", 6));
  folder.write("in/c.txt", std::string(700000, 'x') + "\xFF");  // the wrong byte comes long after the first block
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
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", "1\n\n3\n4\n\n\n7");
  for (const std::size_t task_bytes : std::vector<std::size_t>{1, 3, 100}) {
    const ByteTokenizer tokenizer;
    TaskReader reader(InputFiles({file}, CorpusPaths(folder / "corpus")), tokenizer, {.task_bytes = task_bytes});
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

TEST(TaskReader, UnpacksAsItReads) {
  const TemporaryFolder folder;
  std::string text, lines;
  for (int i = 0; i < 30000; ++i) {
    text += "word" + std::to_string(i * 7919 % 1000) + " ";
    lines += "{\"text\": " + std::to_string(i) + "}\n";
  }
  folder.write("plain/a.md", text);
  folder.write("plain/b.jsonl", lines);
  folder.write("packed/a.md.gz", gzipped(text));
  folder.write("packed/b.jsonl.zst", zstandard(lines));
  folder.write("packed/c.tar.gz", gzipped(std::string("binary\0", 7)));
  const std::size_t packed_bytes = gzipped(text).size() + zstandard(lines).size();
  for (const std::size_t task_bytes : std::vector<std::size_t>{100, 5000, 1 << 20}) {
    const Documents plain = documents_of(folder, {folder / "plain"}, LetterTokenizer(), task_bytes);
    const Documents packed = documents_of(folder, {folder / "packed"}, LetterTokenizer(), task_bytes);
    ASSERT_EQ(packed.texts.size(), 30001u);
    EXPECT_TRUE(packed.texts == plain.texts);
    EXPECT_EQ(packed.files, 2);
    EXPECT_EQ(packed.skipped_files, 1);
    EXPECT_EQ(packed.bytes_passed - packed.skipped_bytes, static_cast<std::int64_t>(packed_bytes));
  }
}

TEST(TaskReader, DamagedFilesAreNamedWithTheLine) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += std::to_string(i * 7919 % 100003) + "\n";
  const std::string packed = gzipped(lines);
  const auto message = [&](const std::string& name, const std::string& bytes) {
    const auto file = folder.write(name, bytes);
    return error_of(ExitCode::data, [&] { documents_of(folder, {file}, ByteTokenizer(), 100); });
  };
  EXPECT_TRUE(contains(message("a.txt.gz", packed.substr(0, packed.size() / 2)), "a.txt.gz: truncated gzip data"));
  const std::string cut = message("a.jsonl.gz", packed.substr(0, packed.size() / 2));
  EXPECT_TRUE(contains(cut, ": truncated gzip data here or after it"));
  // Half of the compressed file holds about half of the lines.
  const int line = std::stoi(cut.substr(cut.find("gz:") + 3));
  EXPECT_GT(line, 300);
  EXPECT_LT(line, 700);
  EXPECT_TRUE(contains(message("b.jsonl.gz", "no gzip"), "b.jsonl.gz:1: damaged gzip data"));
}

TEST(TaskReader, GoesOnBehindAnyTask) {
  const TemporaryFolder folder;
  std::string text, lines;
  for (int i = 0; i < 300; ++i) {
    text += "word" + std::to_string(i * 31 % 100) + " ";
    lines += i % 7 == 0 ? "\n" : std::to_string(i) + "\n";
  }
  folder.write("in/a.txt", text);
  folder.write("in/b.png", std::string(900, '\0'));
  folder.write("in/c.jsonl", lines);
  folder.write("in/d.jsonl.gz", gzipped(lines));
  folder.write("in/e.txt.zst", zstandard(text));
  folder.write("in/f.txt", "");
  folder.write("in/g.txt", "end");
  const LetterTokenizer tokenizer;
  const auto segments_from = [&](const InputPosition& from, std::vector<InputPosition>* ends) {
    TaskReader reader(InputFiles({folder / "in"}, CorpusPaths(folder / "c")), tokenizer, {.task_bytes = 100, .from = from});
    std::vector<std::string> segments;
    for (;;) {
      Task task;
      if (!reader.next(task)) return segments;
      if (ends) ends->push_back(task.end);
      for (const Segment& s : task.segments) {
        segments.push_back(task.file + std::to_string(s.line) + (s.ends_document ? "." : "-") +
                           task.bytes.substr(s.begin, s.end - s.begin));
      }
    }
  };
  const auto joined = [](const std::vector<std::string>& texts, std::size_t first) {
    std::string all;
    for (std::size_t i = first; i < texts.size(); ++i) all += texts[i] + "|";
    return all;
  };
  std::vector<InputPosition> ends;
  const std::vector<std::string> whole = segments_from({}, &ends);
  ASSERT_GT(ends.size(), 30u);
  std::size_t passed = 0;
  for (const InputPosition& end : ends) {
    const std::vector<std::string> rest = segments_from(end, nullptr);
    ASSERT_LE(rest.size(), whole.size());
    EXPECT_GE(whole.size() - rest.size(), passed);
    passed = whole.size() - rest.size();
    EXPECT_TRUE(joined(rest, 0) == joined(whole, passed)) << end.files << " files, " << end.bytes << " bytes";
  }
  EXPECT_EQ(passed, whole.size());

  // A position is still valid after a file appears behind it. It is not valid if a file appears among those that were read or are
  // open.
  const auto leads = [&](const InputPosition& end) {
    return leads_to(InputFiles({folder / "in"}, CorpusPaths(folder / "c")), end);
  };
  folder.write("in/z.txt", "later");
  for (const InputPosition& end : ends) EXPECT_TRUE(leads(end)) << end.files;
  folder.write("in/a.0", "earlier");
  for (const InputPosition& end : ends) EXPECT_EQ(leads(end), end.files == 0 && end.bytes == 0) << end.files;
}

TEST(TaskReader, StandardInputIsReadOnce) {
  const TemporaryFolder folder;
  const std::string text(300000, 'x');
  {
    const StandardInput input(folder.write("stream", text));
    EXPECT_TRUE(documents_of(folder, {"-"}, ByteTokenizer(), 1000).texts == std::vector<std::string>{text});
  }
  const StandardInput input(folder.write("stream", text + "\xFF"));
  EXPECT_EQ(error_of(ExitCode::data, [&] { documents_of(folder, {"-"}, ByteTokenizer(), 1000); }),
            "standard input: not UTF-8 text, wrong from byte 300000 on");
}

}  // namespace
}  // namespace octet::data

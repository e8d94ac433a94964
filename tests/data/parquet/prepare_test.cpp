// Parquet as an input of `octet data prepare`. It must give the same corpus as JSONL, be resumable, and be refused in one
// sentence.
#include "octet/data/prepare.h"

#include "data/acting_tokenizer.h"
#include "data/packed.h"
#include "data/parquet/files.h"
#include "octet/data/task_reader.h"
#include "support/program.h"

namespace octet::data {
namespace {

using PrepareParquetTest = ParquetTest;

TEST_F(PrepareParquetTest, IsTheCorpusOfTheSameLines) {
  const PrepareSummary lines = prepare({.inputs = {folder_ / "texts.jsonl"}, .output = folder_ / "lines"}, LetterTokenizer());
  ASSERT_EQ(lines.corpus.documents, 2996);
  for (const char* name : {"same-snappy", "same-pages", "same-dictionary", "same-required"}) {
    for (const int workers : {1, 3}) {
      std::vector<PrepareProgress> calls;
      const PrepareSummary rows = prepare({.inputs = {file(name)},
                                           .output = folder_ / "rows",
                                           .workers = workers,
                                           .progress = [&](const PrepareProgress& progress) { calls.push_back(progress); }},
                                          LetterTokenizer());
      for (const char* suffix : {"rows.bin", "rows.idx"})
        EXPECT_TRUE(read_file(folder_ / suffix) == read_file(folder_ / ("lines" + std::string(suffix).substr(4)))) << name;
      nlohmann::json about_rows = read_json(folder_ / "rows.json"), about_lines = read_json(folder_ / "lines.json");
      about_rows.erase("command");
      about_lines.erase("command");
      EXPECT_EQ(about_rows, about_lines) << name;
      EXPECT_EQ(rows.files, 1);
      EXPECT_EQ(rows.empty_documents, 4);
      EXPECT_EQ(rows.duplicates, lines.duplicates);
      EXPECT_EQ(rows.input_bytes, static_cast<std::int64_t>(std::filesystem::file_size(file(name))));
      EXPECT_EQ(calls.back().bytes_done, calls.back().bytes_total);
    }
  }
}

TEST_F(PrepareParquetTest, StandsAmongOtherInputs) {
  folder_.write("in/a.txt", "a text");
  folder_.write("in/c.jsonl", "{\"text\": \"a line\"}\n");
  std::filesystem::create_directories(folder_ / "in");
  std::filesystem::copy_file(file("three"), folder_ / "in/b.PARQUET");
  std::filesystem::copy_file(file("no-rows"), folder_ / "in/d.parquet");
  std::filesystem::copy_file(file("three"), folder_ / "in/e.parquet");
  const PrepareSummary summary = prepare({.inputs = {folder_ / "in"}, .output = folder_ / "c"}, ByteTokenizer());
  EXPECT_EQ(summary.files, 5);
  const Corpus corpus(folder_ / "c");
  ASSERT_EQ(corpus.documents(), 8);
  EXPECT_EQ(text_of(corpus, 0), "a text");
  EXPECT_EQ(text_of(corpus, 1), "first");
  EXPECT_EQ(text_of(corpus, 3), "sch\xC3\xB6n");
  EXPECT_EQ(text_of(corpus, 4), "a line");
  EXPECT_EQ(text_of(corpus, 7), "sch\xC3\xB6n");
}

// A reader that starts at the end of any task must find the same rest.
TEST_F(PrepareParquetTest, TasksGoOnFromEveryPosition) {
  const ByteTokenizer tokenizer;
  for (const char* name : {"same-gzip", "same-pages-v2"}) {
    const auto segments_from = [&](const InputPosition& from, std::vector<InputPosition>* ends) {
      const InputFiles files({file("three"), file(name), file("three")}, CorpusPaths(folder_ / "c"));
      EXPECT_TRUE(leads_to(files, from));
      TaskReader reader(files, tokenizer, {.task_bytes = 10000, .from = from});
      std::vector<std::string> segments;
      for (Task task; reader.next(task); task = {}) {
        if (ends) ends->push_back(task.end);
        for (const Segment& s : task.segments) {
          segments.push_back(task.file + std::to_string(s.line) + ":" + task.bytes.substr(s.begin, s.end - s.begin));
        }
      }
      return segments;
    };
    std::vector<InputPosition> ends;
    const std::vector<std::string> all = segments_from({}, &ends);
    ASSERT_EQ(all.size(), 3006u);
    ASSERT_GE(ends.size(), 10u);
    for (const InputPosition& end : ends) {
      const std::vector<std::string> rest = segments_from(end, nullptr);
      ASSERT_LT(rest.size(), all.size());
      EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), all.rbegin())) << name << " from row " << end.bytes;
      const std::size_t before = end.files == 0   ? static_cast<std::size_t>(end.bytes)
                                 : end.files == 1 ? 3 + static_cast<std::size_t>(end.bytes)
                                 : end.files == 2 ? 3003 + static_cast<std::size_t>(end.bytes)
                                                  : 3006;
      EXPECT_EQ(rest.size(), 3006 - before);
    }
  }
}

TEST_F(PrepareParquetTest, GoesOnWhereItWasKilled) {
  const LetterTokenizer letters;
  PrepareOptions options{.inputs = {file("large"), file("same-zstd")}, .output = folder_ / "c"};
  EXPECT_GE(kills_until_prepared(options, letters, 5000), 2);
  options.output = folder_ / "whole";
  prepare(options, letters);  // not earlier: Arrow starts a thread, and TSan does not allow fork() while it runs
  EXPECT_TRUE(files_of_corpus(folder_ / "c") == files_of_corpus(folder_ / "whole"));
}

TEST_F(PrepareParquetTest, ChatsGoOnWhereTheyWereKilled) {
  const ByteTokenizer bytes;
  PrepareOptions options{.inputs = {file("chats")},
                         .output = folder_ / "c",
                         .field = "",
                         .chat = chat_format("chatml", TrainOn::assistant, bytes),
                         .duplicates = Duplicates::ignore};
  EXPECT_GE(kills_until_prepared(options, bytes, 5000), 2);
  options.output = folder_ / "whole";
  EXPECT_EQ(prepare(options, bytes).corpus.documents, 12000);
  EXPECT_TRUE(files_of_corpus(folder_ / "c") == files_of_corpus(folder_ / "whole"));
}

TEST_F(PrepareParquetTest, RefusesInOneSentenceWithTheFile) {
  const auto refusal = [&](const std::filesystem::path& input, const std::string& field = "text") {
    const std::string message =
        error_of(ExitCode::data, [&] { prepare({.inputs = {input}, .output = folder_ / "c", .field = field}, ByteTokenizer()); });
    EXPECT_EQ(message.rfind(input.string(), 0), 0u) << message;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "c.bin"));
    return message;
  };
  EXPECT_TRUE(contains(refusal(file("null")), "null.parquet:1234: column \"text\" is null, not a string"));
  EXPECT_TRUE(contains(refusal(file("not-utf8")), "not-utf8.parquet:2: column \"text\" is not UTF-8, wrong from byte 8 on"));
  EXPECT_TRUE(contains(refusal(file("kinds"), "ints"), "kinds.parquet: cannot read this Parquet: column \"ints\" holds INT64"));
  EXPECT_TRUE(contains(refusal(file("same-zstd"), "body"), "no column \"body\" (there are: text)"));
  EXPECT_TRUE(contains(refusal(folder_.write("noise.parquet", "PAR1 and no more")),
                       "noise.parquet: cannot read this Parquet: Parquet magic bytes not found in footer"));
  EXPECT_TRUE(contains(refusal(folder_.write("empty.parquet", "")), "empty.parquet: cannot read this Parquet: "));
  const std::string whole = read_file(file("same-zstd"));
  EXPECT_TRUE(contains(refusal(folder_.write("cut.parquet", whole.substr(0, whole.size() / 2))),
                       "cut.parquet: cannot read this Parquet: "));
  EXPECT_TRUE(contains(refusal(file("no-rows")), "no documents here"));
  std::string bytes = read_file(file("checksums"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  EXPECT_TRUE(contains(refusal(folder_.write("flipped.parquet", bytes)), "damaged Parquet: "));
}

TEST_F(PrepareParquetTest, RefusesTextsThatAreTooLong) {
  const InputFiles files({file("three")}, CorpusPaths(folder_ / "c"));
  const ByteTokenizer tokenizer;
  const auto read = [&](std::size_t max_piece) {
    Task task;
    return TaskReader(files, tokenizer, {.max_piece = max_piece}).next(task);
  };
  EXPECT_EQ(error_of(ExitCode::data, [&] { read(7); }), file("three").string() + ":2: a text of more than 7 bytes");
  EXPECT_TRUE(read(8));
}

// Parquet has its table of contents at the end of the file.
TEST_F(PrepareParquetTest, IsNoStandardInput) {
  const auto read_stream = [&](const std::filesystem::path& path) {
    const StandardInput input(path);
    prepare({.inputs = {"-"}, .output = folder_ / "c"}, ByteTokenizer());
  };
  const std::string message = error_of(ExitCode::data, [&] { read_stream(file("three")); });
  EXPECT_TRUE(contains(message, "standard input: not UTF-8 text"));
  EXPECT_TRUE(contains(message, "; Parquet is read only from files"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "c.bin"));
  read_stream(folder_.write("text", "PAR1 is a text"));
  EXPECT_EQ(text_of(Corpus(folder_ / "c"), 0), "PAR1 is a text");
}

// The run is refused before anything is written, whether the file is named or found in a folder. Otherwise the corpus would lack
// its texts.
TEST(PrepareParquet, SaysHowToGetThePlugin) {
  const TemporaryFolder folder;
  folder.write("in/a.txt", "text");
  const auto file = folder.write("in/b.parquet", "PAR1");
  for (const std::filesystem::path& input : {file, folder / "in"}) {
    const std::string command =
        "data prepare --tokenizer byte --input '" + input.string() + "' --output '" + (folder / "c").string() + "'";
    EXPECT_TRUE(testing::refused(testing::run_program(command, ".", "OCTET_PARQUET=/nowhere/x.so exec"), 2, file.string(),
                                 "OCTET_PARQUET=/nowhere/x.so: no such file"));
  }
  const auto no_library = folder.write("x.so", "no library");
  EXPECT_TRUE(testing::refused(
      testing::run_program(
          "data prepare --tokenizer byte --input '" + file.string() + "' --output '" + (folder / "c").string() + "'", ".",
          "OCTET_PARQUET='" + no_library.string() + "' exec"),
      2, "b.parquet: the Parquet plugin " + no_library.string() + " cannot be loaded: ", "(Arrow must lie where"));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"in", "x.so"}));
}

}  // namespace
}  // namespace octet::data

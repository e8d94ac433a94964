#include "octet/data/output_watch.h"

#include "data/acting_tokenizer.h"
#include "data/files.h"
#include "octet/data/prepare.h"
#include "octet/telemetry/format.h"

namespace octet::data {
namespace {

constexpr std::int64_t kMega = std::int64_t{1} << 20;

std::uint64_t bytes_of_corpus(const std::filesystem::path& prefix) {
  return std::filesystem::file_size(prefix.string() + ".bin") + std::filesystem::file_size(prefix.string() + ".idx");
}

// Many documents in many tasks.
void write_lines(const TemporaryFolder& folder) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += "{\"text\": \"" + std::string(1000 + static_cast<std::size_t>(i % 700), static_cast<char>('a' + i % 26)) + "\"}\n";
  folder.write("in.jsonl", lines);
}

TEST(OutputWatch, ExpectsWhatWasSoFar) {
  EXPECT_EQ(expected_bytes(600, 3, 9), 1800);
  EXPECT_EQ(expected_bytes(600, 0, 9), 0);
  EXPECT_EQ(expected_bytes(600, 3, 0), 0);
}

TEST(OutputWatch, WarnsOnceOfMuchAndOfTooMuch) {
  OutputWatch watch({.output = "out/c", .space = [] { return OutputWatch::Space{.capacity = std::uint64_t{10} << 30, .available = std::uint64_t{3} << 30}; }});
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(watch.look(10 * kMega, 0, kMega, 3 * kMega));
  EXPECT_FALSE(watch.look(63 * kMega, 0, kMega, 3 * kMega));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.look(2000 * kMega, 0, kMega, 3 * kMega));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: out/c: the corpus is 2000 times as large as its input: 1.95 GiB so far, 5.86 GiB expected. --max-output SIZE stops it\n"
            "warning: out/c: the corpus may not fit: 5.86 GiB expected, 1.95 GiB written, 3.00 GiB free. The preparation stops before the disk "
            "is full\n");
}

// One large disk and a small one: a hundredth stays free, and what is still to be written has room.
TEST(OutputWatch, StopsBeforeTheDiskIsFull) {
  std::uint64_t free = 0;
  for (const std::uint64_t capacity : {std::uint64_t{50} << 30, std::uint64_t{1} << 30}) {
    OutputWatch watch({.output = "c", .space = [&] { return OutputWatch::Space{.capacity = capacity, .available = free}; }});
    const std::uint64_t reserve = std::max<std::uint64_t>(capacity / 100, 16 << 20), unwritten = 5 << 20;
    free = reserve + unwritten;
    EXPECT_FALSE(watch.look(100, static_cast<std::int64_t>(unwritten), 1, 2));
    free -= 1;
    const auto stop = watch.look(100, static_cast<std::int64_t>(unwritten), 1, 2);
    ASSERT_TRUE(stop);
    EXPECT_EQ(stop->code, ExitCode::internal);
    EXPECT_TRUE(contains(stop->why, " are free on its disk, and "));
  }
  OutputWatch unknown({.output = "c", .space = [] { return OutputWatch::Space{}; }});
  EXPECT_FALSE(unknown.look(100, 0, 1, 2));
}

TEST(OutputWatch, ALimitStopsThePreparationWhichGoesOnWithALargerOne) {
  const TemporaryFolder folder;
  write_lines(folder);
  PrepareOptions options{.inputs = {folder / "in.jsonl"}, .output = folder / "whole", .workers = 2};
  prepare(options, ByteTokenizer());
  const auto whole = static_cast<std::int64_t>(bytes_of_corpus(folder / "whole"));
  options.output = folder / "c";
  options.max_output_bytes = whole / 2;
  const std::string message = error_of(ExitCode::does_not_fit, [&] { prepare(options, ByteTokenizer()); });
  EXPECT_TRUE(contains(message, (folder / "c").string() + ": the corpus would be larger than --max-output = " +
                                    telemetry::format_count(whole / 2, "byte") + "; stopped after "));
  EXPECT_TRUE(contains(message, " documents. The same command with a larger --max-output continues from there"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "c.json.part"));
  EXPECT_LE(std::filesystem::file_size(folder / "c.bin.part") + std::filesystem::file_size(folder / "c.idx.part"),
            static_cast<std::uintmax_t>(whole / 2));
  options.max_output_bytes = whole - 1;
  error_of(ExitCode::does_not_fit, [&] { prepare(options, ByteTokenizer()); });
  options.max_output_bytes = whole;  // exactly
  prepare(options, ByteTokenizer());
  EXPECT_TRUE(files_of_corpus(folder / "c") == files_of_corpus(folder / "whole"));
}

// Not one document fits: nothing is left behind.
TEST(OutputWatch, AnUnfinishedFirstDocumentLeavesNothing) {
  const TemporaryFolder folder;
  folder.write("one.txt", std::string(5'000'000, 'x'));
  const PrepareOptions options{.inputs = {folder / "one.txt"}, .output = folder / "c", .max_output_bytes = kMega};
  EXPECT_TRUE(contains(error_of(ExitCode::does_not_fit, [&] { prepare(options, ByteTokenizer()); }), "stopped after 0 documents. Nothing was written"));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"one.txt"});
}

TEST(OutputWatch, AFillingDiskEndsThePreparationWhichGoesOn) {
  const TemporaryFolder folder;
  write_lines(folder);
  PrepareOptions options{.inputs = {folder / "in.jsonl"}, .output = folder / "whole", .workers = 1};
  prepare(options, ByteTokenizer());
  options.output = folder / "c";
  int asked = 0;
  options.space = [&] {
    const std::uint64_t available = ++asked < 3 ? std::uint64_t{1} << 30 : 1 << 20;
    return OutputWatch::Space{.capacity = std::uint64_t{10} << 30, .available = available};
  };
  const std::string message = error_of(ExitCode::internal, [&] { prepare(options, ByteTokenizer()); });
  EXPECT_TRUE(contains(message, ": only 1.00 MiB are free on its disk, and "));
  EXPECT_TRUE(contains(message, "Make room and run the same command: it continues from there"));
  options.space = {};
  prepare(options, ByteTokenizer());
  EXPECT_TRUE(files_of_corpus(folder / "c") == files_of_corpus(folder / "whole"));
}

}  // namespace
}  // namespace octet::data

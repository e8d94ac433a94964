#include "octet/data/input_files.h"

#include "data/files.h"

namespace octet::data {
namespace {

std::vector<std::string> files_of(const TemporaryFolder& folder, const std::vector<std::filesystem::path>& inputs) {
  InputFiles files(inputs, CorpusPaths(folder / "corpus"));
  std::vector<std::string> names;
  while (const auto file = files.next()) names.push_back(file->path.lexically_relative(folder.path()).string());
  return names;
}

TEST(InputFiles, WalksInByteOrderAndLeavesOut) {
  const TemporaryFolder folder;
  for (const char* name :
       {"b.txt", "a/z.txt", "a/B.txt", "a/build/x", "a/b/out/x", "a/b/deep.txt", ".hidden", ".git/config", "out/x", "build",
        "a.txt", "corpus.bin", "corpus.idx", "corpus.json", "corpus.bin.tmp-12", "a/corpus.json", "\xC3\xA4.txt"}) {
    folder.write(name, "text");
  }
  std::filesystem::create_directory_symlink(folder.path(), folder / "cycle");
  std::filesystem::create_symlink(folder / "b.txt", folder / "link.txt");
  std::filesystem::create_symlink(folder / "nowhere", folder / ".#a.txt");  // as an editor locks a file
  // A folder called `build` is skipped, but a file called `build` is not.
  const std::vector<std::string> expected = {"a/B.txt", "a/b/deep.txt", "a/corpus.json", "a/z.txt",     "a.txt",
                                             "b.txt",   "build",        "link.txt",      "\xC3\xA4.txt"};
  EXPECT_EQ(files_of(folder, {folder.path()}), expected);
  EXPECT_EQ(files_of(folder, {folder / "b.txt", folder / "a/b", folder / ".hidden", folder / "b.txt"}),
            (std::vector<std::string>{"b.txt", "a/b/deep.txt", ".hidden", "b.txt"}));
}

TEST(InputFiles, RefusesWhatIsNotThere) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "links");
  for (const auto& [name, words] : {std::pair("itself.txt", ": Too many levels of symbolic links"),
                                    std::pair("nowhere.txt", ": a link that leads nowhere; repair or remove it")}) {
    const auto link = folder / "links" / name;
    std::filesystem::create_symlink("itself.txt", link);
    EXPECT_EQ(error_of(ExitCode::data, [&] { files_of(folder, {folder / "links"}); }), link.string() + words);
    std::filesystem::remove(link);
  }
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { files_of(folder, {folder / "none.txt"}); }), "none.txt: "));
  EXPECT_TRUE(
      contains(error_of(ExitCode::data, [&] { files_of(folder, {"/dev/null"}); }), "/dev/null: neither a file nor a folder"));
  folder.write("corpus.json", "{}");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { files_of(folder, {folder / "corpus.json"}); }), "both input and output"));
}

// All unfinished files of a corpus end in .part. Other files whose names begin like a corpus may belong to the user.
TEST(InputFiles, OnlyWhatPrepareWritesIsLeftOut) {
  const TemporaryFolder folder;
  for (const char* name : {"corpus.lock", "corpus.seen", "corpus.lock.part", "corpus.seen.part", "corpus.json.part"})
    folder.write(name, "text");
  const std::vector<std::string> others = {"corpus.lock", "corpus.seen"};
  EXPECT_EQ(files_of(folder, {folder.path()}), others);
  EXPECT_EQ(files_of(folder, {folder / "corpus.lock", folder / "corpus.seen"}), others);
}

TEST(InputFiles, PatternsMatchInByteOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"b1.txt", "a/z.txt", "B2.txt", "b10.txt", "b[1].txt", "c.md"}) folder.write(name, "text");
  EXPECT_EQ(files_of(folder, {folder / "[bB]*.txt"}), (std::vector<std::string>{"B2.txt", "b1.txt", "b10.txt", "b[1].txt"}));
  EXPECT_EQ(files_of(folder, {folder / "?", folder / "b?.*"}), (std::vector<std::string>{"a/z.txt", "b1.txt"}));
  EXPECT_EQ(files_of(folder, {folder / "b[1].txt"}), (std::vector<std::string>{"b[1].txt"}));  // a file has exactly this name
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { files_of(folder, {folder / "*.jsonl"}); }),
                       "*.jsonl: no file or folder matches this"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { files_of(folder, {folder / "nowhere/*.txt"}); }),
                       "nowhere/*.txt: no file or folder matches this"));
}

TEST(InputFiles, StandardInputHasNoSize) {
  const TemporaryFolder folder;
  InputFiles files({"-"}, CorpusPaths(folder / "corpus"));
  const auto file = files.next();
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->is_standard_input());
  EXPECT_EQ(file->bytes, 0);
  EXPECT_FALSE(files.next());
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { files_of(folder, {"-", "-"}); }), "given twice"));
}

TEST(InputFiles, NamesKindsThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto refusal = [&](const char* name) {
    const auto file = folder.write(std::string("in/") + name, "PAR1");
    return error_of(ExitCode::config, [&] { files_of(folder, {file}); });
  };
  EXPECT_TRUE(contains(refusal("a.parquet.gz"), "a.parquet.gz: .gz around Parquet is not supported; unpack it first"));
  EXPECT_TRUE(contains(refusal("a.tar.XZ"), "a.tar.XZ: .xz input is not supported; unpack it first"));
  EXPECT_TRUE(contains(refusal("a.tar.gz"), "a.tar.gz: .tar.gz input is not supported; unpack it first"));
  EXPECT_TRUE(contains(refusal("a.zip.zst"), "a.zip.zst: .zip.zst input is not supported; unpack it first"));
  EXPECT_TRUE(contains(refusal("a.tgz"), "a.tgz: .tgz input is not supported; unpack it first"));
  // If such files are found in a folder, the reader reports and skips them.
  EXPECT_EQ(files_of(folder, {folder / "in"}).size(), 5u);
}

TEST(InputFiles, WhatIsACorpusAlreadyNeedsNoPreparation) {
  const TemporaryFolder folder;
  write_corpus(folder / "web", {"text"});
  for (const char* name : {"web.bin", "web.idx", "web.json", "web.checked"}) {
    const auto file = folder / name;
    if (!std::filesystem::exists(file)) folder.write(name, "{}");
    const std::string error = error_of(ExitCode::config, [&] { files_of(folder, {file}); });
    EXPECT_TRUE(contains(error, file.string() + ": belongs to a corpus that is already prepared. Train on it with path = \""));
    EXPECT_TRUE(contains(error, (folder / "web").string() + "\" in [[data.source]]"));
  }
  folder.write("web.loss.idx", read_file(folder / "web.idx"));
  folder.write("web.loss.bin", "\1\1\1\1");
  EXPECT_EQ(files_of(folder, {folder.path()}), std::vector<std::string>{});
  folder.write("other.idx", "MMIDI");
  for (const char* name : {"other.idx", "other.bin", "other.json", "other.checked", "web.txt"}) {
    EXPECT_EQ(files_of(folder, {folder.write(name, "MMIDI")}), std::vector<std::string>{name});
  }
}

TEST(InputFormat, GoesByTheNameUnlessToldOtherwise) {
  for (const char* name : {"a.jsonl", "a.NDJSON", "a.jsonl.gz", "d/a.ndjson.ZST"})
    EXPECT_EQ(input_format(name, InputFormat::automatic), InputFormat::jsonl) << name;
  for (const char* name : {"a.parquet", "d/a.PARQUET"}) {
    EXPECT_EQ(input_format(name, InputFormat::automatic), InputFormat::parquet) << name;
    EXPECT_EQ(input_format(name, InputFormat::text), InputFormat::text) << name;
  }
  for (const char* name : {"a.parquet.gz", "a.json", "a.json.gz", "jsonl", "a.gz", "a.jsonl.txt", "-"}) {
    EXPECT_EQ(input_format(name, InputFormat::automatic), InputFormat::text) << name;
    EXPECT_EQ(input_format(name, InputFormat::jsonl), InputFormat::jsonl) << name;
  }
}

}  // namespace
}  // namespace octet::data

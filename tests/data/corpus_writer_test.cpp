#include "octet/data/corpus_writer.h"

#include <sys/wait.h>
#include <unistd.h>

#include "data/files.h"

namespace octet::data {
namespace {

TEST(CorpusWriter, WritesMegatronsBytes) {
  const TempFolder folder;
  write_corpus(folder / "c", {"AB", "C"});
  EXPECT_EQ(read_file(folder / "c.bin"), std::string("A\0B\0C\0", 6));
  EXPECT_EQ(read_file(folder / "c.idx"), HandMadeIndex(8, 2, {2, 1}, {0, 1}).bytes());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin", "c.idx", "c.json"}));
}

TEST(CorpusWriter, LargeVocabulariesTakeFourBytes) {
  const TempFolder folder;
  CorpusWriter writer(folder / "c", LetterTokenizer(70000));
  writer.append(std::vector<std::int32_t>{69999, 1});
  EXPECT_TRUE(writer.end_document());
  EXPECT_FALSE(writer.end_document());  // empty: no token of its own either
  writer.append(std::vector<std::int32_t>{2});
  EXPECT_TRUE(writer.end_document());
  writer.finish();
  std::string tokens;
  for (const std::int32_t token : {69999, 1, 0, 2, 0}) put(tokens, token);
  EXPECT_EQ(read_file(folder / "c.bin"), tokens);
  EXPECT_EQ(read_file(folder / "c.idx"), HandMadeIndex(4, 4, {3, 2}, {0, 1}).bytes());
}

TEST(CorpusWriter, LongDocumentsBecomeSeveralSequences) {
  const TempFolder folder;
  CorpusWriter writer(folder / "c", ByteTokenizer(), 4);
  for (const std::string document : {"ab", "0123456789", "wxyz", "c"}) {
    for (const char c : document) writer.append(std::vector<std::int32_t>{c});
    writer.end_document();
  }
  writer.finish();
  EXPECT_EQ(read_file(folder / "c.idx"), HandMadeIndex(8, 2, {2, 4, 4, 2, 4, 1}, {0, 1, 4, 5}).bytes());
  const Corpus corpus(folder / "c");
  EXPECT_EQ(corpus.documents(), 4);
  EXPECT_EQ(text_of(corpus, 1), "0123456789");
  EXPECT_EQ(text_of(corpus, 2), "wxyz");
}

TEST(CorpusWriter, ManySequences) {
  // More than one block of the pass that reads lengths back.
  const TempFolder folder;
  {
    CorpusWriter writer(folder / "c", ByteTokenizer());
    for (int i = 0; i < 150000; ++i) {
      writer.append(std::vector<std::int32_t>(static_cast<std::size_t>(1 + i % 3), i % 256));
      writer.end_document();
    }
    writer.finish();
  }
  const Corpus corpus(folder / "c");
  EXPECT_EQ(corpus.documents(), 150000);
  EXPECT_EQ(corpus.tokens(), 300000);
  EXPECT_EQ(corpus.document_at(299999), 149999);
  EXPECT_TRUE(corpus.verify());
}

TEST(CorpusWriter, AnUnfinishedOneLeavesTheEarlierCorpus) {
  const TempFolder folder;
  write_corpus(folder / "c", {"earlier"});
  {
    CorpusWriter writer(folder / "c", ByteTokenizer());
    writer.append(ids_of("half"));
    EXPECT_EQ(writer.tokens(), 4);
    EXPECT_EQ(names_in(folder.path()).size(), 5u);
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin", "c.idx", "c.json"}));
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "earlier");
  write_corpus(folder / "c", {"later"});
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "later");
}

TEST(CorpusWriter, AKilledRunLeavesNoCorpusAndIsClearedUp) {
  const TempFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CorpusWriter writer(folder / "c", ByteTokenizer());
    writer.append(std::vector<std::int32_t>(3 << 20, 65));
    writer.end_document();
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto left = names_in(folder.path());
  ASSERT_EQ(left.size(), 2u);
  for (const std::string& name : left) EXPECT_TRUE(contains(name, ".tmp-"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c"); }), "no corpus here"));
  folder.write("c.bin.tmp-notes", "a name that is not ours");
  write_corpus(folder / "c", {"later"});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin", "c.bin.tmp-notes", "c.idx", "c.json"}));
}

TEST(CorpusWriter, RefusesTokensThatItsTokenizerCannotGive) {
  const TempFolder folder;
  CorpusWriter writer(folder / "c", ByteTokenizer());
  for (const std::int32_t wrong : {256, -1, 65536}) EXPECT_THROW(writer.append(std::vector<std::int32_t>{65, wrong}), Error);
}

TEST(CorpusWriter, SaysWhereItCannotWrite) {
  const TempFolder folder;
  folder.write("file", "x");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { CorpusWriter(folder / "file/c", ByteTokenizer()); }),
                       "cannot create this folder"));
  EXPECT_TRUE(
      contains(error_of(ExitCode::config, [&] { CorpusWriter(folder / "sub/", ByteTokenizer()); }), "must end in a name"));
  EXPECT_NO_THROW(CorpusWriter(folder / "new/folders/c", ByteTokenizer()));
}

}  // namespace
}  // namespace octet::data

#include "octet/data/corpus_writer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "data/files.h"

namespace octet::data {
namespace {

TEST(CorpusWriter, WritesMegatronsBytes) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"AB", "C"});
  EXPECT_EQ(read_file(folder / "c.bin"), std::string("A\0B\0C\0", 6));
  EXPECT_EQ(read_file(folder / "c.idx"), HandMadeIndex(8, 2, {2, 1}, {0, 1}).bytes());
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin", "c.idx", "c.json"}));
}

TEST(CorpusWriter, LargeVocabulariesTakeFourBytes) {
  const TemporaryFolder folder;
  CorpusWriter writer(folder / "c", LetterTokenizer(70000));
  writer.append(std::vector<std::int32_t>{69999, 1});
  EXPECT_EQ(writer.end_document(), CorpusWriter::Ended::document);
  EXPECT_EQ(writer.end_document(), CorpusWriter::Ended::empty);  // no token, not even an end of document
  writer.append(std::vector<std::int32_t>{2});
  EXPECT_EQ(writer.end_document(), CorpusWriter::Ended::document);
  writer.finish();
  EXPECT_EQ(Corpus(folder / "c").info()->largest_token, 69999);
  std::string tokens;
  for (const std::int32_t token : {69999, 1, 0, 2, 0}) put(tokens, token);
  EXPECT_EQ(read_file(folder / "c.bin"), tokens);
  EXPECT_EQ(read_file(folder / "c.idx"), HandMadeIndex(4, 4, {3, 2}, {0, 1}).bytes());
}

TEST(CorpusWriter, DocumentsBeginWithThePrefix) {
  class Prefixed final : public LetterTokenizer {
   public:
    std::span<const std::int32_t> prefix() const override { return ids_; }

   private:
    std::vector<std::int32_t> ids_ = {1, 3};
  };
  const TemporaryFolder folder;
  CorpusWriter writer(folder / "c", Prefixed());
  EXPECT_EQ(writer.end_document(), CorpusWriter::Ended::empty);
  writer.append(ids_of("a"));
  writer.append({});
  writer.append(ids_of("b"));
  EXPECT_EQ(writer.end_document(), CorpusWriter::Ended::document);
  writer.append(ids_of("c"));
  EXPECT_EQ(writer.end_document(), CorpusWriter::Ended::document);
  EXPECT_EQ(writer.finish().tokens, 9);
  const Corpus corpus(folder / "c");
  EXPECT_EQ(text_of(corpus, 0), std::string("\1\3" "ab\0", 5));
  EXPECT_EQ(text_of(corpus, 1), std::string("\1\3" "c\0", 4));
}

TEST(CorpusWriter, LongDocumentsBecomeSeveralSequences) {
  const TemporaryFolder folder;
  CorpusWriter writer(folder / "c", ByteTokenizer(), {.max_sequence = 4});
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
  // The index has more blocks than one, so that lengths are read back in several reads.
  const TemporaryFolder folder;
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
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"earlier"});
  {
    CorpusWriter writer(folder / "c", ByteTokenizer());
    writer.append(ids_of("half"));
    EXPECT_EQ(writer.tokens(), 4);
    EXPECT_EQ(names_in(folder.path()).size(), 6u);
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin", "c.idx", "c.json"}));
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "earlier");
  write_corpus(folder / "c", {"later"});
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "later");
}

TEST(CorpusWriter, AKilledRunLeavesNoCorpusAndIsClearedUp) {
  const TemporaryFolder folder;
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
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin.part", "c.idx.part", "c.lock.part"}));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c"); }), "no corpus here"));
  write_corpus(folder / "c", {"later"});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"c.bin", "c.idx", "c.json"}));
}

TEST(CorpusWriter, OnlyOneProcessWritesACorpus) {
  const TemporaryFolder folder;
  CorpusWriter writer(folder / "c", ByteTokenizer());
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { CorpusWriter(folder / "c", ByteTokenizer()); }),
                       "/c: another process is writing this"));
  writer.append(ids_of("text"));
  writer.end_document();
  writer.finish();
  EXPECT_EQ(text_of(Corpus(folder / "c"), 0), "text");
}

// A process that comes while another one renames its finished files is refused too. In the end all files belong to the same
// process.
TEST(CorpusWriter, TwoProcessesNeverWriteOneCorpusBetweenThem) {
  const TemporaryFolder folder;
  const auto write_many = [&](const std::string& document) {
    for (int written = 0; written < 25;) {
      try {
        write_corpus(folder / "c", {document});
        ++written;
      } catch (const Error& error) {
        if (error.code() != ExitCode::config) throw;
        std::this_thread::yield();
      }
    }
  };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      write_many("of the child");
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  EXPECT_NO_THROW(write_many("a longer one, of the parent"));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const Corpus corpus(folder / "c");
  corpus.verify_once();
  const std::string text = text_of(corpus, 0);
  EXPECT_TRUE(text == "of the child" || text == "a longer one, of the parent") << text;
  EXPECT_EQ(corpus.info()->tokens, static_cast<std::int64_t>(text.size()));
}

// Pieces of documents. An empty piece ends a document.
std::vector<std::string> pieces_for_resuming() {
  std::vector<std::string> pieces;
  for (int d = 0; d < 40; ++d) {
    for (int p = 0; p < d % 4; ++p)
      pieces.push_back(std::string(static_cast<std::size_t>(1 + d % 5), static_cast<char>('a' + p)));
    pieces.push_back("");
  }
  return pieces;
}

void write_pieces(CorpusWriter& writer, const std::vector<std::string>& pieces, std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < to; ++i) {
    if (pieces[i].empty()) {
      writer.end_document();
    } else {
      writer.append(ids_of(pieces[i]));
    }
  }
}

// The writer may stop anywhere, even within a document of several sequences or within one that is dropped. It must go on to the
// same bytes.
TEST(CorpusWriter, GoesOnWithItsParts) {
  const std::vector<std::string> pieces = pieces_for_resuming();
  for (const Duplicates duplicates : {Duplicates::ignore, Duplicates::count, Duplicates::drop}) {
    const TemporaryFolder folder;
    const CorpusWriter::Options options{.max_sequence = 3, .duplicates = duplicates};
    const auto finish = [&](const std::string& name, std::size_t stop) {
      WriterState state;
      {
        CorpusWriter first(folder / name, ByteTokenizer(), options);
        write_pieces(first, pieces, 0, stop);
        state = first.flush();
        write_pieces(first, pieces, stop, std::min(stop + 4, pieces.size()));  // these pieces are lost again
        first.keep();
      }
      while (stop > 0 && !pieces[stop - 1].empty()) --stop;
      CorpusWriter::Options onwards = options;
      onwards.resume = &state;
      CorpusWriter second(folder / name, ByteTokenizer(), onwards);
      EXPECT_TRUE(second.resumed());
      write_pieces(second, pieces, stop, pieces.size());
      const auto found = second.duplicates();
      second.finish();
      return found;
    };
    const auto expected = finish("whole", 0);
    EXPECT_EQ(expected > 0, duplicates != Duplicates::ignore);
    for (std::size_t stop = 1; stop <= pieces.size(); stop += 3) {
      EXPECT_EQ(finish("c", stop), expected);
      for (const char* suffix : {".bin", ".idx", ".json"})
        EXPECT_EQ(read_file(folder / (std::string("c") + suffix)), read_file(folder / (std::string("whole") + suffix))) << stop;
      EXPECT_EQ(names_in(folder.path()).size(), 6u);
    }
  }
}

TEST(CorpusWriter, BeginsAnewWhenItsPartsAreOthers) {
  const std::vector<std::string> pieces = pieces_for_resuming();
  for (const std::string damaged : {"c.bin.part", "c.idx.part", "c.seen.part"}) {
    for (const bool shorter : {false, true}) {
      const TemporaryFolder folder;
      WriterState state;
      {
        CorpusWriter first(folder / "c", ByteTokenizer(), {.duplicates = Duplicates::count});
        write_pieces(first, pieces, 0, pieces.size());
        state = first.flush();
        first.keep();
      }
      std::string bytes = read_file(folder / damaged);
      // Changes the last byte. In the checksums of the documents, replaces one checksum by another one of the file.
      if (shorter)
        bytes.pop_back();
      else if (damaged == "c.seen.part")
        bytes.replace(0, 16, bytes.substr(16, 16));
      else
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
      folder.write(damaged, bytes);
      CorpusWriter second(folder / "c", ByteTokenizer(), {.duplicates = Duplicates::count, .resume = &state});
      EXPECT_FALSE(second.resumed()) << damaged;
      EXPECT_EQ(second.tokens(), 0);
      second.append(ids_of("new"));
      EXPECT_EQ(second.end_document(), CorpusWriter::Ended::document);
      EXPECT_EQ(second.finish().tokens, 3);
      EXPECT_TRUE(Corpus(folder / "c").verify());
    }
  }
}

// A document is a duplicate if an earlier one has the same tokens, whatever pieces they came in.
TEST(CorpusWriter, FindsDuplicates) {
  const std::vector<std::vector<std::string>> documents = {{"ab"}, {"a", "b"}, {"abc"}, {"ab"}, {"c", "ab"}, {"abc"}};
  const std::vector<std::string> all = {"ab", "ab", "abc", "ab", "cab", "abc"}, unique = {"ab", "abc", "cab"};
  for (const Duplicates duplicates : {Duplicates::ignore, Duplicates::count, Duplicates::drop}) {
    const TemporaryFolder folder;
    CorpusWriter writer(folder / "c", LetterTokenizer(), {.duplicates = duplicates});
    for (const auto& document : documents) {
      for (const std::string& piece : document) writer.append(std::vector<std::int32_t>(piece.begin(), piece.end()));
      writer.end_document();
    }
    EXPECT_EQ(writer.duplicates(), duplicates == Duplicates::ignore ? 0 : 3);
    writer.finish();
    std::string tokens;
    for (const std::string& document : duplicates == Duplicates::drop ? unique : all) {
      for (const char c : document) put(tokens, static_cast<std::int16_t>(c));
      put(tokens, std::int16_t{0});
    }
    EXPECT_EQ(read_file(folder / "c.bin"), tokens);
    EXPECT_TRUE(Corpus(folder / "c").verify());
  }
}

TEST(CorpusWriter, RefusesTokensThatItsTokenizerCannotGive) {
  const TemporaryFolder folder;
  CorpusWriter writer(folder / "c", ByteTokenizer());
  for (const std::int32_t wrong : {256, -1, 65536}) EXPECT_THROW(writer.append(std::vector<std::int32_t>{65, wrong}), Error);
}

TEST(CorpusWriter, SaysWhereItCannotWrite) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { CorpusWriter(folder / "file/c", ByteTokenizer()); }),
                       "cannot create this folder"));
  EXPECT_TRUE(
      contains(error_of(ExitCode::config, [&] { CorpusWriter(folder / "sub/", ByteTokenizer()); }), "must end in a name"));
  EXPECT_NO_THROW(CorpusWriter(folder / "new/folders/c", ByteTokenizer()));
}

}  // namespace
}  // namespace octet::data

#include "octet/data/windows.h"

#include <memory>

#include "data/files.h"

namespace octet::data {
namespace {

struct WindowCase {
  std::vector<std::int32_t> tokens, targets, document_starts;
};

WindowCase read(const Windows& windows, std::int64_t w, std::int32_t base = 0) {
  WindowCase sample;
  sample.tokens.resize(static_cast<std::size_t>(windows.seq_len()));
  sample.targets.resize(static_cast<std::size_t>(windows.seq_len()));
  windows.read(w, 256, {sample.tokens, sample.targets}, sample.document_starts, base);
  return sample;
}

TEST(Windows, CutTheStream) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"abc", "defgh", "i", "jklm"});
  const Corpus corpus(folder / "c");  // 13 tokens
  const Windows windows(Stream(corpus), 4);
  ASSERT_EQ(windows.count(), 3);  // 3 * 4 inputs, and the last target
  EXPECT_EQ(read(windows, 0).tokens, ids_of("abcd"));
  EXPECT_EQ(read(windows, 0).targets, ids_of("bcde"));
  EXPECT_EQ(read(windows, 1).tokens, ids_of("efgh"));
  EXPECT_EQ(read(windows, 1).targets, ids_of("fghi"));
  EXPECT_EQ(read(windows, 2).tokens, ids_of("ijkl"));
  EXPECT_EQ(read(windows, 2).targets, ids_of("jklm"));
  using Starts = std::vector<std::int32_t>;
  EXPECT_EQ(read(windows, 0).document_starts, (Starts{0, 3}));
  EXPECT_EQ(read(windows, 1).document_starts, (Starts{0}));
  EXPECT_EQ(read(windows, 2).document_starts, (Starts{0, 1}));
  EXPECT_EQ(read(windows, 2, 100).document_starts, (Starts{100, 101}));
}

TEST(Windows, AllLengthsAgreeWithTheStream) {
  const TemporaryFolder folder;
  std::vector<std::string> documents;
  std::string stream;
  std::vector<bool> starts;
  for (int i = 0; i < 30; ++i) {
    const std::string document(static_cast<std::size_t>(1 + i * 13 % 17), static_cast<char>('A' + i));
    for (std::size_t c = 0; c < document.size(); ++c) starts.push_back(c == 0);
    stream += document;
    documents.push_back(document);
  }
  write_corpus(folder / "c", documents);
  const Corpus corpus(folder / "c");
  const auto total = static_cast<std::int64_t>(stream.size());
  for (std::int64_t length = 1; length < total; ++length) {
    const Windows windows(Stream(corpus), length);
    // The last whole window ends within the stream. Another one would not.
    EXPECT_LE(windows.count() * length + 1, total);
    EXPECT_GT((windows.count() + 1) * length + 1, total);
    for (std::int64_t w = 0; w < windows.count(); ++w) {
      const WindowCase sample = read(windows, w);
      const auto first = static_cast<std::size_t>(w * length);
      EXPECT_EQ(sample.tokens, ids_of(stream.substr(first, static_cast<std::size_t>(length))));
      EXPECT_EQ(sample.targets, ids_of(stream.substr(first + 1, static_cast<std::size_t>(length))));
      std::vector<std::int32_t> expected = {0};
      for (std::int32_t i = 1; i < length; ++i) {
        if (starts[first + static_cast<std::size_t>(i)]) expected.push_back(i);
      }
      EXPECT_EQ(sample.document_starts, expected);
    }
  }
}

TEST(Windows, AStreamLeavesDocumentsOut) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"abc", "defgh", "i", "jklm", "no"});
  const Corpus corpus(folder / "c");
  const std::vector<Stream::Documents> some = {{1, 2}, {2, 3}, {4, 5}};  // "defgh", "i", "no"
  const Windows windows(Stream(corpus, some), 3);
  ASSERT_EQ(windows.count(), 2);
  EXPECT_EQ(read(windows, 0).tokens, ids_of("def"));
  EXPECT_EQ(read(windows, 0).targets, ids_of("efg"));
  EXPECT_EQ(read(windows, 1).tokens, ids_of("ghi"));
  EXPECT_EQ(read(windows, 1).targets, ids_of("hin"));
  EXPECT_EQ(read(windows, 1, 7).document_starts, (std::vector<std::int32_t>{7, 9}));
  EXPECT_EQ(read(Windows(Stream(corpus, some), 7), 0).document_starts, (std::vector<std::int32_t>{0, 5, 6}));
}

TEST(Windows, TheLossMaskTakesTargetsAway) {
  const TemporaryFolder folder;
  {
    CorpusWriter writer(folder / "c", ByteTokenizer(), {.loss_mask = CorpusWriter::LossMask::written});
    for (const auto& [text, mask] : std::vector<std::pair<std::string, std::vector<std::uint8_t>>>{
             {"abc", {0, 1, 0}}, {"defgh", {1, 0, 1, 1, 0}}, {"ijkl", {0, 0, 0, 1}}}) {
      writer.append(ids_of(text), mask);
      writer.end_document();
    }
    writer.finish();
  }
  const auto targets = [](const std::string& text) {  // - stands for no target
    std::vector<std::int32_t> ids = ids_of(text);
    std::replace(ids.begin(), ids.end(), std::int32_t{'-'}, kNoTarget);
    return ids;
  };
  const Corpus corpus(folder / "c");
  const Windows windows(Stream(corpus), 5);
  EXPECT_EQ(read(windows, 0).tokens, ids_of("abcde"));
  EXPECT_EQ(read(windows, 0).targets, targets("b-d-f"));
  EXPECT_EQ(read(windows, 1).targets, targets("g----"));
  const std::vector<Stream::Documents> some = {{0, 1}, {2, 3}};  // "abc", "ijkl"
  EXPECT_EQ(read(Windows(Stream(corpus, some), 6), 0).targets, targets("b----l"));
  const Corpus whole(folder / "c", Corpus::Mask::ignored);
  EXPECT_EQ(read(Windows(Stream(whole), 5), 1).targets, ids_of("ghijk"));
}

TEST(Windows, EmptyDocumentsStartNothing) {
  const TemporaryFolder folder;
  folder.write("c.bin", "abcdef");
  folder.write("c.idx", HandMadeIndex(1, 1, {0, 2, 0, 0, 4, 0}, {0, 1, 2, 3, 4, 5}).bytes());
  const Corpus corpus(folder / "c");
  EXPECT_EQ(read(Windows(Stream(corpus), 5), 0).document_starts, (std::vector<std::int32_t>{0, 2}));
}

TEST(Windows, SaysWhenTheCorpusIsTooSmall) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"0123456789"});
  const Corpus corpus(folder / "c");
  EXPECT_EQ(Windows(Stream(corpus), 9).count(), 1);
  EXPECT_EQ(error_of(ExitCode::data, [&] { Windows(Stream(corpus), 10); }),
            (folder / "c.bin").string() + ": 10 tokens found, 11 needed for one sequence of seq_len 10 and its last target");
}

}  // namespace
}  // namespace octet::data

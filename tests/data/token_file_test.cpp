#include "octet/data/token_file.h"

#include "data/files.h"
#include "data/packed.h"
#include "octet/data/inspect.h"
#include "octet/data/prepare.h"

namespace octet::data {
namespace {

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t promised, const std::vector<std::int64_t>& tokens) {
  std::string bytes;
  for (const std::int32_t number : {magic, version, promised}) put(bytes, number);
  bytes.resize(256 * 4, '\0');
  for (const std::int64_t token : tokens) {
    if (version == 1) put(bytes, static_cast<std::uint16_t>(token));
    if (version == 7) put(bytes, static_cast<std::uint32_t>(token));
  }
  return bytes;
}

std::string gpt2_of(const std::vector<std::int64_t>& tokens) {
  return llmc(20240520, 1, static_cast<std::int32_t>(tokens.size()), tokens);
}

std::string raw16(const std::vector<std::int64_t>& tokens) {
  std::string bytes;
  for (const std::int64_t token : tokens) put(bytes, static_cast<std::uint16_t>(token));
  return bytes;
}

std::vector<std::vector<std::int32_t>> documents_of(const std::filesystem::path& prefix) {
  const Corpus corpus(prefix);
  EXPECT_TRUE(corpus.verify());
  std::vector<std::vector<std::int32_t>> documents;
  for (std::int64_t d = 0; d < corpus.documents(); ++d) {
    const std::int64_t first = corpus.document_start(d);
    documents.emplace_back(static_cast<std::size_t>(corpus.document_start(d + 1) - first));
    corpus.read(first, documents.back(), 1 << 20);
  }
  return documents;
}

using TokenLists = std::vector<std::vector<std::int32_t>>;

TEST(TokenFile, DocumentsOfLlmcBeginWithTheirToken) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.bin", gpt2_of({50256, 7, 8, 50256, 9, 50256, 50256, 1}));
  const auto b = folder.write("b.bin", gpt2_of({2, 3, 50256, 4}));  // begins with the rest of a document of a.bin
  const CorpusInfo info = prepare_tokens({.inputs = {a, b}, .format = InputFormat::llmc, .output = folder / "c"}).corpus;
  EXPECT_EQ(documents_of(folder / "c"), (TokenLists{{50256, 7, 8}, {50256, 9}, {50256}, {50256, 1}, {2, 3}, {50256, 4}}));
  EXPECT_EQ(info.vocab_size, 50257);
  EXPECT_EQ(info.type, TokenType::u16);
  EXPECT_EQ(info.tokenizer, "");
  EXPECT_TRUE(contains(to_text(inspect(folder / "c")), "unknown"));

  const auto large = folder.write("l.bin.gz", gzipped(llmc(20240801, 7, 5, {128000, 5, 127999, 128000, 6})));
  const CorpusInfo llama = prepare_tokens({.inputs = {large}, .format = InputFormat::llmc, .output = folder / "l"}).corpus;
  EXPECT_EQ(documents_of(folder / "l"), (TokenLists{{128000, 5, 127999}, {128000, 6}}));
  EXPECT_EQ(llama.vocab_size, 128001);
  EXPECT_EQ(llama.type, TokenType::i32);
}

TEST(TokenFile, DocumentsOfNanoGptEndWithTheirToken) {
  const TemporaryFolder folder;
  const auto file = folder.write("train.bin", raw16({7, 8, 50256, 50256, 65535, 9}));
  prepare_tokens({.inputs = {file}, .format = InputFormat::nanogpt, .output = folder / "c"});
  EXPECT_EQ(documents_of(folder / "c"), (TokenLists{{7, 8, 50256}, {50256}, {65535, 9}}));
}

// The file is larger than one task, and tasks end with documents. The tokenizer's own end-of-document token is not added.
TEST(TokenFile, ManyDocumentsStayAsTheyAre) {
  const TemporaryFolder folder;
  std::vector<std::int64_t> tokens;
  TokenLists expected;
  for (std::int32_t d = 0; d < 3000; ++d) {
    expected.emplace_back();
    for (std::int32_t t = 0; t < d % 701; ++t) expected.back().push_back((t * 31 + d) % 50000);
    expected.back().push_back(50256);
    tokens.insert(tokens.end(), expected.back().begin(), expected.back().end());
  }
  const auto file = folder.write("train.bin", raw16(tokens));
  for (const int workers : {1, 3}) {
    const PrepareOptions options{.inputs = {file}, .format = InputFormat::nanogpt, .output = folder / "c", .workers = workers};
    const PrepareSummary summary = prepare(options, LetterTokenizer(60000));
    EXPECT_TRUE(documents_of(folder / "c") == expected);
    EXPECT_EQ(summary.corpus.tokenizer, "letters");
    EXPECT_EQ(summary.corpus.vocab_size, 60000);
    EXPECT_EQ(summary.input_bytes, static_cast<std::int64_t>(tokens.size() * 2));
  }
}

TEST(TokenFile, LlmcIsKnownByItsHeader) {
  const TemporaryFolder folder;
  const auto format = [&](const std::vector<std::filesystem::path>& inputs) {
    return format_of_tokens({inputs, CorpusPaths(folder / "c")});
  };
  const auto small = folder.write("a/1.bin", gpt2_of({50256, 7}));
  const auto packed = folder.write("a/2.BIN.gz", gzipped(llmc(20240801, 7, 1, {128000})));
  const auto nanogpt = folder.write("b/3.bin", raw16({7, 50256}));
  const auto text = folder.write("b/4.txt", gpt2_of({50256, 7}));  // named as a text
  EXPECT_EQ(format({small}), InputFormat::llmc);
  EXPECT_EQ(format({packed, text}), InputFormat::llmc);
  EXPECT_EQ(format({folder / "a"}), InputFormat::llmc);
  for (const auto& other : {nanogpt, text, folder.write("b/5.bin", ""), std::filesystem::path("-")})
    EXPECT_EQ(format({other}), InputFormat::automatic) << other;
  EXPECT_EQ(format({folder / "b", folder / "a"}), InputFormat::automatic);  // such files are skipped in a folder
  EXPECT_TRUE(contains(error_of(ExitCode::config,
                                [&] {
                                  format({text, small});
                                }),
                       "a/1.bin: tokens of llm.c cannot be mixed with other inputs ("));
}

TEST(TokenFile, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& bytes, InputFormat format) {
    const auto file = folder.write("x.bin", bytes);
    return error_of(ExitCode::data, [&] { prepare_tokens({.inputs = {file}, .format = format, .output = folder / "c"}); });
  };
  EXPECT_TRUE(contains(refusal("short", InputFormat::llmc), "x.bin: truncated: 5 bytes"));
  EXPECT_TRUE(
      contains(refusal(llmc(20240520, 2, 0, {}), InputFormat::llmc), "x.bin: not tokens of llm.c: magic 20240520 version 2"));
  EXPECT_TRUE(
      contains(refusal(llmc(20240520, 1, 5, {1, 2}), InputFormat::llmc), "x.bin: its header promises 5 tokens, it holds 2"));
  EXPECT_TRUE(contains(refusal(llmc(20240520, 1, -5, {1, 2}), InputFormat::llmc), "promises -5 tokens"));
  EXPECT_TRUE(contains(refusal("odd", InputFormat::nanogpt), "3 bytes are not a whole number of tokens of 2 bytes"));
  EXPECT_TRUE(
      contains(refusal(llmc(20240801, 7, 2, {5, 0xFFFFFFFF}), InputFormat::llmc), "x.bin: token 4294967295 at position 1"));
  const auto file = folder.write("x.bin", raw16({5, 299, 300}));
  EXPECT_TRUE(contains(
      error_of(ExitCode::data,
               [&] { prepare({.inputs = {file}, .format = InputFormat::nanogpt, .output = folder / "c"}, LetterTokenizer()); }),
      "x.bin: token 300 at position 2 is outside the vocabulary of 300"));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x.bin"});
}

}  // namespace
}  // namespace octet::data

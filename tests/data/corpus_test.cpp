#include "octet/data/corpus.h"

#include "data/files.h"
#include "octet/telemetry/rank_page.h"

namespace octet::data {
namespace {

TEST(Corpus, ReadsWhatTheWriterWrote) {
  const TemporaryFolder folder;
  const CorpusInfo info = write_corpus(folder / "c", {"hello", "", "w\xC3\xB6rld!", "x"});
  EXPECT_EQ(info.documents, 3);  // the empty document is left out
  const Corpus corpus(folder / "c");
  EXPECT_EQ(corpus.documents(), 3);
  EXPECT_EQ(corpus.tokens(), 13);
  EXPECT_EQ(corpus.bin_bytes(), 26);
  EXPECT_EQ(text_of(corpus, 0), "hello");
  EXPECT_EQ(text_of(corpus, 1), "w\xC3\xB6rld!");
  EXPECT_EQ(text_of(corpus, 2), "x");
  ASSERT_TRUE(corpus.info());
  EXPECT_EQ(to_json(*corpus.info()), to_json(info));
  EXPECT_EQ(corpus.info()->tokenizer, "byte");
  EXPECT_TRUE(corpus.verify());
  EXPECT_EQ(Corpus(folder / "c.idx").tokens(), 13);  // a suffix is allowed
  EXPECT_EQ(Corpus(folder / "c.bin").tokens(), 13);
}

TEST(Corpus, OpensMegatronsWithoutDescription) {
  const TemporaryFolder folder;
  std::string tokens;
  for (const std::int32_t token : {5, 6, 70000, 8}) put(tokens, token);
  folder.write("m.bin", tokens);
  folder.write("m.idx", HandMadeIndex(4, 4, {1, 3}, {0, 1}).bytes());
  const Corpus corpus(folder / "m");
  EXPECT_FALSE(corpus.info());
  EXPECT_FALSE(corpus.verify());
  std::vector<std::int32_t> ids(4);
  corpus.read(0, ids, 70001);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{5, 6, 70000, 8}));
  EXPECT_EQ(error_of(ExitCode::data, [&] { corpus.read(0, ids, 70000); }),
            (folder / "m.bin").string() +
                ": token 70000 at position 2 (document 1) is outside the vocabulary of 70000; "
                "prepare the corpus with the model's tokenizer and without tokens that the model lacks, or give "
                "--model.vocab_size=70001 if the model's weights start at random");
}

template <class T>
void expect_values(std::uint8_t code, const std::vector<T>& good, const std::vector<T>& wrong) {
  const TemporaryFolder folder;
  std::string bytes;
  for (const T value : good) put(bytes, value);
  for (const T value : wrong) put(bytes, value);
  folder.write("t.bin", bytes);
  const auto count = static_cast<std::int32_t>(good.size() + wrong.size());
  folder.write("t.idx", HandMadeIndex(code, sizeof(T), {count}, {0}).bytes());
  const Corpus corpus(folder / "t");
  std::vector<std::int32_t> ids(good.size());
  corpus.read(0, ids, 100000);
  for (std::size_t i = 0; i < good.size(); ++i) EXPECT_EQ(ids[i], static_cast<std::int32_t>(good[i]));
  ids.resize(1);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const std::string message =
        error_of(ExitCode::data, [&] { corpus.read(static_cast<std::int64_t>(good.size() + i), ids, 100000); });
    EXPECT_TRUE(contains(message, concat("token ", std::int64_t{wrong[i]}, " at position ", good.size() + i)));
  }
}

TEST(Corpus, ReadsEveryTokenType) {
  expect_values<std::uint8_t>(1, {0, 1, 255}, {});
  expect_values<std::int8_t>(2, {0, 1, 127}, {-1, -128});
  expect_values<std::int16_t>(3, {0, 1, 32767}, {-1, -32768});
  expect_values<std::int32_t>(4, {0, 1, 99999}, {-1, 100000, INT32_MIN, INT32_MAX});
  expect_values<std::int64_t>(5, {0, 1, 99999},
                              {-1, 100000, std::int64_t{1} << 32, (std::int64_t{1} << 32) + 5, INT64_MIN, INT64_MAX});
  expect_values<std::uint16_t>(8, {0, 1, 65535}, {});
}

TEST(Corpus, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "none"); }), "none: no corpus here"));
  write_corpus(folder / "c", {"text"});
  std::filesystem::remove(folder / "c.bin");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c"); }), "c.bin: "));
  write_corpus(folder / "d", {"text"});
  std::filesystem::remove(folder / "d.idx");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "d"); }), "d.idx: "));
}

TEST(Corpus, NoticesATruncatedBin) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"some text"});
  std::filesystem::resize_file(folder / "c.bin", 17);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c"); }), "c.bin has 17"));
}

TEST(Corpus, NoticesDamageAndForeignDescriptions) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"some text"});
  std::string bytes = read_file(folder / "c.bin");
  bytes[4] ^= 1;
  folder.write("c.bin", bytes);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c").verify(); }), "c.bin: damaged"));

  write_corpus(folder / "d", {"some text", "more"});
  folder.write("c.json", read_file(folder / "d.json"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c"); }), "c.json: says 2 documents"));
}

TEST(CorpusInfo, RefusesBrokenDescriptions) {
  const TemporaryFolder folder;
  const std::string good = to_json(write_corpus(folder / "c", {"some text"}));
  EXPECT_EQ(to_json(parse_corpus_info(good, "c.json")), good);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& wrong :
       {std::string(), std::string("{}"), std::string("[1]"), good.substr(0, good.size() / 2), with("octet corpus", "other"),
        with("\"version\": 1", "\"version\": 2"), with("\"tokens\": 9", "\"tokens\": -9"),
        with("\"tokens\": 9", "\"tokens\": \"9\""), with("\"tokens\": 9", "\"tokens\": 18446744073709551615"),
        with("\"tokens\": 9", "\"tokens\": 9.5"), with("uint16", "uint17"), with("uint16", "uint16\\u0000"),
        with("\"vocab_size\": 256", "\"vocab_size\": 0"), with("\"end_of_document\": null", "\"end_of_document\": 256"),
        with("\"documents\"", "\"dokuments\"")}) {
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { parse_corpus_info(wrong, "c.json"); }), "c.json: ")) << wrong;
  }
}

// The checksums find damage that leaves the file's size and time as they were. Once they have been compared, the files are not
// read again.
TEST(Corpus, VerifiesOnce) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"some text", "more"});
  const auto damage = [&] {
    const auto time = fs::last_write_time(folder / "c.bin");
    std::string bytes = read_file(folder / "c.bin");
    bytes[2] = static_cast<char>(bytes[2] ^ 1);
    folder.write("c.bin", bytes);
    fs::last_write_time(folder / "c.bin", time);
  };
  damage();
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c").verify_once(); }), "c.bin: damaged"));
  EXPECT_FALSE(fs::exists(folder / "c.checked"));
  damage();  // repairs the file
  const std::int64_t marks = telemetry::own_page().marks;
  EXPECT_TRUE(Corpus(folder / "c").verify_once());
  EXPECT_GE(telemetry::own_page().marks, marks + 2) << "a supervisor sees that reading goes on";
  EXPECT_TRUE(fs::exists(folder / "c.checked"));
  damage();
  EXPECT_TRUE(Corpus(folder / "c").verify_once());  // the files were not read
  // After a change of the file's time, its checksum is compared again.
  fs::last_write_time(folder / "c.bin", fs::last_write_time(folder / "c.bin") + std::chrono::seconds(1));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Corpus(folder / "c").verify_once(); }), "c.bin: damaged"));
  fs::remove(folder / "c.json");
  EXPECT_FALSE(Corpus(folder / "c").verify_once());
}

}  // namespace
}  // namespace octet::data

#include "octet/data/inspect.h"

#include "data/files.h"
#include "octet/base/json.h"

namespace octet::data {
namespace {

TEST(Inspect, CountsAndSamples) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"a", "bc", "def", "ghijkl", "\x1b[31mcontrol\n", std::string(1000, 'z')});
  const CorpusReport report = inspect(folder / "c", {.samples = 2, .sample_tokens = 4});
  EXPECT_EQ(report.documents, 6);
  EXPECT_EQ(report.tokens, 1 + 2 + 3 + 6 + 13 + 1000);
  EXPECT_EQ(report.largest_token, 'z');
  EXPECT_EQ(report.shortest, 1);
  EXPECT_EQ(report.longest, 1000);
  EXPECT_EQ(report.median, 2);
  // The buckets hold the lengths 1 | 2, 3 | 6 | 13 | (none from 16 to 511) | 1000.
  ASSERT_EQ(report.histogram.size(), 10u);
  std::int64_t documents = 0, tokens = 0, edge = 1;
  for (const LengthBucket& bucket : report.histogram) {
    EXPECT_EQ(bucket.from, edge);
    EXPECT_EQ(bucket.to, edge * 2);
    edge *= 2;
    documents += bucket.documents;
    tokens += bucket.tokens;
  }
  EXPECT_EQ(documents, 6);
  EXPECT_EQ(tokens, report.tokens);
  EXPECT_EQ(report.histogram[1].documents, 2);
  EXPECT_EQ(report.histogram[1].tokens, 5);
  EXPECT_EQ(report.histogram[9].documents, 1);
  ASSERT_EQ(report.samples.size(), 2u);
  EXPECT_EQ(report.samples[0].document, 0);
  EXPECT_EQ(report.samples[1].document, 3);
  EXPECT_EQ(report.samples[1].tokens, 6);
  EXPECT_EQ(report.samples[1].text, "ghij");

  const std::string text = to_text(inspect(folder / "c", {.samples = 6}));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_TRUE(contains(text, "\\x1b[31mcontrol\\n"));
  EXPECT_TRUE(contains(text, "1,025 (uint16, "));
  EXPECT_TRUE(contains(text, "1 to 1,000 tokens, median 2 to 3\n"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["tokens"], 1025);
  EXPECT_EQ(json["tokenizer"], "byte");
  EXPECT_EQ(json["samples"][1]["text"], "ghij");
  EXPECT_EQ(json["histogram"].size(), 10u);
}

// 1000 tokens take 999 places, in parts of 400, 400 and 199; 6 and 13 tokens take 5 and 12.
TEST(Inspect, SaysHowFullPackedSequencesAre) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"a", "ghijkl", "\x1b[31mcontrol\n", std::string(1000, 'z')});
  const CorpusReport report = inspect(folder / "c", {.pack_seq_len = 400});
  ASSERT_TRUE(report.packing);
  EXPECT_EQ(report.packing->sequences, 3);
  EXPECT_EQ(report.packing->split_documents, 1);
  EXPECT_DOUBLE_EQ(report.packing->fill, 1016.0 / 1200);
  EXPECT_TRUE(contains(to_text(report),
                       "packed        3 sequences of 400 tokens, 84.7% full; documents longer than that, which are split: 1"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["packing"]["sequences"], 3);
  EXPECT_FALSE(inspect(folder / "c").packing);
}

TEST(Inspect, TokensThatAreTrainedOn) {
  const TemporaryFolder folder;
  {
    CorpusWriter writer(folder / "c", ByteTokenizer(), {.loss_mask = CorpusWriter::LossMask::written});
    for (const auto& [text, mask] :
         std::vector<std::pair<std::string, std::vector<std::uint8_t>>>{{"a\nb\x1b", {0, 1, 1, 0}}, {"cd", {1, 1}}}) {
      writer.append(ids_of(text), mask);
      writer.end_document();
    }
    writer.finish(
        "", ChatInfo{.form = "zephyr", .train_on = "last", .cut_tokens = 5, .no_answer = 6, .answer_cut = 7, .duplicates = 8});
  }
  const CorpusReport report = inspect(folder / "c", {.show = InspectOptions::Show::tokens});
  EXPECT_EQ(report.trained_tokens, 4);
  const std::string text = to_text(report);
  EXPECT_TRUE(contains(text, "  trained on    4 tokens (66.7%), 2 are masked\n"));
  EXPECT_TRUE(contains(text, "  conversations template zephyr, trained on: last\n  cut           5 tokens\n"));
  EXPECT_TRUE(contains(text, "  left out      6 without an answer to train on, 7 whose answers were cut off, 8 duplicates\n"));
  EXPECT_TRUE(contains(text, "\n    a⟦\n    b⟧\\x1b\n"));
  EXPECT_TRUE(contains(text, "\n    ⟦cd⟧\n"));
  EXPECT_TRUE(contains(to_text(report, Marks::colour), "a\x1b[32m\n    b\x1b[0m\\x1b\n"));
  EXPECT_FALSE(contains(to_text(inspect(folder / "c")), "⟦"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["trained_tokens"], 4);
  EXPECT_EQ(json["chat"]["no_answer"], 6);
  EXPECT_EQ(json["samples"][0]["stretches"][1], (nlohmann::json{{"trained", true}, {"text", "\nb"}}));

  write_corpus(folder / "all", {"ef"});
  EXPECT_TRUE(contains(to_text(inspect(folder / "all", {.show = InspectOptions::Show::tokens})), "\n    ⟦ef⟧\n"));
}

TEST(Inspect, CutCharactersAndUnknownTokenizers) {
  const TemporaryFolder folder;
  write_corpus(folder / "c", {"\xE2\x82\xAC"});
  EXPECT_NO_THROW(nlohmann::json::parse(to_json(inspect(folder / "c", {.samples = 1, .sample_tokens = 2}))));
  std::filesystem::remove(folder / "c.json");
  const CorpusReport report = inspect(folder / "c");
  EXPECT_FALSE(report.samples.at(0).text);
  EXPECT_TRUE(contains(to_text(report), "226 130 172"));
  EXPECT_TRUE(contains(to_text(report), "unknown"));
  EXPECT_TRUE(nlohmann::json::parse(to_json(report))["tokenizer"].is_null());
}

TEST(Inspect, AnEmptyCorpusAndDamage) {
  const TemporaryFolder folder;
  folder.write("e.bin", "");
  folder.write("e.idx", HandMadeIndex(8, 2, {}, {}).bytes());
  EXPECT_TRUE(contains(to_text(inspect(folder / "e")), "documents"));
  folder.write("z.bin", "");
  folder.write("z.idx", HandMadeIndex(8, 2, {0, 0}, {0, 1}).bytes());
  const CorpusReport empty_documents = inspect(folder / "z");
  ASSERT_EQ(empty_documents.histogram.size(), 1u);
  EXPECT_EQ(empty_documents.histogram[0].documents, 2);
  EXPECT_TRUE(contains(to_text(empty_documents), "0 to 0"));

  write_corpus(folder / "c", {"text"});
  std::string bytes = read_file(folder / "c.bin");
  bytes[1] = 1;
  folder.write("c.bin", bytes);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { inspect(folder / "c"); }), "c.bin: damaged"));
}

}  // namespace
}  // namespace octet::data

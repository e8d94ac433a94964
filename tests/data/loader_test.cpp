#include "octet/data/loader.h"

#include <chrono>
#include <memory>

#include "data/files.h"

namespace octet::data {
namespace {

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    std::vector<std::string> documents;
    for (int i = 0; i < 300; ++i) documents.push_back("document " + std::to_string(i * i) + " of the loader's corpus. ");
    write_corpus(folder_ / "a", documents);
    dataset_ = make(256);
  }
  std::unique_ptr<Dataset> make(std::int64_t vocab_size) const {
    return std::make_unique<Dataset>(DatasetOptions{
        .sources = {{folder_ / "a", 1.0}}, .seq_len = 16, .seed = 3, .split = {0.9, 0.1}, .vocab_size = vocab_size});
  }
  // Reads the expected batch directly from the dataset.
  void expect_batch(const Batch& batch, std::int64_t first_sample, std::int64_t rows) const {
    EXPECT_EQ(batch.first_sample, first_sample);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(16 * rows)), targets(tokens.size()), starts;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto base = static_cast<std::size_t>(16 * i);
      dataset_->train_sample(first_sample + i, {std::span(tokens).subspan(base, 16), std::span(targets).subspan(base, 16)},
                             starts, static_cast<std::int32_t>(base));
    }
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), batch.tokens.begin(), batch.tokens.end()));
    EXPECT_TRUE(std::equal(targets.begin(), targets.end(), batch.targets.begin(), batch.targets.end()));
    EXPECT_TRUE(std::equal(starts.begin(), starts.end(), batch.document_starts.begin(), batch.document_starts.end()));
  }

  TemporaryFolder folder_;
  std::unique_ptr<Dataset> dataset_;
};

TEST_F(LoaderTest, FollowsTheDataset) {
  Loader loader(*dataset_, {.micro_batch_size = 3, .position = 5, .ahead = 2});
  EXPECT_EQ(loader.position(), 5);
  for (std::int64_t i = 0; i < 500; ++i) expect_batch(loader.next(), 5 + 3 * i, 3);
  EXPECT_EQ(loader.position(), 5 + 1500);
}

TEST_F(LoaderTest, TheOrderDoesNotDependOnTheRanks) {
  constexpr std::int64_t kGlobal = 12;
  for (const std::int64_t ranks : {1, 2, 3, 6}) {
    for (const std::int64_t rows : {1, 2}) {
      std::vector<std::int64_t> samples;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        Loader loader(*dataset_, {.coordinate = rank, .coordinates = ranks, .micro_batch_size = rows});
        for (std::int64_t micro = 0; micro < kGlobal / (ranks * rows); ++micro) {
          const Batch batch = loader.next();
          expect_batch(batch, micro * ranks * rows + rank * rows, rows);
          for (std::int64_t i = 0; i < rows; ++i) samples.push_back(batch.first_sample + i);
        }
        EXPECT_EQ(loader.position(), kGlobal);
      }
      std::sort(samples.begin(), samples.end());
      for (std::int64_t i = 0; i < kGlobal; ++i) EXPECT_EQ(samples.at(static_cast<std::size_t>(i)), i);
    }
  }
}

TEST_F(LoaderTest, SeeksAnywhere) {
  Loader loader(*dataset_, {.micro_batch_size = 2});
  std::int64_t position = 0;
  for (int i = 0; i < 300; ++i) {
    if (i % 3 == 1) {
      position = (i * 7919) % 5000;
      loader.seek(position);
      EXPECT_EQ(loader.position(), position);
      if (i % 2 == 0) loader.seek(position);
    }
    expect_batch(loader.next(), position, 2);
    position += 2;
  }
}

TEST_F(LoaderTest, StartsAndStopsAtAnyMoment) {
  for (int i = 0; i < 50; ++i) {
    Loader loader(*dataset_, {.micro_batch_size = 4, .ahead = 1 + i % 4});
    for (int n = 0; n < i % 5; ++n) loader.next();
    if (i % 3 == 0) loader.seek(i);
  }
}

TEST_F(LoaderTest, AllocatesOnlyOnce) {
  Loader loader(*dataset_, {.micro_batch_size = 2, .ahead = 2});
  std::vector<const std::int32_t*> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(loader.next().tokens.data());
  for (int i = 0; i < 30; ++i) EXPECT_EQ(loader.next().tokens.data(), buffers[static_cast<std::size_t>(i % 3)]);
}

TEST_F(LoaderTest, ErrorsComeAtTheirPlaceAndSeekGoesPastThem) {
  // The vocabulary contains the digits up to '8', but not '9'. The dataset decides in which order they come.
  write_corpus(folder_ / "a", {[] {
                 std::string text;
                 for (int i = 0; i < 16 * 200 + 1; ++i) text.push_back(i == 16 * 77 + 5 ? '9' : '8');
                 return text;
               }()});
  std::filesystem::remove(folder_ / "a.json");  // which says that there is a '9'
  dataset_ = make('9');
  std::int64_t wrong = 0;
  std::vector<std::int32_t> row(16), targets(16), starts;
  for (;; ++wrong) {
    try {
      dataset_->train_sample(wrong, {row, targets}, starts);
    } catch (const Error&) {
      break;
    }
  }
  ASSERT_LT(wrong, 180);
  Loader loader(*dataset_, {.ahead = 3});
  for (std::int64_t i = 0; i < wrong; ++i) expect_batch(loader.next(), i, 1);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { loader.next(); }), "token 57 at position 1237"));
  EXPECT_EQ(loader.position(), wrong);
  loader.seek(wrong + 1);
  expect_batch(loader.next(), wrong + 1, 1);
}

TEST_F(LoaderTest, MeasuresWaiting) {
  Loader loader(*dataset_, {});
  loader.next();
  EXPECT_GE(loader.take_wait_s(), 0.0);
  // By then four batches are ready, so the next one can be had without waiting.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  loader.next();
  EXPECT_EQ(loader.take_wait_s(), 0.0);
}

TEST_F(LoaderTest, RefusesASplitWithoutTraining) {
  const Dataset none({.sources = {{folder_ / "a", 1.0}}, .seq_len = 16, .seed = 3, .split = {0, 1}, .vocab_size = 256});
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { Loader(none, {}); }), "leaves nothing to train on"));
  const Dataset validation({.sources = {{folder_ / "a", 1.0, Use::validation}}, .seq_len = 16, .seed = 3, .vocab_size = 256});
  EXPECT_EQ(error_of(ExitCode::config, [&] { Loader(validation, {}); }),
            "data.source: all sources have split = \"validation\", which leaves nothing to train on");
}

}  // namespace
}  // namespace octet::data

// Runs on corpora with a loss mask.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "octet/base/file.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/tokenizer/byte.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

constexpr std::int64_t kTargets = 4 * 32;  // of the one batch that the corpus holds

// Writes a corpus of four documents, which hold kTargets + 1 tokens together.
void write_masked(const std::filesystem::path& prefix, const std::vector<std::uint8_t>& mask) {
  std::string text = tiny_documents(1, 60).front();
  ASSERT_GT(text.size(), mask.size());
  text.resize(mask.size());
  std::vector<std::int32_t> ids;
  data::ByteTokenizer().encode(text, ids);
  data::CorpusWriter writer(prefix, data::ByteTokenizer(), {.loss_mask = data::CorpusWriter::LossMask::written});
  std::size_t begin = 0;
  for (const std::size_t end : {std::size_t{20}, std::size_t{51}, std::size_t{100}, mask.size()}) {
    writer.append(std::span(ids).subspan(begin, end - begin), std::span(mask).subspan(begin, end - begin));
    writer.end_document();
    begin = end;
  }
  writer.finish();
}

class LossMask : public ::testing::Test {
 protected:
  // The loss of the first step, whose batch is the whole corpus.
  double first_loss(const std::string& options) const {
    const ProgramResult result = run_.train(
        "--resume none --data.split=[1.0,0.0] --run.set_aside=true --precision.recipe=fp32 --training.steps=1 " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    return metrics_of(run_ / "out").at(1).at("loss").get<double>();
  }
  TinyRun run_;
};

// Two masks share out the tokens among them. The mean over a step is one of all its tokens that are trained on, whatever
// micro-batches they are in, so the two means add up to the mean of all tokens, weighted by their numbers.
TEST_F(LossMask, TheMeanIsOverTheTrainedTokensOfTheWholeStep) {
  std::mt19937 random(1);
  std::array<std::vector<std::uint8_t>, 2> masks;
  for (std::int64_t t = 0; t <= kTargets; ++t) {
    const bool first = random() % 100 < (t < 40 ? 90u : 20u);  // the micro-batches differ in their number of trained tokens
    masks[0].push_back(first ? 1 : 0);
    masks[1].push_back(first ? 0 : 1);
  }
  write_masked(run_ / "corpus", masks[0]);
  write_masked(run_ / "other", masks[1]);
  for (const std::string& batch : {std::string("--training.micro_batch_size=1"), std::string("--training.micro_batch_size=4")}) {
    const double all = first_loss(batch + " --training.mask=false") * kTargets;
    double sum = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto count = std::count(masks[i].begin() + 1, masks[i].end(), 1);  // the first token is nobody's target
      const double loss = first_loss(batch + (i == 0 ? "" : " --data.source.0.path=other"));
      EXPECT_GT(std::abs(loss - all / kTargets), 1e-4);
      sum += loss * static_cast<double>(count);
    }
    EXPECT_NEAR(sum, all, 1e-5 * all) << batch;
  }
}

TEST_F(LossMask, AMaskOfOnesChangesNoBit) {
  write_masked(run_ / "corpus", std::vector<std::uint8_t>(kTargets + 1, 1));
  const std::string options = "--resume none --data.split=[1.0,0.0] --precision.recipe=fp32 --training.steps=2 ";
  ASSERT_EQ(run_.train(options + "--run.output_dir=with").code, 0);
  ASSERT_EQ(run_.train(options + "--run.output_dir=without --training.mask=false").code, 0);
  EXPECT_EQ(read_file(run_ / "with/model/model.safetensors"), read_file(run_ / "without/model/model.safetensors"));
}

TEST_F(LossMask, HeldOutTextWithoutATrainedTokenIsRefused) {
  write_masked(run_ / "corpus", std::vector<std::uint8_t>(kTargets + 1, 1));
  write_masked(run_ / "masked", std::vector<std::uint8_t>(kTargets + 1, 0));
  write_file_atomically(run_ / "held_out.toml",
                        read_file(run_ / "run.toml") + "[[evaluation.source]]\nname = \"m\"\npath = \"masked\"\n");
  const ProgramResult result = run_.run("train held_out.toml --data.split=[1.0,0.0] --training.steps=1");
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_NE(result.err.find("held-out sequences has a token that is trained on"), std::string::npos) << result.err;
}

// A prompt may fill whole batches. Their steps change nothing, and they are no reason to end the run or to roll it back, however
// many come in a row.
TEST_F(LossMask, StepsWithoutATrainedTokenAreSkipped) {
  std::vector<std::uint8_t> mask(kTargets + 1, 0);
  mask.back() = 1;
  write_masked(run_ / "corpus", mask);
  const ProgramResult result = run_.train(
      "--data.split=[1.0,0.0] --precision.recipe=fp32 --training.seq_len=8 --training.micro_batch_size=1 "
      "--training.global_batch_size=1 --training.steps=40 --training.epochs=0");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("no token of its batch is trained on; skipped"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("not finite"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" of 40 steps had no token to train on and were skipped. `octet data inspect"), std::string::npos)
      << result.err;
}

// Batches without a trained token have no gradients, so the scales come from the first batch that has one.
TEST_F(LossMask, ScalesComeFromTheFirstBatchThatIsTrainedOn) {
  std::vector<std::uint8_t> mask(kTargets + 1, 0);
  mask.back() = 1;
  write_masked(run_ / "corpus", mask);
  const ProgramResult result = run_.train(
      "--data.split=[1.0,0.0] --precision.recipe=fp8_delayed --training.seq_len=8 --training.micro_batch_size=1 "
      "--training.global_batch_size=1 --training.steps=1");
  EXPECT_NE(result.err.find("step 1: no token of its batch is trained on; skipped"), std::string::npos) << result.err;
  std::size_t scales = 0;
  for (const auto& [name, bytes] : tensors_of(last_checkpoint(run_ / "out") / "rank-00000.safetensors")) {
    if (!name.ends_with(".g.scale")) continue;
    float scale = 0;
    std::memcpy(&scale, bytes.data(), sizeof scale);
    EXPECT_GT(scale, 1.0f) << name;
    ++scales;
  }
  EXPECT_EQ(scales, 8u);
}

// A run that never trains has no model to give.
TEST_F(LossMask, ARunThatTrainsNothingFails) {
  write_masked(run_ / "corpus", std::vector<std::uint8_t>(kTargets + 1, 0));
  const ProgramResult result = run_.train("--data.split=[1.0,0.0] --training.steps=4");
  EXPECT_EQ(result.code, 76) << result.err;
  EXPECT_NE(
      result.err.find("all 4 steps had no token to train on and were skipped, so no model is exported; out/checkpoints holds "
                      "the weights that the run began with. "),
      std::string::npos)
      << result.err;
  EXPECT_EQ(result.out.find("-nan") + result.err.find("-nan"), 2 * std::string::npos) << result.out;
  EXPECT_FALSE(std::filesystem::exists(run_ / "out/model"));
}

// A run goes on with the mask that it began with.
TEST_F(LossMask, AnotherMaskIsAnotherCorpus) {
  std::vector<std::uint8_t> mask(kTargets + 1, 1);
  mask[7] = 0;
  write_masked(run_ / "corpus", mask);
  first_loss("");
  mask[8] = 0;
  write_masked(run_ / "corpus", mask);
  const std::string options = "--data.split=[1.0,0.0] --precision.recipe=fp32 --training.steps=2";
  const ProgramResult other = run_.train(options);
  EXPECT_EQ(other.code, 76) << other.err;
  EXPECT_NE(other.err.find("loss mask "), std::string::npos) << other.err;
  mask[8] = 1;
  write_masked(run_ / "corpus", mask);
  EXPECT_TRUE(refused(run_.train(options + " --training.mask=false"), 76, "training.mask says whether loss masks are used"));
  EXPECT_EQ(run_.train(options).code, 0);
}

}  // namespace
}  // namespace octet::testing

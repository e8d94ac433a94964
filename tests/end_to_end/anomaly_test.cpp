// What a run does and prints when losses are not finite or jump.
#include <cmath>
#include <limits>

#include "octet/base/rng.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/steps.h"
#include "octet/tensor/host_tensor.h"
#include "support/faults.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.find(part) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// Sets one element of a tensor in a BF16 model directory to NaN.
void spoil(const fs::path& model, const std::string& name, std::size_t element = 0) {
  const fs::path path = model / "model.safetensors";
  std::vector<HostTensor> owned;
  std::vector<checkpoint::NamedTensor> tensors;
  {
    const checkpoint::SafetensorsFile file = checkpoint::SafetensorsFile::open(path);
    for (const checkpoint::TensorInfo& info : file.tensors()) {
      const Tensor tensor = file.get(info);
      HostTensor copy(tensor.dtype, tensor.shape);
      std::memcpy(copy.data(), tensor.data, tensor.bytes());
      if (info.name == name) copy.view().as<BFloat16>()[element] = BFloat16(std::numeric_limits<float>::quiet_NaN());
      tensors.push_back({info.name, copy.view()});
      owned.push_back(std::move(copy));
    }
  }
  checkpoint::write_safetensors(path, tensors);
}

TEST(NotFinite, StepsAreSkippedThenRolledBackThenGivenUp) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2 --checkpoint.interval=0").code, 0);
  spoil(run / "out/model", "model.norm.weight");
  const ProgramResult result = run.train(
      "--model.init_from=out/model --run.output_dir=bad --training.steps=100 --checkpoint.interval=4 --anomaly.max_rollbacks=2");
  EXPECT_EQ(result.code, 77);
  // Nine steps are skipped, and the tenth causes a rollback. This happens three times, and the third time the run gives up.
  EXPECT_EQ(lines_with(result.err, "loss or gradient not finite; skipped").size(), 27u) << result.err;
  const auto back = lines_with(result.err, "; back to step ");
  ASSERT_EQ(back.size(), 2u) << result.err;
  EXPECT_EQ(back[0],
            "warning: step 10: 10 steps in a row had a loss or gradient that is not finite; back to step 8, past the batches up "
            "to sample 40 (rollback 1 of 2)");
  const auto error = lines_with(result.err, "octet: ");
  ASSERT_EQ(error.size(), 1u) << result.err;
  EXPECT_NE(error[0].find("10 steps in a row had a loss or gradient that is not finite, and all 2 rollbacks of "
                          "anomaly.max_rollbacks are used up"),
            std::string::npos)
      << error[0];
  EXPECT_EQ(result.err.substr(result.err.size() - error[0].size() - 1), error[0] + "\n") << "the last line";
  EXPECT_FALSE(fs::exists(run / "bad/model"));

  // Skipped steps changed no weight, moment, scale or history, so the checkpoints are equal.
  const auto checkpoints = checkpoint::find_checkpoints(run / "bad/checkpoints");
  ASSERT_GE(checkpoints.size(), 2u);
  const auto one = tensors_of(checkpoints[0].path / "rank-00000.safetensors");
  const auto other = tensors_of(checkpoints[1].path / "rank-00000.safetensors");
  EXPECT_EQ(one, other);
  for (const auto& [name, bytes] : one) {
    const bool never_moved = name.find("moment") != std::string::npos || name == "optimizer.updates";
    EXPECT_TRUE(!never_moved || bytes == std::string(bytes.size(), '\0')) << name;
  }
  for (const auto& [step, line] : metrics_of(run / "bad")) EXPECT_TRUE(line["loss"].is_null()) << step;
}

TEST(NotFinite, WithoutACheckpointNothingIsUndone) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2 --checkpoint.interval=0").code, 0);
  spoil(run / "out/model", "model.norm.weight");
  const ProgramResult result =
      run.train("--model.init_from=out/model --run.output_dir=bad --training.steps=11 --checkpoint.interval=0");
  EXPECT_EQ(lines_with(result.err,
                       "warning: step 10: 10 steps in a row had a loss or gradient that is not finite; nothing to go "
                       "back to: no checkpoint yet. Training continues (counts as rollback 1 of 3)")
                .size(),
            1u)
      << result.err;
}

// The run is too short for a rollback and makes no update. A script must not mistake its result for a trained model.
TEST(NotFinite, ARunThatSkippedAllStepsHasFailed) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2 --checkpoint.interval=0").code, 0);
  spoil(run / "out/model", "model.norm.weight");
  const std::string options = "--model.init_from=out/model --run.output_dir=bad --training.steps=6 --checkpoint.interval=0 ";
  const ProgramResult result = run.train(options);
  EXPECT_EQ(result.code, 77) << result.err;
  for (const auto& [step, line] : metrics_of(run / "bad")) EXPECT_EQ(line["skipped_steps"], step);
  EXPECT_NE(result.out.find("step 6/6  loss nan"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("skipped 6"), std::string::npos) << result.out;
  const std::string sentence =
      "octet: all 6 steps had a loss or gradient that is not finite and were skipped, so no model is exported; bad/checkpoints "
      "holds the weights that the run began with. Look for numbers that are not finite in the weights or the settings that it "
      "began with";
  EXPECT_EQ(lines_with(result.err, "octet: "), std::vector{sentence}) << result.err;
  EXPECT_FALSE(fs::exists(run / "bad/model"));
  EXPECT_EQ(last_checkpoint(run / "bad").filename(), checkpoint::step_name(6));
  // Running the same command again does not make it a success. More steps that are skipped do not either.
  EXPECT_EQ(run.train(options).code, 77);
  EXPECT_EQ(lines_with(run.train(options + "--training.steps=8").err, "octet: all 8 steps had ").size(), 1u);
  const ProgramResult ranks =
      run.run("launch -n 2 -- train run.toml --training.micro_batch_size=1 " + options + "--resume none --run.set_aside=true");
  EXPECT_EQ(ranks.code, 77) << ranks.err;
  EXPECT_EQ(lines_with(ranks.err, sentence).size(), 1u) << ranks.err;

  // The run does not present the model of an earlier run as its own.
  ASSERT_EQ(run.train("--run.output_dir=again --training.steps=2").code, 0);
  const ProgramResult again = run.train(
      "--model.init_from=out/model --run.output_dir=again --training.steps=2 --resume none "
      "--run.set_aside=true");
  EXPECT_EQ(again.code, 77);
  EXPECT_FALSE(fs::exists(run / "again/model"));
  EXPECT_TRUE(fs::exists(run / "again/history" / names_in(run / "again/history").at(0) / "model/model.safetensors"));
}

// The last steps ruined the weights, too few for a rollback. Patience does not end the run before.
TEST(NotFinite, WeightsThatAreNotFiniteAreNotExported) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=20 --until=16 --checkpoint.interval=8").code, 0);
  const std::string ruin =
      "--training.steps=20 --checkpoint.interval=8 --optimizer.lr=1e30 --optimizer.weight_decay=1e30 "
      "--lr_scheduler.decay=constant "
      "--evaluation.interval=1 --evaluation.patience=1 ";
  const std::string sentence =
      "octet: model.embed_tokens.weight has values that are NaN or infinite, so no model is exported; out/checkpoints holds the "
      "weights. Lower optimizer.lr and go on from an earlier checkpoint with --resume DIR --run.set_aside=true, or begin anew";
  for (const std::string command : {"train run.toml ", "launch -n 2 -- train run.toml --training.micro_batch_size=1 "}) {
    const ProgramResult result = run.run(command + ruin);
    EXPECT_EQ(result.code, 77) << result.err;
    EXPECT_EQ(last_checkpoint(run / "out").filename(), checkpoint::step_name(20));
    EXPECT_EQ(lines_with(result.err, "A few of them do no harm"), std::vector<std::string>{});
    EXPECT_FALSE(lines_with(result.err, sentence).empty()) << result.err;
    EXPECT_FALSE(fs::exists(run / "out/model"));
  }
  EXPECT_EQ(run.run("status out --code").code, 77);
  const ProgramResult mended =
      run.train("--training.steps=20 --resume out/checkpoints/" + checkpoint::step_name(16) + " --run.output_dir=mended");
  EXPECT_EQ(mended.code, 0) << mended.err;
  EXPECT_TRUE(fs::exists(run / "mended/model"));
}

// If one recipe has no finite step, its row in the table says so, and the other recipes are still trained.
TEST(NotFinite, AComparisonGoesOn) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2 --checkpoint.interval=0").code, 0);
  spoil(run / "out/model", "model.norm.weight");
  for (const std::string gpus : {"", " --gpus 1"}) {
    const ProgramResult result = run.run("compare run.toml --recipes bf16,fp8_delayed --output side" + gpus +
                                         " --model.init_from=out/model --training.steps=3 --checkpoint.interval=0");
    EXPECT_EQ(result.code, 77) << result.err;
    EXPECT_EQ(lines_with(result.err, "all 3 steps had ").size(), gpus.empty() ? 3u : 2u) << result.err;  // includes the repeat
    const Json rows = json_of(read_file(run / "side/report.json")).at("rows");
    EXPECT_EQ(rows.size(), gpus.empty() ? 3u : 2u) << rows;
    for (const Json& row : rows) EXPECT_TRUE(row.at("mean_loss").is_null()) << row;
  }
}

// A run that skips some steps does not fail. Here one document has a token whose embedding is not finite. The embedding is
// frozen, so what is trained is finite.
TEST(NotFinite, ARunThatSkippedSomeStepsEndsWell) {
  std::vector<std::string> documents = tiny_documents();
  documents[3][7] = '#';
  const TinyRun run(documents);
  ASSERT_EQ(run.train("--training.steps=2 --checkpoint.interval=0").code, 0);
  spoil(run / "out/model", "model.embed_tokens.weight", '#' * 32);
  const ProgramResult result =
      run.train("--model.init_from=out/model --lora.rank=4 --run.output_dir=some --checkpoint.interval=0 --training.epochs=1");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(lines_with(result.err, "loss or gradient not finite; skipped").size(), 1u) << result.err;
  const auto metrics = metrics_of(run / "some");
  EXPECT_EQ(metrics.rbegin()->second["skipped_steps"], 1);
  EXPECT_TRUE(fs::exists(run / "some/adapter/adapter_model.safetensors"));
  const std::string text = concat("1 of ", metrics.size(), " steps had a loss or gradient that is not finite and was skipped");
  EXPECT_EQ(lines_with(result.err, text).size(), 1u) << result.err;
  EXPECT_LT(result.err.find(text), result.err.find("done: ")) << result.err;
  EXPECT_EQ(json_of(read_file(run / "some/run.json")).at("skipped_steps"), 1);
  const std::string status = run.run("status some").out;
  EXPECT_NE(status.find("some: done\n"), std::string::npos) << status;
  EXPECT_EQ(lines_with(status, text).size(), 1u) << status;
  EXPECT_EQ(json_of(run.run("status some --json").out).at("skipped_steps"), 1);
  ASSERT_EQ(run.run("report some").code, 0);
  EXPECT_NE(read_file(run / "some/report.html").find(text), std::string::npos);
}

// Training goes on at a learning rate that makes the weights overflow. The model of the good steps stays where it is.
TEST(NotFinite, ARunThatSkippedMostStepsHasFailed) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  const std::string model = read_file(run / "out/model/model.safetensors");
  const std::string options =
      "--optimizer.lr=1e30 --optimizer.weight_decay=1e30 --lr_scheduler.warmup_steps=0 --lr_scheduler.decay=constant "
      "--training.steps=";
  const ProgramResult half = run.train(options + "6");
  EXPECT_EQ(half.code, 77) << half.err;
  EXPECT_EQ(lines_with(half.err, "loss or gradient not finite; skipped").size(), 3u) << half.err;
  EXPECT_EQ(lines_with(half.err, "octet: model.embed_tokens.weight has values that are NaN or infinite, so no model is exported")
                .size(),
            1u)
      << half.err;
  const ProgramResult most = run.train(options + "8");
  EXPECT_EQ(most.code, 77);
  EXPECT_EQ(lines_with(most.err, "octet: "),
            std::vector<std::string>{"octet: 5 of 8 steps had a loss or gradient that is not finite and were skipped, so no model is exported; "
                                     "out/checkpoints holds the weights. Lower optimizer.lr or lengthen lr_scheduler.warmup_steps"});
  EXPECT_EQ(most.out.find("done: "), std::string::npos) << most.out;
  EXPECT_EQ(read_file(run / "out/model/model.safetensors"), model);
  const Json about = json_of(read_file(run / "out/run.json"));
  EXPECT_EQ(about.at("code"), 77);
  EXPECT_EQ(about.at("skipped_steps"), 5);
  EXPECT_NE(run.run("status out").out.find("out: ended with code 77\n"), std::string::npos) << run.run("status out").out;
  EXPECT_EQ(run.run("status out --code").code, 77);
}

// The texts are mostly one letter, which a model learns at once. A few windows of noise make its loss jump.
class Spike : public ::testing::Test {
 protected:
  static std::vector<std::string> documents() {
    const Rng rng(3, RngStream::test);
    std::vector<std::string> result;
    for (std::uint64_t d = 0; d < 60; ++d) {
      std::string text(160, 'a');
      if (d % 20 == 10) {
        for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + rng.word64(d * 1000 + i) % 26);
      }
      result.push_back(text);
    }
    return result;
  }
  ProgramResult train(const std::string& options, const std::string& how = "exec") const {
    return run_.run(
        "train run.toml --training.steps=90 --training.global_batch_size=2 --optimizer.lr=1e-2 --checkpoint.interval=6 "
        "--evaluation.interval=0 --metrics.tensorboard=false --anomaly.spike=2 " +
            options,
        how);
  }
  TinyRun run_{documents()};
};

TEST_F(Spike, GoesBackPastTheBatches) {
  const ProgramResult result = train("--anomaly.max_rollbacks=50 --checkpoint.keep_latest_k=0");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto back = lines_with(result.err, "; back to step ");
  ASSERT_GE(back.size(), 2u) << result.err;
  // "warning: step 31: loss 2.5 is above 2 times 1.1, the median of the last 30 steps; back to step 30, past the batches up to
  // sample 64 (rollback 1 of 50)"
  std::int64_t redone = 0, number = 0, before = -1;
  for (const std::string& line : back) {
    long long failed = 0, to = 0, sample = 0, rollback = 0;
    double loss = 0, median = 0;
    ASSERT_EQ(
        std::sscanf(line.c_str(),
                    "warning: step %lld: loss %lf is above 2 times %lf, the median of the last %*d steps; back to step %lld, past "
                    "the batches up to sample %lld (rollback %lld of 50)",
                    &failed, &loss, &median, &to, &sample, &rollback),
        6)
        << line;
    EXPECT_GT(loss, 2 * median);
    const std::int64_t newest = (failed - 1) / 6 * 6;
    EXPECT_EQ(to, newest == before ? newest - 6 : newest) << "one checkpoint does not lead into two spikes";
    before = to;
    EXPECT_EQ(rollback, ++number);
    redone += failed - to;
    EXPECT_EQ(sample, 2 * (to + redone)) << "the data does not go back";
  }
  const auto metrics = metrics_of(run_ / "out");  // has each step once
  EXPECT_EQ(metrics.size(), 90u);
  double highest = 0;
  for (const auto& [step, line] : metrics) {
    if (step > 30) highest = std::max(highest, line["loss"].get<double>());
  }
  EXPECT_LT(highest, 3.0) << "no batch of noise was learnt from";
  const auto meta = checkpoint::parse_manifest(read_file(last_checkpoint(run_ / "out") / "manifest.json"), "manifest").meta;
  EXPECT_EQ(meta.at("cursor"), 2 * (90 + redone));
  EXPECT_EQ(meta.at("rollbacks"), back.size());
}

// After SIGTERM instead of SIGKILL, the run could go back less far, because SIGTERM saves a checkpoint.
TEST_F(Spike, KilledRunsGoBackAlike) {
  const std::string options = "--anomaly.max_rollbacks=50 ";
  ASSERT_EQ(train(options + "--run.output_dir=reference").code, 0);
  std::int64_t step = 0;
  for (int i = 0; i < 4; ++i) {
    Process process(
        "train run.toml --training.steps=90 --training.global_batch_size=2 --optimizer.lr=1e-2 --checkpoint.interval=6 "
        "--evaluation.interval=0 --metrics.tensorboard=false --anomaly.spike=2 " +
            options,
        run_.path());
    if (!process.read_to_step(step += 17)) break;
    process.send(SIGKILL);
    process.wait();
  }
  const ProgramResult result = train(options);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference"))) << result.err;
}

// A fault that passes costs nothing. A full disk ends the run, which the same command continues.
TEST_F(Spike, ADiskThatFailsDuringARollback) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  const std::string options = "--anomaly.max_rollbacks=50 ";
  ASSERT_EQ(train(options + "--run.output_dir=reference").code, 0);
  const std::size_t histories = names_in(run_ / "reference/history").size();
  ProgramResult result = train(options + "--run.output_dir=once", "exec " + with_faults("write */once/history/* 1 EIO"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(lines_with(result.err, "metrics.jsonl: cannot write: Input/output error; trying again for 60 s").size(), 1u)
      << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "once"), outcome_of(run_ / "reference")));
  EXPECT_EQ(names_in(run_ / "once/history").size(), histories) << "nothing is left of what failed";

  result = train(options, "exec " + with_faults("write */out/history/* 1 ENOSPC"));
  EXPECT_EQ(result.code, 1);
  const std::string end = "; going back needs this; make room or repair the disk; the same command continues from there";
  EXPECT_EQ(lines_with(result.err, "metrics.jsonl: cannot write: No space left on device" + end).size(), 1u) << result.err;
  EXPECT_TRUE(names_in(run_ / "out/history").empty());
  result = train(options);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
}

// Not only checkpoints may be on another file system than history/.
TEST_F(Spike, GoesBackAcrossFileSystems) {
  if (faults_library().empty()) GTEST_SKIP() << "no fault injection here";
  const std::string options = "--anomaly.max_rollbacks=50 --checkpoint.keep_latest_k=0 ";
  ASSERT_EQ(train(options + "--run.output_dir=reference").code, 0);
  const ProgramResult result = train(options, "exec " + with_faults("rename */out/history/*/step-???????? 1 EXDEV"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_outcome(outcome_of(run_ / "out"), outcome_of(run_ / "reference")));
}

TEST_F(Spike, WithoutRollbacksTheFirstEndsTheRun) {
  const ProgramResult result = train("--anomaly.max_rollbacks=0 --precision.calibrate=false");
  EXPECT_TRUE(refused(result, 77, "the median of the last", "all 0 rollbacks of anomaly.max_rollbacks are used up"));
  EXPECT_FALSE(checkpoint::find_checkpoints(run_ / "out/checkpoints").empty()) << "what there was stays";
}

// Training that goes on loses less than training that begins anew.
TEST_F(Spike, WithoutCheckpointsTheRunWarnsAndGoesOn) {
  const ProgramResult result = train("--checkpoint.interval=0 --anomaly.max_rollbacks=0");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto warnings = lines_with(result.err, "; nothing to go back to: no checkpoint from before it. Training continues");
  EXPECT_FALSE(warnings.empty()) << result.err;
  EXPECT_EQ(metrics_of(run_ / "out").size(), 90u);
  EXPECT_EQ(metrics_of(run_ / "out").at(90)["tokens_seen"], 90 * 64);
}

// By itself a batch of noise is no spike: the losses after it are low again.
TEST_F(Spike, SingleBatchesAreNoneUnlessAFactorSaysSo) {
  for (const char* spike : {"auto", "off"}) {
    const ProgramResult result = train(concat("--anomaly.max_rollbacks=0 --run.output_dir=", spike, " --anomaly.spike=", spike));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(lines_with(result.err, "warning").empty()) << result.err;
  }
}

TEST_F(Spike, IsGivenAsANumberOrAWord) {
  const auto config = [&](const std::string& value) {
    write_file_atomically(run_ / "spike.toml", tiny_toml() + "[anomaly]\nspike = " + value + "\n");
    return run_.run("train spike.toml --print-config");
  };
  EXPECT_NE(config("3.5").out.find("spike = \"3.5\""), std::string::npos);
  EXPECT_NE(config("3").out.find("spike = \"3\""), std::string::npos);
  EXPECT_NE(config("\"off\"").out.find("spike = \"off\""), std::string::npos);
  EXPECT_TRUE(refused(run_.train("--anomaly.spike=sometimes"), 2, "anomaly.spike = \"sometimes\": must be auto, off or a number above 1"));
}

}  // namespace
}  // namespace octet::testing

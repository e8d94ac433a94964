// Checks that `octet train` does what it announces before the run.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <set>

#include "octet/recipes/registry.h"
#include "octet/telemetry/format.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

// Returns the lines of the memory plan, from "memory plan" to "total".
std::string plan_in(const std::string& output) {
  const std::size_t begin = output.find("memory plan\n"), total = output.find("\n  total ", begin);
  if (begin == std::string::npos || total == std::string::npos) return "";
  return output.substr(begin, output.find('\n', total + 1) - begin + 1);
}

// Returns 894720 for "  total    894,720 bytes".
std::int64_t total_of(const std::string& plan, const std::string& line = "total ") {
  std::string digits;
  for (std::size_t i = plan.find("\n  " + line) + 3 + line.size(); i < plan.size() && plan[i] != 'b'; ++i) {
    if (std::isdigit(static_cast<unsigned char>(plan[i]))) digits += plan[i];
  }
  return std::stoll(digits);
}

double mean_loss(const std::map<std::int64_t, Json>& metrics, std::int64_t first, std::int64_t last) {
  double sum = 0;
  for (std::int64_t step = first; step <= last; ++step) sum += metrics.at(step)["loss"].get<double>();
  return sum / static_cast<double>(last - first + 1);
}

class EveryRecipe : public ::testing::TestWithParam<std::string> {
 protected:
  std::string recipe() const { return "--precision.emulate=true --precision.recipe=" + GetParam() + " "; }
};
INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, ::testing::ValuesIn(recipes::recipe_names()),
                         [](const auto& param) { return param.param; });

TEST_P(EveryRecipe, ThePlanOfADryRunIsWhatTheRunTakesToTheByte) {
  const TinyRun run;
  const std::pair<std::string, std::string> runs[] = {
      {"a", ""},
      {"b", "--activation_checkpoint.mode=full --optimizer.state_dtype=bf16 --optimizer.master_weights=false --run.threads=2"},
      {"c", "--optimizer.state_dtype=fp8"}};
  for (const auto& [folder, options] : runs) {
    const std::string all = concat(recipe(), "--training.steps=3 --run.output_dir=", folder, " ", options);
    const ProgramResult dry = run.train(all + " --dry-run");
    ASSERT_EQ(dry.code, 0) << dry.err;
    EXPECT_EQ(dry.err, "");
    EXPECT_FALSE(std::filesystem::exists(run / folder)) << "a dry run leaves nothing";
    const ProgramResult real = run.train(all);
    ASSERT_EQ(real.code, 0) << real.err;
    ASSERT_NE(plan_in(dry.out), "") << dry.out;
    EXPECT_EQ(plan_in(real.out), plan_in(dry.out));
    EXPECT_EQ(real.out.substr(0, real.out.find("memory plan")), dry.out.substr(0, dry.out.find("memory plan")));
    for (const auto& [step, line] : metrics_of(run / folder)) {
      EXPECT_EQ(line["memory_peak_gib"].get<double>() * 0x1p30, static_cast<double>(total_of(plan_in(dry.out)))) << step;
    }
  }
}

// The model has ten times the layers of Llama 3.1 405B, which is more than any machine can hold.
TEST(Run, WhatDoesNotFitEndsWithThreeBeforeAnyStep) {
  const TinyRun run;
  const std::string config = (std::filesystem::path(source_dir()) / "configs" / "llama3.1-405b.toml").string();
  const std::string options = "'" + config + "' --run.device=cpu --precision.emulate=true --model.num_hidden_layers=1260 " +
                              "--data.source.0.path=corpus --run.output_dir=out";
  const std::string train = "train " + options;
  for (const std::string& how : {train, train + " --dry-run", "launch -n 2 -- " + train, "bench step " + options}) {
    const ProgramResult result = run.run(how);
    EXPECT_EQ(result.code, 3) << how << "\n" << result.err;
    for (const char* part : {"octet: this run needs ", " and the machine has ", " left", "\n  total ",
                             "what helps: a shorter training.seq_len, ", "more ranks in parallel.shard"}) {
      EXPECT_NE(result.err.find(part), std::string::npos) << how << " lacks \"" << part << "\":\n" << result.err;
    }
    EXPECT_EQ(result.out.find("step 1/"), std::string::npos) << how;
    EXPECT_FALSE(std::filesystem::exists(run / "out/metrics.jsonl")) << how;
  }
}

// Four ranks of one machine train two replicas. Only the two ranks of the first replica have snapshots.
TEST(Run, TheSnapshotsOfTheFirstReplicaMustFitAsWell) {
  const TinyRun run;
  const std::string dry =
      "train '" + (std::filesystem::path(source_dir()) / "configs" / "llama3.1-405b.toml").string() +
      "' --dry-run --run.device=cpu --precision.emulate=true --model.num_hidden_layers=1260 --parallel.replicate=2 ";
  const std::string four = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=1 exec env";
  const ProgramResult with = run.run(dry, four), without = run.run(dry + "--checkpoint.async=false", four);
  EXPECT_EQ(with.code, 3) << with.err;
  EXPECT_EQ(without.code, 3) << without.err;
  const auto total = static_cast<std::uint64_t>(total_of(with.err)),
             snapshot = static_cast<std::uint64_t>(total_of(with.err, "snapshot (host) "));
  const std::string all = telemetry::format_bytes(4 * total + 2 * snapshot), part = telemetry::format_bytes(2 * snapshot);
  EXPECT_NE(with.err.find("this run needs " + all + " (4 ranks), " + part + " of it for snapshots, and"), std::string::npos)
      << with.err;
  EXPECT_NE(with.err.find("checkpoint.async = false"), std::string::npos) << with.err;
  EXPECT_NE(without.err.find("this run needs " + telemetry::format_bytes(4 * total) + " (4 ranks) and"), std::string::npos)
      << without.err;
  EXPECT_EQ(without.err.find("snapshot"), std::string::npos) << without.err;
}

TEST_P(EveryRecipe, LearnsAndIsTheSameWithTwoThreadsAndWhenRepeated) {
  const TinyRun run;
  const std::string options = recipe() + "--training.steps=40 --checkpoint.interval=0 ";
  ASSERT_EQ(run.train(options).code, 0);
  const auto metrics = metrics_of(run / "out");
  ASSERT_EQ(metrics.size(), 40u);
  // With random weights the loss is log 256. Forty steps learn which letters occur and that most of the 256 bytes do not.
  EXPECT_NEAR(metrics.at(1)["loss"].get<double>(), std::log(256.0), 0.15);
  EXPECT_LT(mean_loss(metrics, 37, 40), 0.75 * mean_loss(metrics, 1, 4));
  EXPECT_LT(metrics.at(40)["eval_loss"].get<double>(), metrics.at(10)["eval_loss"].get<double>());
  const bool fp8 = GetParam() != "bf16" && GetParam() != "fp32";
  EXPECT_EQ(metrics.at(40)["fp8_flop_share"].get<double>() > 0.3, fp8);
  EXPECT_EQ(!metrics.at(7)["fp8_saturated_pct"].is_null(), fp8);

  const auto outcome = outcome_of(run / "out");
  ASSERT_EQ(run.train(options + "--run.output_dir=again").code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run / "again"), outcome));
  ASSERT_EQ(run.train(options + "--run.output_dir=threads --run.threads=2").code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run / "threads"), outcome));
}

TEST_P(EveryRecipe, EvalOfTheLastCheckpointSaysWhatTheRunSaid) {
  const TinyRun run;
  const std::string options = recipe() + "--training.steps=9 --run.output_dir=out ";
  ASSERT_EQ(run.train(options).code, 0);
  const ProgramResult eval = run.run("eval run.toml " + options + "--json --checkpoint out/checkpoints/step-00000009");
  ASSERT_EQ(eval.code, 0) << eval.err;
  const Json said = json_of(eval.out);
  EXPECT_EQ(said["step"], 9);
  EXPECT_EQ(said["eval_loss"].dump(), metrics_of(run / "out").at(9)["eval_loss"].dump());
}

// The order of FP32 sums changes so little that the losses differ by roundings only.
TEST(Run, HalfTheMicroBatchGivesTheSameLosses) {
  const TinyRun run;
  const std::string options =
      "--precision.recipe=fp32 --training.steps=8 --training.global_batch_size=8 --metrics.tensorboard=false ";
  const std::vector<std::int64_t> sizes = {8, 4, 2, 1};
  std::vector<std::map<std::int64_t, Json>> metrics;
  for (const std::int64_t size : sizes) {
    const std::string name = "micro" + std::to_string(size);
    const ProgramResult result =
        run.train(options + "--run.output_dir=" + name + " --training.micro_batch_size=" + std::to_string(size));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find(std::to_string(8 / size) + (size == 8 ? " micro-batch of " : " micro-batches of ") + std::to_string(size)), std::string::npos);
    metrics.push_back(metrics_of(run / name));
  }
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    for (const auto& [step, line] : metrics[0]) {
      const double expected = line["loss"].get<double>();
      EXPECT_NEAR(metrics[i].at(step)["loss"].get<double>(), expected, 1e-6 * expected) << sizes[i] << " step " << step;
    }
  }
}

TEST(Run, RecomputingActivationsChangesNothing) {
  const TinyRun run;
  ASSERT_EQ(run.train().code, 0);
  const auto expected = outcome_of(run / "out");
  const Json first = metrics_of(run / "out").at(1);
  for (const std::string mode : {"selective", "full"}) {
    ASSERT_EQ(run.train("--activation_checkpoint.mode=" + mode + " --run.output_dir=" + mode).code, 0);
    EXPECT_LT(metrics_of(run / mode).at(1)["memory_peak_gib"].get<double>(), first["memory_peak_gib"].get<double>());
    auto outcome = outcome_of(run / mode);
    for (auto& [name, value] : outcome) {
      if (name.rfind("metrics.jsonl", 0) != 0) continue;
      Json line = json_of(value);
      for (const char* of_the_plan : {"memory_peak_gib", "fp8_flop_share"}) line[of_the_plan] = first[of_the_plan];
      value = line.dump();
    }
    EXPECT_TRUE(same_outcome(outcome, expected)) << mode;
  }
}

TEST(Run, PrintConfigReadsBackToItself) {
  const TinyRun run;
  const ProgramResult first = run.train("--print-config --optimizer.lr=0.1 --precision.skip='*.down_proj,*.o_proj'");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.err, "");
  write_text(run / "printed.toml", first.out);
  const ProgramResult second = run.run("train printed.toml --print-config");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  // The printed configuration also makes the same run.
  const std::string short_run = " --training.steps=3";
  ASSERT_EQ(run.run("train printed.toml --run.output_dir=printed" + short_run).code, 0);
  ASSERT_EQ(run.train("--optimizer.lr=0.1 --precision.skip='*.down_proj,*.o_proj'" + short_run).code, 0);
  EXPECT_TRUE(same_outcome(outcome_of(run / "printed"), outcome_of(run / "out")));
}

TEST(Run, SkippedLayersAreInBf16AndSaidToBe) {
  const TinyRun run;
  const ProgramResult result = run.train("--dry-run --precision.skip='*.0.mlp.*'");
  ASSERT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  int bf16 = 0, fp8 = 0;
  for (std::string line; std::getline(lines, line);) {
    bf16 += line.find("mlp") != std::string::npos && line.find("x1   BF16") != std::string::npos;
    fp8 += line.find("mlp") != std::string::npos && line.find("x1   X E4M3") != std::string::npos;
  }
  EXPECT_EQ(bf16, 2) << result.out;
  EXPECT_EQ(fp8, 2) << result.out;
}

TEST(Run, WarnsOfAPresetThatChangesNothing) {
  const TinyRun run;
  const std::set<std::string> chooses = {"fp8_current", "fp8_delayed", "fp8_rowwise"};
  for (const std::string& recipe : recipes::recipe_names()) {
    const auto err = [&](const std::string& preset) {
      const ProgramResult result =
          run.train("--dry-run --precision.emulate=true --precision.recipe=" + recipe + " --precision.preset=" + preset);
      EXPECT_EQ(result.code, 0) << result.err;
      return result.err;
    };
    EXPECT_EQ(err("safe"), "");
    EXPECT_EQ(err("fast"), chooses.contains(recipe)
                               ? ""
                               : "warning: precision.preset = \"fast\" changes nothing with precision.recipe = \"" + recipe +
                                     "\", whose products accumulate in one way only\n");
  }
}

TEST(Run, ExpertsShareALineOfThePrecisionTable) {
  const TinyRun run;
  const ProgramResult result =
      run.train("--dry-run --model.model_type=mixtral --model.num_local_experts=3 --model.num_experts_per_tok=2");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("model.layers.*.block_sparse_moe.experts.*.w2 "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("x6   X E4M3"), std::string::npos) << "three experts in each of two layers\n" << result.out;
  EXPECT_EQ(result.out.find("experts.0"), std::string::npos) << result.out;
}

TEST(Run, ContinuesAModelDirectory) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=20").code, 0);
  const double reached = metrics_of(run / "out").at(20)["eval_loss"].get<double>();
  const ProgramResult more = run.train("--model.init_from=out/model --run.output_dir=more --training.steps=1 --optimizer.lr=0");
  ASSERT_EQ(more.code, 0) << more.err;
  // The weights equal those in BF16. Delayed scales start again at 1, which quantises weights of about 0.02 with errors of some
  // ten percent.
  EXPECT_NEAR(metrics_of(run / "more").at(1)["eval_loss"].get<double>(), reached, 0.05 * reached);
}

TEST(Run, EvaluatesTheCorpusThatIsNamedForValidation) {
  const TinyRun run;
  write_corpus(run / "other", {std::string(2000, 'z')});
  const std::string toml = read_file(run / "run.toml");
  write_text(run / "named.toml", toml + "[[data.source]]\npath = \"other\"\nsplit = \"validation\"\n");
  ASSERT_EQ(run.run("train named.toml --training.steps=5 --evaluation.interval=5").code, 0);
  const Json said = metrics_of(run / "out").at(5)["eval_loss"];
  // Evaluates the same text in another way, by holding out a whole corpus. It has none of the letters that the model has learnt.
  const ProgramResult all =
      run.run("eval run.toml --json --data.source.0.path=other --data.split=0,1 --checkpoint out/checkpoints/step-00000005");
  ASSERT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(json_of(all.out)["eval_loss"].dump(), said.dump());
  const ProgramResult held_out = run.run("eval run.toml --json --checkpoint out/checkpoints/step-00000005");
  ASSERT_EQ(held_out.code, 0) << held_out.err;
  EXPECT_LT(json_of(held_out.out)["eval_loss"].get<double>(), said.get<double>());
  EXPECT_EQ(json_of(read_file(run / "out" / "run.json"))["data"], "corpus, other (validation)");
}

TEST(Run, TheExampleOfContinuedTrainingRuns) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=20").code, 0);
  std::filesystem::create_directory(run / "data");
  write_corpus(run / "data/new", tiny_documents());
  write_corpus(run / "data/replay", tiny_documents(12));
  write_text(run / "continue.toml", read_file(std::filesystem::path(source_dir()) / "examples" / "continue.toml"));
  const ProgramResult more = run.run(
      "train continue.toml --model.init_from=out/model --run.device=cpu --training.seq_len=16 --training.global_batch_size=8 "
      "--training.steps=4 --lr_scheduler.warmup_steps=2");
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_NE(more.err.find("before step 1"), std::string::npos) << more.err;
  EXPECT_TRUE(std::filesystem::exists(run / "out/continue/model/model.safetensors"));
}

// A run that starts from given weights first prints their loss. This test compares it with Octet's own evaluation, probe_test.cpp
// with the logits of transformers.
TEST(Run, SaysTheLossOfTheWeightsItGoesOnFrom) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=20 --precision.recipe=fp32").code, 0);
  const double reached = metrics_of(run / "out").at(20)["eval_loss"].get<double>();
  const auto before = [&](const std::string& recipe) {
    const ProgramResult more = run.train("--model.init_from=out/model --run.output_dir=more-" + recipe +
                                         " --training.steps=1 --precision.recipe=" + recipe);
    EXPECT_EQ(more.code, 0) << more.err;
    const std::string says = "held-out loss of out/model before step 1, in " + recipe + ": ";
    const std::size_t at = more.err.find(says);
    if (at == std::string::npos) ADD_FAILURE() << more.err;
    return at == std::string::npos ? 0.0 : std::stod(more.err.substr(at + says.size()));
  };
  // The weights are in FP32 and the loss has six decimals.
  EXPECT_NEAR(before("fp32"), reached, 1e-4 * reached);
  // BF16 rounds weights and activations by 2^-9, a few times in each layer.
  EXPECT_NEAR(before("bf16"), reached, 24 * 0x1p-9 * reached);
  const Json random = (run.train("--run.output_dir=random --training.steps=1"), json_of(read_file(run / "random/run.json")));
  EXPECT_TRUE(random["initial_eval_loss"].is_null() && random["initial_eval_loss_bf16"].is_null());
}

// An FP8 run prints the loss in BF16 beside its own, and keeps both. The former equals that of a BF16 run, bit for bit.
TEST(Run, SaysTheLossOfItsWeightsInBf16BesideThatInFp8) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=20").code, 0);
  const auto more = [&](const std::string& options) {
    return run.train("--model.init_from=out/model --training.steps=2 " + options);
  };
  const auto kept = [&](const char* folder) { return json_of(read_file(run / folder / "run.json")); };
  ASSERT_EQ(more("--run.output_dir=bf16 --precision.recipe=bf16").code, 0);
  const Json bf16 = kept("bf16");
  EXPECT_TRUE(bf16["initial_eval_loss_bf16"].is_null());
  for (const std::string recipe : {"fp8_current", "fp8_block"}) {
    const ProgramResult result =
        more("--run.output_dir=fp8 --checkpoint.resume=none --run.set_aside=true --precision.recipe=" + recipe);
    ASSERT_EQ(result.code, 0) << result.err;
    const Json fp8 = kept("fp8");
    EXPECT_EQ(fp8["initial_eval_loss_bf16"].dump(), bf16["initial_eval_loss"].dump()) << recipe;
    EXPECT_NE(fp8["initial_eval_loss"].dump(), bf16["initial_eval_loss"].dump()) << recipe;
    const std::string says = fmt::format("held-out loss of out/model before step 1, in {}: {:.6f} (in bf16: {:.6f})", recipe,
                                         fp8["initial_eval_loss"].get<double>(), bf16["initial_eval_loss"].get<double>());
    EXPECT_NE(result.err.find(says), std::string::npos) << result.err;
  }
  // A resumed run does not evaluate again and keeps both losses.
  const Json first = kept("fp8");
  const Json shown = json_of(run.run("report fp8 --json").out)["rows"][0];
  for (const char* loss : {"initial_eval_loss", "initial_eval_loss_bf16"}) EXPECT_EQ(shown[loss].dump(), first[loss].dump());
  const ProgramResult resumed = more("--run.output_dir=fp8 --precision.recipe=fp8_block --training.steps=3");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.err.find("before step 1"), std::string::npos) << resumed.err;
  for (const char* loss : {"initial_eval_loss", "initial_eval_loss_bf16"})
    EXPECT_EQ(kept("fp8")[loss].dump(), first[loss].dump());
  // Without held-out text there is no such line.
  const ProgramResult nothing = more("--run.output_dir=all --data.split=1,0");
  ASSERT_EQ(nothing.code, 0) << nothing.err;
  EXPECT_EQ(nothing.err.find("before step 1"), std::string::npos) << nothing.err;
}

// Without a supervisor run.json alone knows how a run ended.
TEST(Run, SaysInItsFolderWhatItIsAndHowItEnded) {
  const TinyRun run;
  const std::string options = "--training.steps=6 --optimizer.lr=0.25 ";
  ASSERT_EQ(run.train(options + "--until 4").code, 0);
  const Json info = json_of(read_file(run / "out/run.json"));
  EXPECT_EQ(info["config"]["optimizer"]["lr"], 0.25);
  EXPECT_FALSE(info["versions"]["build"].get<std::string>().empty());
  EXPECT_EQ(info["code"], 0);
  EXPECT_EQ(info["first_started"], info["started"]);
  EXPECT_EQ(run.run("status out --code").code, 0);
  EXPECT_TRUE(
      run.run("status out").out.starts_with("out: ended with code 0, stopped before its last step\n  step        4 of 6,"));
  const ProgramResult beyond = run.train(options + "--until 2");
  EXPECT_NE(beyond.err.find("--until 2: the run is beyond it, at step 4 of 6 in out/checkpoints"), std::string::npos)
      << beyond.err;

  Process process("train run.toml --training.steps=100000 --optimizer.lr=0.25", run.path());
  ASSERT_TRUE(process.read_to_step(5));
  EXPECT_EQ(json_of(read_file(run / "out/run.json"))["code"], -1);
  EXPECT_EQ(json_of(read_file(run / "out/run.json"))["first_started"], info["started"]) << "the start of the first process";
  const std::string running = run.run("status out").out;
  EXPECT_NE(running.find(" tok/s, eta "), std::string::npos) << running;
  const double eta_s = json_of(run.run("status out --json").out)["eta_s"];
  EXPECT_GT(eta_s, 0);
  const auto lines = metrics_of(run / "out");
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const auto& line) { return line.second["eta_s"] == eta_s; }))
      << "what the run itself says, with evaluations and saves";
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
  EXPECT_EQ(json_of(read_file(run / "out/run.json"))["code"], 75);
  EXPECT_EQ(run.run("status out --code").code, 75);
  const Json ended = json_of(run.run("status out --json").out);
  EXPECT_EQ(ended["code"], 75);
  EXPECT_EQ(ended["eta_s"], nullptr);
  EXPECT_EQ(ended["productive"], nullptr) << "no supervisor ran it";
  ASSERT_EQ(run.train("--training.steps=3 --optimizer.lr=0.25").code, 0);
  EXPECT_NE(run.run("status out").out.find(" (training.steps is now 3)"), std::string::npos);
}

TEST(Run, ExpectsToEndAtUntil) {
  const TinyRun run;
  const ProgramResult result = run.train("--training.steps=1000000000 --until 4");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::size_t last = result.out.find("step 4/1000000000 ");
  ASSERT_NE(last, std::string::npos) << result.out;
  EXPECT_NE(result.out.find("  eta 0.0s", last), std::string::npos) << result.out;
}

// The file has training.steps, which the option replaces.
TEST(Run, SaysThatEpochsSetItsLength) {
  const TinyRun run;
  const ProgramResult result = run.train("--training.epochs=0.01");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("\n1 step (training.epochs = 0.01) of 4 sequences of 32 tokens: "), std::string::npos) << result.out;
}

// What the run would refuse, --dry-run refuses, too.
TEST(Run, RefusesAnotherWordForAuto) {
  const TinyRun run;
  const std::string why =
      "checkpoint.resume = \"atuo\": no such folder; give auto, none, the folder of a checkpoint, "
      "or that of a run for its newest one (did you mean auto?)";
  for (const char* options : {"--resume atuo", "--resume atuo --dry-run"}) EXPECT_TRUE(refused(run.train(options), 76, why));
  for (const std::string other : {"foo", "run.toml"})
    EXPECT_TRUE(refused(run.train("--model.tokenizer=" + other), 2, "model.tokenizer = \"" + other + "\": must be \"byte\""));
  EXPECT_TRUE(refused(run.train("--run.output_dir="), 2, "run.output_dir is empty"));
  for (const char* folder : {"run.toml/x", "/proc/none/x"})
    EXPECT_TRUE(refused(run.train(concat("--run.output_dir=", folder)), 2, folder));
}

// The run starts without stdin, stdout and stderr, as under some daemons. Files of the run must not get their descriptors.
TEST(Run, WhatNobodyHearsIsNotWrittenIntoItsFiles) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=6 --run.output_dir=heard").code, 0);
  for (const char* closed : {"<&- >&-", "<&- >&- 2>&-"}) {
    std::filesystem::remove_all(run / "out");
    EXPECT_EQ(run.run("train run.toml --training.steps=6", concat("exec ", closed, "; exec")).code, 0) << closed;
    for (const char* file : {"fp8_health.jsonl", "model/model.safetensors"})
      EXPECT_TRUE(read_file(run / "out" / file) == read_file(run / "heard" / file)) << closed << " " << file;
    EXPECT_EQ(metrics_of(run / "out").size(), 6u) << closed;
  }
}

// What a run begins with may explain what becomes of it: weights that are not finite, held-out text that is trained on.
TEST(Run, BadBeginningsAreSaid) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=2").code, 0);
  std::string weights = read_file(run / "out/model/model.safetensors");
  std::fill(weights.end() - 4096, weights.end(), '\xFF');
  write_text(run / "out/model/model.safetensors", weights);
  const ProgramResult nan = run.train("--model.init_from=out/model --run.output_dir=other");
  EXPECT_EQ(nan.code, 77);
  EXPECT_NE(nan.err.find("warning: out/model: the held-out loss of its weights is not finite before step 1"), std::string::npos) << nan.err;
  EXPECT_EQ(nan.err.find("-nan"), std::string::npos) << nan.err;
  const ProgramResult same =
      run.train("--run.output_dir=third --training.steps=2 --evaluation.source.0.path=corpus --evaluation.source.0.name=same");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_NE(same.err.find("evaluation.source.0.path = \"corpus\" is also trained on, as data.source.0"), std::string::npos)
      << same.err;
}

}  // namespace
}  // namespace octet::testing

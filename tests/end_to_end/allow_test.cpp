// A run goes on from a checkpoint with another configuration: it is refused unless checkpoint.allow names the difference.
#include <cmath>

#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/steps.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

::testing::AssertionResult says(const ProgramResult& result, const std::string& part) {
  if (result.code == 0 && result.err.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "exit code " << result.code << ", no \"" << part << "\" in:\n" << result.err;
}

nlohmann::json meta_of(const fs::path& run) {
  return checkpoint::parse_manifest(read_file(last_checkpoint(run) / "manifest.json"), "manifest").meta;
}

// A run of 10 steps in `first`, from whose checkpoint the tests go on in copies.
class Allow : public ::testing::Test {
 protected:
  explicit Allow(const std::string& options = "") {
    EXPECT_EQ(run_.train("--run.output_dir=first --training.steps=10 --checkpoint.interval=0 " + options).code, 0);
  }
  // Copies the folder of a run, without its model.
  void copy(const std::string& from, const std::string& to) const {
    fs::remove_all(run_ / to);
    fs::copy(run_ / from, run_ / to, fs::copy_options::recursive);
    fs::remove_all(run_ / to / "model");
  }
  // Goes on in a copy of `first`.
  ProgramResult go_on(const std::string& options, const std::string& how = "") const {
    copy("first", "out");
    return run_.run(how + "train run.toml --training.steps=20 --checkpoint.interval=0 " + options);
  }
  TinyRun run_;
};

TEST_F(Allow, WithoutTheNameAChangeIsRefused) {
  const std::string where = "octet: out/checkpoints/step-00000010: ";
  struct Case {
    const char *options, *difference, *allow;
  };
  for (const Case& c : std::vector<Case>{
           {"--precision.recipe=bf16", "precision.recipe is \"fp8_delayed\" there and \"bf16\" here", "recipe"},
           {"--precision.amax_history_len=16", "precision.amax_history_len is 8 there and 16 here", "recipe"},
           {"--precision.head=recipe", "precision.head is \"bf16\" there and \"recipe\" here", "recipe"},
           {"--optimizer.state_dtype=bf16", "optimizer.state_dtype is \"fp32\" there and \"bf16\" here", "recipe"},
           {"--optimizer.master_weights=false", "optimizer.master_weights is true there and false here", "recipe"},
           {"--run.seed=7", "run.seed is 42 there and 7 here", "seed"},
           {"--training.seq_len=64", "training.seq_len is 32 there and 64 here", "seq_len"},
           {"--training.global_batch_size=8", "training.global_batch_size is 4 there and 8 here", "batch"},
           {"--data.source.0.weight=2", "data.source.0.weight is 1 there and 2 here", "data"},
           {"--data.split=0.8,0.2", "data.split is [0.9, 0.1] there and [0.8, 0.2] here", "data"},
           {"--data.split=0.8,0.2 --data.source.0.weight=2",
            "data.split is [0.9, 0.1] there and [0.8, 0.2] here; data.source.0.weight is 1 there and 2 here", "data"},
           {"--data.source.0.split=train", ", weight 1, 90% of it there and corpus (24 documents, ", "data"},
           {"--model.num_attention_heads=2 --model.num_key_value_heads=1 --model.head_dim=16",
            "model.head_dim is 8 there and 16 here; model.num_attention_heads is 4 there and 2 here", "model"},
           {"--model.rms_norm_eps=0.5", "model.rms_norm_eps is 1e-06 there and 0.5 here", "model"},
           {"--data.document_mask=true", "data.document_mask is false there and true here", "model"},
           {"--model.rope_theta=77", "model.rope_theta is 10000.0 there and 77.0 here", "model"},
           {"--run.seed=7 --training.global_batch_size=8",
            "run.seed is 42 there and 7 here; training.global_batch_size is 4 there and 8 here", "seed,batch"},
           {"--checkpoint.allow=recipe --precision.recipe=bf16 --run.seed=7", "/step-00000010: run.seed is 42 there and 7 here",
            "recipe,seed"},
       }) {
    const ProgramResult result = go_on(c.options);
    EXPECT_TRUE(refused(result, 2, where, c.difference)) << c.options;
    EXPECT_TRUE(result.err.ends_with(concat(" here. To go on with the change give --checkpoint.allow=", c.allow, "\n")))
        << result.err;
    EXPECT_TRUE(read_file(last_checkpoint(run_ / "out") / "manifest.json") ==
                read_file(last_checkpoint(run_ / "first") / "manifest.json"));
  }
}

// Codes and scales become nothing else, whatever is allowed.
TEST_F(Allow, MomentsInFp8AreNotConverted) {
  for (const std::string allow : {"", "--checkpoint.allow=recipe "}) {
    const ProgramResult result = go_on(allow + "--optimizer.state_dtype=fp8");
    EXPECT_TRUE(refused(result, 2, "octet: out/checkpoints/step-00000010: ",
                        "optimizer.state_dtype is \"fp32\" there and \"fp8\" here; moments in FP8 cannot become others"))
        << result.err;
  }
}

TEST_F(Allow, WhatChangesNoNumberNeedsNoName) {
  for (const std::string options : {"--training.micro_batch_size=1", "--precision.weight_transpose_cache=false",
                                    "--optimizer.lr=1e-3", "--precision.calibrate=false", "--precision.emulate=true",
                                    "--model.initializer_range=0.5", "--model.max_position_embeddings=64"}) {
    EXPECT_TRUE(says(go_on(options), "  changed since then: ")) << options;
  }
}

// Weights may go on in an architecture that takes them. `eval` computes with that of the checkpoint, too, unless it is allowed.
TEST_F(Allow, AnotherArchitecture) {
  const std::string eval = "eval run.toml --checkpoint first --model.rope_theta=77";
  EXPECT_TRUE(refused(run_.run(eval), 2, "model.rope_theta is 10000.0 there and 77.0 here", "--checkpoint.allow=model"));
  EXPECT_EQ(run_.run(eval + " --checkpoint.allow=model").code, 0);
  EXPECT_TRUE(
      says(go_on("--checkpoint.allow=model --model.rope_theta=77"), "  model: the weights go on in another architecture"));
  const std::string unfit =
      "model.num_hidden_layers is 2 there and 3 here; a run goes on with the weights that it began with, and only one of the "
      "models has model.layers.2.input_layernorm.weight [32]. ";
  const std::string other = "--checkpoint.allow=model --model.num_hidden_layers=3";
  const std::string remedy = "To begin a new run, give another run.output_dir, or --resume=none --run.set_aside=true";
  EXPECT_TRUE(refused(go_on(other), 76, unfit + remedy));
  EXPECT_TRUE(refused(run_.run("eval run.toml --checkpoint first " + other), 76, unfit + "Evaluate it with the configuration"));
  EXPECT_EQ(go_on(other + " --resume=none --run.set_aside=true").code, 0) << "the remedy";
}

// A dry run answers its question, and also says what the run itself would answer.
TEST_F(Allow, ADryRunWarnsOfARefusal) {
  const auto dry = [&](const std::string& options) { return go_on("--dry-run " + options); };
  for (const auto& [options, why] : std::map<std::string, std::string>{
           {"--model.num_hidden_layers=3", "only one of the models has model.layers.2.input_layernorm.weight [32]"},
           {"--precision.recipe=bf16", "precision.recipe is \"fp8_delayed\" there and \"bf16\" here. To go on"}}) {
    const ProgramResult result = dry(options);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("memory plan"), std::string::npos) << result.out;
    EXPECT_TRUE(says(result, "warning: without --dry-run this run would be refused: out/checkpoints: "));
    EXPECT_TRUE(says(result, why));
    EXPECT_TRUE(says(dry(options + " --resume=none"), "run would be refused: out: there is a run up to step "));
    EXPECT_EQ(dry(options + " --resume=none --run.set_aside=true").err, "");
    EXPECT_EQ(dry(options + " --resume=none --run.output_dir=new").err, "");
  }
  EXPECT_EQ(dry("--optimizer.lr=1e-3").err, "");
  EXPECT_EQ(dry("--precision.recipe=bf16 --checkpoint.allow=recipe").err, "");
}

TEST_F(Allow, AnUnknownNameIsAnsweredWithTheNearest) {
  EXPECT_TRUE(
      refused(go_on("--checkpoint.allow=recpie"), 2,
              "--checkpoint.allow=recpie: must be one of recipe | seed | seq_len | batch | data | model (did you mean recipe?)"));
  std::string toml = tiny_toml();
  toml.insert(toml.find("interval = 5"), "allow = [\"seed\", \"seqlen\"]\n");
  write_text(run_ / "listed.toml", toml);
  EXPECT_TRUE(refused(run_.run("train listed.toml"), 2, "listed.toml:", "seqlen", "(did you mean seq_len?)"));
}

// --- Another recipe ---------------------------------------------------------------------------------------------------------

// FP8 -> BF16 -> FP8 follows the runs that never change. Two runs differ by the rounding of their recipes; a run that does a part
// of its steps in either is perturbed by no more roundings than the FP8 run, whose distance from the BF16 run is therefore the
// yardstick. Twice that, because the perturbations need not have the same signs.
TEST_F(Allow, LossesGoOnAcrossRecipes) {
  const auto train = [&](const std::string& folder, int steps, const std::string& recipe) {
    EXPECT_EQ(
        run_.train(concat("--lr_scheduler.decay=constant --checkpoint.interval=0 --checkpoint.allow=recipe --run.output_dir=",
                          folder, " --training.steps=", steps, " --precision.recipe=", recipe))
            .code,
        0);
    std::map<std::int64_t, double> losses;
    for (const auto& [step, line] : metrics_of(run_ / folder)) losses[step] = line["loss"];
    return losses;
  };
  const auto bf16 = train("bf16", 40, "bf16"), fp8 = train("fp8", 40, "fp8_delayed");
  double distance = 0;
  for (const auto& [step, loss] : fp8) distance = std::max(distance, std::abs(loss - bf16.at(step)));
  EXPECT_GT(distance, 0);
  train("mixed", 12, "fp8_delayed");
  train("mixed", 25, "bf16");
  const auto mixed = train("mixed", 40, "fp8_delayed");
  ASSERT_EQ(mixed.size(), 40u);
  for (const auto& [step, loss] : mixed) {
    EXPECT_NEAR(loss, bf16.at(step), 2 * distance) << "step " << step;
    EXPECT_NEAR(loss, fp8.at(step), 2 * distance) << "step " << step;
    EXPECT_TRUE(step > 12 || loss == fp8.at(step)) << "step " << step;
  }
  const std::string changes =
      "step 12: precision.recipe \"fp8_delayed\" -> \"bf16\"; step 12: training.steps 12 -> 25; "
      "step 25: precision.recipe \"bf16\" -> \"fp8_delayed\"; step 25: training.steps 25 -> 40";
  EXPECT_EQ(json_of(read_file(run_ / "mixed/run.json"))["changes"], changes);
}

// A run may go back to a checkpoint of the recipe before.
TEST_F(Allow, ARollbackCrossesTheChangeOfRecipe) {
  for (const std::string recipe : {"bf16", "fp8_delayed --precision.amax_history_len=4"}) {
    const ProgramResult result =
        go_on("--training.steps=40 --checkpoint.allow=recipe --optimizer.lr=1e30 --anomaly.max_rollbacks=1 --precision.recipe=" +
              recipe);
    EXPECT_EQ(result.code, 77) << result.err;
    EXPECT_NE(result.err.find("; back to step 10, past the batches up to sample "), std::string::npos) << result.err;
    std::size_t calibrated = 0;
    for (std::size_t at = 0; (at = result.err.find("scales calibrated in ", at)) != std::string::npos; ++at) ++calibrated;
    EXPECT_EQ(calibrated, recipe == "bf16" ? 0u : 2u) << result.err;
  }
}

TEST_F(Allow, RanksChangeTheRecipeTogether) {
  const auto losses = [&](const std::string& how, const std::string& options) {
    EXPECT_TRUE(says(go_on("--checkpoint.allow=recipe,seq_len --precision.recipe=fp8_current --training.seq_len=64 "
                           "--training.micro_batch_size=1 " +
                               options,
                           how),
                     "FP8 scales begin anew"));
    std::map<std::int64_t, double> result;
    for (const auto& [step, line] : metrics_of(run_ / "out")) result[step] = line["loss"];
    return result;
  };
  const auto one = losses("", ""), two = losses("launch -n 2 -- ", "--parallel.shard=2");
  ASSERT_EQ(one.size(), 20u);
  // Only the order of sums differs.
  for (const auto& [step, loss] : one) EXPECT_NEAR(two.at(step), loss, step <= 11 ? 1e-5 : 1e-2) << step;
}

// --- Another length, batch, seed or corpus ----------------------------------------------------------------------------------

// The windows that are left: the training text, without the 40 sequences of 32 tokens that were seen, in sequences of 64.
TEST_F(Allow, AnotherSequenceLengthCutsTheRestOfTheEpochAnew) {
  const std::int64_t samples = meta_of(run_ / "first")["cursor"];
  EXPECT_EQ(samples, 40);
  const std::string options = "--checkpoint.allow=seq_len --training.seq_len=64 ";
  EXPECT_TRUE(says(go_on(options), "  changed since then: training.seq_len: 32 -> 64\n"));
  const nlohmann::json meta = meta_of(run_ / "out");
  EXPECT_EQ(meta["cursor"], 40) << "of the new sequences";
  EXPECT_EQ(meta["stretches"], nlohmann::json::parse(R"([{"samples":40,"seed":42,"seq_len":32}])"));
  EXPECT_EQ(meta["tokens_seen"], 10 * 4 * 32 + 10 * 4 * 64);
  EXPECT_EQ(meta["changes"], nlohmann::json::parse(R"([{"step":10,"key":"training.seq_len","before":"32","now":"64"},
                                                       {"step":10,"key":"training.steps","before":"10","now":"20"}])"));
  EXPECT_EQ(json_of(read_file(run_ / "out/run.json"))["changes"],
            "step 10: training.seq_len 32 -> 64; step 10: training.steps 10 -> 20");
  // A run that stops once more, and needs no permission then, ends with the same bits.
  copy("out", "reference");
  fs::copy(run_ / "out/model", run_ / "reference/model");
  EXPECT_TRUE(says(go_on(options + "--training.steps=15"), "  seq_len: the unseen tokens of this epoch are now "));
  const ProgramResult again = run_.train("--training.seq_len=64 --training.steps=20 --checkpoint.interval=0");
  EXPECT_TRUE(says(again, "resuming after step 15 from"));
  EXPECT_EQ(again.err.find("seq_len"), std::string::npos) << again.err;
  EXPECT_EQ(meta_of(run_ / "out")["stretches"], meta["stretches"]);
  EXPECT_EQ(meta_of(run_ / "out")["cursor"], 40);
  // And back to the first length.
  EXPECT_TRUE(
      says(run_.train("--checkpoint.allow=seq_len --training.steps=22 --checkpoint.interval=0"), "sequences of 32 tokens\n"));
  EXPECT_EQ(meta_of(run_ / "out")["stretches"],
            nlohmann::json::parse(R"([{"samples":40,"seed":42,"seq_len":32},{"samples":40,"seed":42,"seq_len":64}])"));
  EXPECT_EQ(meta_of(run_ / "out")["cursor"], 8);
}

TEST_F(Allow, AnInterruptionAfterTheChangeChangesNoBit) {
  const std::string options = "--checkpoint.allow=seq_len,seed --training.seq_len=64 --run.seed=7 ";
  const std::string log = " --metrics.health_freq=0 --evaluation.sequences=0 --lr_scheduler.decay=constant";
  const auto outcome = [&] {
    auto result = outcome_of(run_ / "out");
    nlohmann::json meta = nlohmann::json::parse(result.at("meta"));
    meta.erase("changes");  // the steps of the run change once more
    result.at("meta") = meta.dump();
    return result;
  };
  ASSERT_EQ(go_on(options + log).code, 0);
  const auto whole = outcome();
  ASSERT_EQ(go_on(options + log + " --training.steps=15").code, 0);
  ASSERT_EQ(run_.train(options + log + " --training.steps=20 --checkpoint.interval=0").code, 0);
  EXPECT_TRUE(same_outcome(outcome(), whole));
}

TEST_F(Allow, AnotherBatchGoesOnWithTheNextSequence) {
  EXPECT_TRUE(says(go_on("--checkpoint.allow=batch --training.global_batch_size=6"),
                   "  batch: the data go on with the next sequence; the schedule still counts steps\n"));
  const nlohmann::json meta = meta_of(run_ / "out");
  EXPECT_EQ(meta["cursor"], 10 * 4 + 10 * 6);
  EXPECT_TRUE(meta["stretches"].empty());
  EXPECT_EQ(meta["tokens_seen"], 32 * (10 * 4 + 10 * 6));
  EXPECT_EQ(metrics_of(run_ / "out").size(), 20u);
}

// Epochs count samples: what the old batch has used is not used again.
TEST_F(Allow, EpochsCountWhatIsLeftInTheNewBatch) {
  const auto steps_of = [](const fs::path& run) { return meta_of(run)["steps"].get<std::int64_t>(); };
  ASSERT_EQ(run_.train("--training.epochs=3 --checkpoint.interval=0").code, 0);
  const std::int64_t all = steps_of(run_ / "out");  // of 4 sequences
  ASSERT_GT(all, 12);
  for (const auto& [options, tokens_per_step] :
       std::vector<std::pair<std::string, std::int64_t>>{{"--training.global_batch_size=8", 8 * 32},
                                                         {"--training.seq_len=64", 4 * 64},
                                                         {"--training.global_batch_size=2", 2 * 32}}) {
    ASSERT_EQ(go_on("--training.epochs=3 --checkpoint.allow=batch,seq_len " + options).code, 0) << options;
    const std::int64_t steps = steps_of(run_ / "out");
    EXPECT_EQ(metrics_of(run_ / "out").rbegin()->first, steps);
    // As many tokens as the run that did not change, but for a step of the old run, a step of this run and a window cut
    // otherwise.
    EXPECT_NEAR(static_cast<double>(meta_of(run_ / "out")["tokens_seen"].get<std::int64_t>()), static_cast<double>(all * 128),
                static_cast<double>(128 + tokens_per_step + 3 * 64))
        << options;
    // Going on unchanged changes no number of steps.
    fs::remove_all(run_ / "out/model");
    ASSERT_EQ(run_.train("--training.epochs=3 --checkpoint.interval=0 " + options).code, 0);
    EXPECT_EQ(steps_of(run_ / "out"), steps) << options;
  }
}

TEST_F(Allow, AnotherSeedOrdersTheRestOfTheEpoch) {
  EXPECT_TRUE(says(go_on("--checkpoint.allow=seed --run.seed=7"), "  seed: the unseen "));
  const nlohmann::json meta = meta_of(run_ / "out");
  EXPECT_EQ(meta["stretches"], nlohmann::json::parse(R"([{"samples":40,"seed":42,"seq_len":32}])"));
  EXPECT_EQ(meta["cursor"], 40);
  EXPECT_EQ(meta["seed"], 7);
}

TEST_F(Allow, OtherDataBeginAtTheirBeginning) {
  write_corpus(run_ / "second", tiny_documents(30));
  const std::string second = "--data.source.0.path=second";
  EXPECT_TRUE(refused(go_on(second), 2, "data.source.0 is corpus (24 documents, ", " there and second (30 documents, ",
                      "--checkpoint.allow=data"));
  EXPECT_TRUE(says(go_on("--checkpoint.allow=data " + second),
                   "  data: the run reads its data from their beginning; the schedule goes on\n"));
  EXPECT_EQ(meta_of(run_ / "out")["cursor"], 40);
  EXPECT_TRUE(meta_of(run_ / "out")["stretches"].empty());
  EXPECT_TRUE(refused(go_on("--data.source.1.path=second"), 2, "data.source.1 is absent there and second (30 documents, "));
  EXPECT_TRUE(says(go_on("--checkpoint.allow=data --data.source.1.path=second"), "  data: "));
  // Text that is only held out is no matter of the cursor.
  const std::string held_out = " --data.source.0.split=train --data.source.1.split=validation --data.source.1.path=";
  ASSERT_EQ(go_on("--checkpoint.allow=data" + held_out + "second").code, 0);
  write_corpus(run_ / "third", tiny_documents(31));
  const ProgramResult other = run_.train("--training.steps=22" + held_out + "third");
  EXPECT_TRUE(says(other, "resuming after step 20 from"));
  EXPECT_EQ(other.err.find("data: "), std::string::npos) << other.err;
  // A corpus that has moved is the same.
  for (const std::string end : {".bin", ".idx", ".json"}) fs::rename(run_ / ("corpus" + end), run_ / ("moved" + end));
  EXPECT_TRUE(says(go_on("--data.source.0.path=moved"), "  changed since then: data.source.0.path: \"corpus\" -> \"moved\"\n"));
  EXPECT_EQ(meta_of(run_ / "out")["cursor"], 80);
}

TEST_F(Allow, TheReportSaysWhatChanged) {
  ASSERT_EQ(go_on("--checkpoint.allow=recipe,batch --precision.recipe=bf16 --training.global_batch_size=8").code, 0);
  ASSERT_EQ(run_.run("report out").code, 0);
  const std::string page = read_file(run_ / "out/report.html");
  EXPECT_NE(page.find("step 10: precision.recipe &quot;fp8_delayed&quot; -&gt; &quot;bf16&quot;; step 10: "
                      "training.global_batch_size 4 -&gt; 8"),
            std::string::npos);
}

}  // namespace
}  // namespace octet::testing

// Several processes train together and give the run of one process, whatever happens to them.
#include <chrono>
#include <csignal>
#include <future>

#include "end_to_end/ranks_cases.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

std::string together(int ranks, const std::string& options = "") {
  return concat("launch -n ", ranks, " -- train run.toml --training.micro_batch_size=1 --parallel.replicate=", ranks, " ",
                options);
}

INSTANTIATE_TEST_SUITE_P(Delayed, RanksTogether, ::testing::ValuesIn(together_in("fp8_delayed")), name_of_run);

// ranks_long_test.cpp goes through more meshes.
TEST(Ranks, ACheckpointOfAMeshResumesOnAnother) {
  expect_a_run_from_mesh_to_mesh(
      kOfMeshes + "fp8_block",
      {on_mesh(4, "--parallel.shard=4 --parallel.gradients=sharded --parallel.reshard_after_forward=true"),
       on_mesh(4, "--parallel.replicate=2 --parallel.shard=2"), on_mesh(4, "--parallel.shard=2 --parallel.context=2"),
       "train run.toml", on_mesh(4, "--parallel.shard=2 --parallel.tensor=2 --parallel.reshard_after_forward=true"),
       on_mesh(2, "--parallel.tensor=2")});
}

TEST(Ranks, WhatAllWouldSayTheFirstSays) {
  const TinyRun run;
  Json info = json_of(read_file(run / "corpus.json"));
  info.erase("largest_token");  // as in corpora of earlier versions, of which a smaller vocabulary is warned
  write_text(run / "corpus.json", info.dump());
  const ProgramResult result =
      run.run(together(4, "--training.steps=2 --model.vocab_size=240 --optimizer.lr=1e30 --checkpoint.interval=0"));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (std::size_t at = result.err.find(part); at != std::string::npos; at = result.err.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("its vocabulary has 256 tokens, the model's 240"), 1) << result.err;
  EXPECT_EQ(count("step 2: loss or gradient not finite; skipped"), 1) << result.err;
  EXPECT_EQ(count("[1] ") + count("[2] ") + count("[3] "), 0) << result.err;
}

// Each checkpoint is written by ranks that hold some of the experts and read by ranks that hold others.
TEST(Ranks, ShareExpertsOutAndResumeWithOthers) {
  expect_a_run_from_mesh_to_mesh(
      kOfMixtures,
      {on_mesh(4, "--parallel.expert=2 --parallel.gradients=sharded --parallel.reshard_after_forward=true"),
       on_mesh(4, "--parallel.replicate=2 --parallel.expert=2"), on_mesh(2, "--parallel.expert=2 --parallel.expert_lanes=2"),
       "train run.toml", on_mesh(4, "--parallel.context=2 --parallel.expert=2 --parallel.reshard_after_forward=true")},
      expect_export_of_checkpoint);
}

// Expects that a plan for four GPUs is refused, with this text.
void expect_refusal(const std::string& options, const std::string& text) {
  const TinyRun run;
  const ProgramResult result = run.run("plan run.toml --gpus 4xH100 --training.micro_batch_size=1 " + options);
  EXPECT_EQ(result.code, static_cast<int>(ExitCode::config)) << options << "\n" << result.err;
  EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
}

TEST(Ranks, RefuseExpertsThatCannotBeSharedOut) {
  expect_refusal("--parallel.expert=2", "parallel.expert = 2: the model has no experts");
  const std::string six = "--model.model_type=mixtral --model.num_local_experts=6 --model.num_experts_per_tok=2 ";
  expect_refusal(six + "--parallel.expert=4", "parallel.expert = 4: must divide the 6 experts of a layer");
  expect_refusal(six + "--parallel.expert=3", "parallel.expert = 3: must divide parallel.shard = 4");
  expect_refusal(six + "--parallel.expert_lanes=2",
                 "parallel.expert_lanes = 2 with parallel.expert = 1: there is no exchange to hide");
  expect_refusal(six + "--parallel.expert=2 --parallel.expert_lanes=2 --training.global_batch_size=4",
                 "parallel.expert_lanes = 2 with 1 micro-batch a step on each rank: must be a multiple of 2");
}

// The file of a run on several ranks names its mesh.
TEST(Ranks, AreNotNeededToEvaluate) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=1").code, 0);
  const std::string eval = "eval run.toml --checkpoint out --json ";
  const std::string expected = run.run(eval).out;
  EXPECT_NE(expected.find("eval_loss"), std::string::npos) << expected;
  for (const char* mesh : {"--parallel.shard=2", "--parallel.tensor=2", "--parallel.pipeline=2 --parallel.context=2"}) {
    const ProgramResult result = run.run(eval + mesh);
    EXPECT_EQ(result.out, expected) << mesh << "\n" << result.err;
  }
}

// Stages write what other stages read, and a mesh without stages goes on from it.
TEST(Ranks, PassMicroBatchesThroughStagesAndResumeWithOthers) {
  const std::string deep = " --model.num_hidden_layers=4 --training.micro_batch_size=1";
  expect_a_run_from_mesh_to_mesh(
      deep,
      {on_mesh(4, "--parallel.pipeline=2 --parallel.reshard_after_forward=true --parallel.gradients=sharded"),
       on_mesh(4, "--parallel.pipeline=4"), "train run.toml",
       on_mesh(2, "--parallel.pipeline=2 --parallel.pipeline_schedule=interleaved --parallel.pipeline_chunks=2")},
      expect_export_of_checkpoint);
}

TEST(Ranks, SayHowLongStagesWaitForEachOther) {
  const TinyRun run;
  const std::string steps =
      " --training.steps=4 --metrics.log_freq=2 --model.num_hidden_layers=4 --training.micro_batch_size=1 --run.output_dir=";
  const ProgramResult two = run.run("launch -n 2 -- train run.toml --parallel.pipeline=2" + steps + "two");
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_NE(two.out.find("  bubble "), std::string::npos) << two.out;
  const auto lines = metrics_of(run / "two");
  ASSERT_EQ(lines.size(), 3u) << "steps 1, 2 and 4";
  for (const auto& [step, line] : lines) {
    const double bubble = line["pipeline_bubble_s"];
    EXPECT_GT(bubble, 0) << step;
    EXPECT_GE(line["comm_exposed_s"].get<double>(), 0) << step;
  }
  ASSERT_EQ(run.run("train run.toml" + steps + "one").code, 0);
  for (const auto& [step, line] : metrics_of(run / "one")) EXPECT_EQ(line["pipeline_bubble_s"], nullptr);
}

TEST(Ranks, RefuseStagesThatCannotBe) {
  const std::string four = "--model.num_hidden_layers=4 ", chunks = "--parallel.pipeline_schedule=interleaved --parallel.pipeline_chunks=2 ";
  expect_refusal("--parallel.pipeline=4 --model.num_hidden_layers=2", "parallel.pipeline = 4: the model has 2 blocks");
  expect_refusal("--parallel.pipeline=4 --model.num_hidden_layers=7", "parallel.pipeline = 4: must divide the 7 blocks, or 9,");
  expect_refusal(four + "--parallel.pipeline=2 --model.tie_word_embeddings=true", "the model's head is tied to its embedding");
  expect_refusal(four + "--parallel.pipeline_schedule=interleaved --parallel.pipeline=2", "parallel.pipeline_chunks = 1");
  expect_refusal(four + "--parallel.pipeline_chunks=2 --parallel.pipeline=2", "parallel.pipeline_chunks = 2");
  expect_refusal(four + chunks + "--parallel.pipeline=4 --training.global_batch_size=6", "must be a multiple of parallel.pipeline = 4");
  expect_refusal(four + chunks, "there is one stage");
}

// However a mesh keeps its weights and gradients, it computes the same and writes the same model. The feed-forward layer is so
// wide that it is written in pieces.
TEST(Ranks, WriteTheModelOfTheirParts) {
  const TinyRun run;
  const auto sharded = [](const char* layout, const char* out) {
    return concat(
        "launch -n 4 -- train run.toml --training.micro_batch_size=1 --training.steps=2 --model.num_hidden_layers=1 "
        "--model.intermediate_size=40000 ",
        layout, " --run.output_dir=", out);
  };
  ASSERT_EQ(run.run(sharded("", "kept")).code, 0);
  ASSERT_EQ(run.run(sharded("--parallel.reshard_after_forward=true", "resharded")).code, 0);
  ASSERT_EQ(run.run(sharded("--parallel.tensor=2", "tensor")).code, 0);
  // The checkpoint of several ranks holds the model that they write.
  ASSERT_EQ(run.run("convert export --checkpoint tensor/checkpoints/step-00000002 --output exported").code, 0);
  EXPECT_EQ(read_file(run / "exported/model.safetensors"), read_file(run / "tensor/model/model.safetensors"));
  EXPECT_EQ(read_file(run / "resharded/model/model.safetensors"), read_file(run / "kept/model/model.safetensors"));
  // The exported weights are the rounded weights of the checkpoint.
  const ProgramResult evaluated =
      run.run(concat("eval run.toml --model.num_hidden_layers=1 --model.intermediate_size=40000 --checkpoint ",
                     checkpoint::find_checkpoints(run / "kept/checkpoints").front().path.string()));
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(run.run("generate --model kept/model --prompt the --max-tokens 4").code, 0);
}

// Before its first step, an FP8 run prints the loss in BF16. On any mesh it must be that of one rank, except for the order of
// sums.
TEST(Ranks, SayTheLossOfTheWeightsTheyGoOnFrom) {
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=5").code, 0);
  const auto losses = [&](const std::string& how, const std::string& options) {
    const ProgramResult result =
        run.run(how +
                "train run.toml --model.init_from=out/model --training.micro_batch_size=1 --training.steps=1 "
                "--run.output_dir=more --checkpoint.resume=none --run.set_aside=true --precision.recipe=fp8_current " +
                options);
    EXPECT_EQ(result.code, 0) << result.err;
    return json_of(read_file(run / "more/run.json"));
  };
  const Json one = losses("", "");
  for (const char* mesh :
       {"", "--parallel.reshard_after_forward=true", "--parallel.tensor=2", "--parallel.context=2 --parallel.replicate=2"}) {
    const Json four = losses("launch -n 4 -- ", mesh);
    const double loss = one["initial_eval_loss_bf16"].get<double>();
    EXPECT_NEAR(four["initial_eval_loss_bf16"].get<double>(), loss, 0x1p-9 * loss) << mesh;
  }
}

TEST(Ranks, KeepDocumentsApart) {
  const TinyRun run(tiny_documents(2000, 4));  // about one document to a sequence of 32 tokens
  const std::string options =
      "--training.steps=6 --training.micro_batch_size=1 --lr_scheduler.decay=constant --precision.recipe=bf16 ";
  const std::string masked = options + "--data.document_mask=true --run.output_dir=";
  ASSERT_EQ(run.run(together(1, options + "--run.output_dir=without")).code, 0);
  ASSERT_EQ(run.run(together(1, masked + "one")).code, 0);
  const ProgramResult result = run.run("launch -n 2 -- train run.toml --parallel.context=2 " + masked + "two");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(same_curve(run / "two", run / "one", 1e-3));
  EXPECT_FALSE(same_curve(run / "without", run / "one", 1e-6));
}

const std::string kPacked =
    "--data.packing=documents --training.micro_batch_size=1 --lr_scheduler.decay=constant --training.steps=6 ";

TEST(PackedRuns, AreTheSameOnEveryMesh) {
  const TinyRun run(tiny_documents(1000, 5));
  const std::string options = kPacked + "--precision.recipe=bf16 --run.output_dir=";
  const ProgramResult one = run.train(options + "one");
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_NE(one.err.find(" packed into "), std::string::npos) << one.err;
  for (const std::string mesh : {"context", "tensor", "replicate"}) {
    const ProgramResult two = run.run("launch -n 2 -- train run.toml --parallel." + mesh + "=2 " + options + mesh);
    ASSERT_EQ(two.code, 0) << two.err;
    EXPECT_TRUE(same_curve(run / mesh, run / "one", 1e-3)) << mesh;
  }
  ASSERT_EQ(run.train(options + "stream --data.packing=stream --data.document_mask=true").code, 0);
  EXPECT_FALSE(same_curve(run / "stream", run / "one", 1e-6));
}

TEST(PackedRuns, GoOnToTheBit) {
  const TinyRun run(tiny_documents(1000, 5));
  const std::string options = kPacked + "--precision.recipe=fp32 --run.output_dir=";
  ASSERT_EQ(run.train(options + "whole").code, 0);
  ASSERT_EQ(run.train(options + "parts --training.steps=3").code, 0);
  const ProgramResult other = run.train(options + "parts --data.packing=stream");
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find(R"(data.packing is "documents" there and "stream" here)"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("--checkpoint.allow=data"), std::string::npos) << other.err;
  // Packing masks documents anyway.
  ASSERT_EQ(run.train(options + "parts --data.document_mask=true").code, 0);
  EXPECT_EQ(read_file(run / "parts/model/model.safetensors"), read_file(run / "whole/model/model.safetensors"));
}

TEST(Ranks, OneThatIsKilledEndsTheOthersByName) {
  const TinyRun run;
  Process process(together(3, "--training.global_batch_size=3 --training.steps=100000 --checkpoint.interval=0"), run.path());
  ASSERT_TRUE(process.read_to_step(3));
  const pid_t victim = run.pid_of_rank(2);
  ASSERT_GT(victim, 1);
  signal_process(victim, SIGKILL);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_NE(result.err.find("octet launch: rank 2 was killed by signal 9 (SIGKILL)\n"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("octet: rank 0: all_reduce of group replicate of ranks 0, 1, 2 failed: step "), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find(": rank 2 closed its connection"), std::string::npos) << result.err;
}

TEST(Ranks, AStageThatIsKilledEndsTheOthersByName) {
  const TinyRun run;
  Process process("launch -n 2 -- train run.toml --parallel.pipeline=2 --training.micro_batch_size=1 --training.steps=100000 "
                  "--checkpoint.interval=0",
                  run.path());
  ASSERT_TRUE(process.read_to_step(3));
  const pid_t victim = run.pid_of_rank(1);
  ASSERT_GT(victim, 1);
  signal_process(victim, SIGKILL);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_NE(result.err.find("octet launch: rank 1 was killed by signal 9 (SIGKILL)\n"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(" of ranks 0, 1 failed: step "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find(": rank 1 (stage 1) closed its connection"), std::string::npos) << result.err;
}

// A stopped rank is like one that hangs: its connections stay open.
TEST(Ranks, OneThatIsSilentEndsTheOthersByName) {
  const auto expect = [](int silent) {
    const TinyRun run;
    Process process(
        "launch -n 3 --grace 2 -- train run.toml --training.micro_batch_size=1 --parallel.replicate=3 "
        "--training.global_batch_size=3 --training.steps=100000 --checkpoint.interval=0",
        run.path());
    ASSERT_TRUE(process.read_to_step(3)) << process.wait().err;
    const pid_t victim = run.pid_of_rank(silent);
    ASSERT_GT(victim, 1);
    const auto begin = std::chrono::steady_clock::now();
    signal_process(victim, SIGSTOP);
    const ProgramResult result = process.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 60) << "ten seconds of silence, two of grace, and what a busy machine adds";
    EXPECT_EQ(result.code, static_cast<int>(ExitCode::peer)) << result.err;
    const std::string operation = " of group replicate of ranks 0, 1, 2 failed: step ";
    const std::string cause = concat(": rank ", silent, " has been silent for 10 s");
    for (const int r : {0, 1, 2}) {
      const std::size_t at = result.err.find(concat("octet: rank ", r, ": "));
      ASSERT_EQ(at == std::string::npos, r == silent) << result.err;
      if (r == silent) continue;
      const std::string sentence = result.err.substr(at, result.err.find('\n', at) - at);
      EXPECT_NE(sentence.find(operation), std::string::npos) << result.err;
      EXPECT_NE(sentence.find(cause), std::string::npos) << result.err;
    }
    EXPECT_NE(result.err.find("ended with code 78\n"), std::string::npos) << result.err;
    for (const int r : {0, 1, 2}) EXPECT_EQ(run.pid_of_rank(r), -1) << "rank " << r << " is still there";
  };
  // Runs both cases at once, because each waits for ten seconds.
  const auto other = std::async(std::launch::async, expect, 1);
  expect(0);
}

TEST(Ranks, ASignalSavesAndTheRunGoesOn) {
  const TinyRun run;
  Process process(together(2, "--training.steps=100000 --checkpoint.interval=0"), run.path());
  ASSERT_TRUE(process.read_to_step(5));
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  ASSERT_EQ(checkpoint::find_checkpoints(run / "out/checkpoints").size(), 1u);
  const std::int64_t saved = checkpoint::find_checkpoints(run / "out/checkpoints").front().step;
  const ProgramResult resumed = run.run(together(2, concat("--training.steps=", saved + 3)));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(metrics_of(run / "out").rbegin()->first, saved + 3);
}

TEST(Ranks, RefuseWhatTheyCannotDo) {
  const TinyRun run;
  const auto refused_with = [&](const std::string& arguments, const std::string& part) {
    const ProgramResult result = run.run(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  const auto tensor_refused_with = [&](int ranks, const std::string& options, const std::string& part) {
    refused_with(concat("launch -n ", ranks, " -- train run.toml --parallel.tensor=", ranks, " ", options),
                 "run.toml: " + part + "\n");
  };
  tensor_refused_with(8, "", "num_attention_heads = 4: must be a multiple of parallel.tensor = 8");
  tensor_refused_with(3, "--model.num_attention_heads=12 --model.hidden_size=96",
                      "num_key_value_heads = 2: must be a multiple of parallel.tensor = 3, or divide it");
  tensor_refused_with(
      2, "--model.model_type=olmo2",
      "parallel.tensor = 2: olmo2 has a norm over all heads, which the tensor axis would cut. Use parallel.shard or "
      "parallel.context");
  tensor_refused_with(4, "", "num_attention_heads x head_dim = 32: must be a multiple of 16 x parallel.tensor = 4");
  tensor_refused_with(2, "--model.intermediate_size=48",
                      "intermediate_size = 48: must be a multiple of 16 x parallel.tensor = 2");
  tensor_refused_with(2, "--model.vocab_size=257", "vocab_size = 257: must be a multiple of parallel.tensor = 2");
  tensor_refused_with(2, "--training.seq_len=31 --training.micro_batch_size=1",
                      "training.micro_batch_size x training.seq_len / parallel.context = 31: must be a multiple of "
                      "parallel.tensor = 2");
  refused_with("launch -n 2 -- train run.toml --parallel.replicate=3", "run.toml: parallel.replicate = 3: must divide the number of ranks, 2\n");
  refused_with("launch -n 2 -- train run.toml --parallel.context=2 --training.seq_len=30",
               "run.toml: training.seq_len = 30: must be a multiple of 4, twice parallel.context = 2\n");
  refused_with("launch -n 2 -- compare run.toml --recipes bf16,fp8_block",
               "`octet compare` runs in one process, but torchrun says that there are 2 ranks");
  // Two ranks that were started by hand with different settings.
  const std::string other =
      "exec sh -c 'MASTER_ADDR=127.0.0.1 MASTER_PORT=29611 WORLD_SIZE=2; export MASTER_ADDR MASTER_PORT WORLD_SIZE; "
      "RANK=1 LOCAL_RANK=1 \"$@\" --optimizer.lr=1e-4 2>other.err & RANK=0 LOCAL_RANK=0 \"$@\"; code=$?; wait; exit $code' sh";
  const ProgramResult result = run.run("train run.toml --parallel.replicate=2", other);
  EXPECT_EQ(result.code, 78) << result.err;
  EXPECT_NE(result.err.find("configuration"), std::string::npos) << result.err;
  EXPECT_NE(read_file(run / "other.err").find("configuration"), std::string::npos);
}

}  // namespace
}  // namespace octet::testing

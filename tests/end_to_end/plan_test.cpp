// `octet plan` predicts memory, traffic and time of a run on GPUs that the machine does not have.
#include <algorithm>
#include <set>

#include "octet/base/require.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

class Plan : public ::testing::Test {
 protected:
  ProgramResult plan(const std::string& options) const { return run_.run("plan run.toml " + options); }
  Json plan_json(const std::string& options) const {
    const ProgramResult result = plan("--json " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    return json_of(result.out);
  }
  TinyRun run_;
};

std::string memory_part(const std::string& text) {
  const std::size_t begin = text.find("  weights"), total = text.find("  total");
  return text.substr(begin, text.find('\n', total) + 1 - begin);
}

ProgramResult plan_config(const std::string& arguments) { return run_program("plan " + arguments, source_dir()); }

// There is a time for every op of every family.
TEST_F(Plan, OfEveryFamilyIsInNumbers) {
  for (const std::string arguments : {"mistral-7b.toml --gpus 4xH200", "pythia-1.4b.toml --gpus 1xH200",
                                      "mixtral-8x7b.toml --gpus 8xH200 --activation_checkpoint.mode=full",
                                      "mixtral-8x7b.toml --gpus 8xH200 --activation_checkpoint.mode=full --parallel.expert=8"}) {
    const ProgramResult result = plan_config("configs/" + arguments);
    EXPECT_EQ(result.code, 0) << arguments << result.err;
    EXPECT_EQ(result.out.find("nan"), std::string::npos) << arguments << result.out;
    EXPECT_NE(result.out.find(" tok/s/gpu"), std::string::npos) << arguments << result.out;
  }
}

TEST_F(Plan, SaysMemoryTrafficAndTime) {
  const ProgramResult result = plan("--gpus 4xH100 --training.micro_batch_size=1 --training.global_batch_size=8");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"on 4 H100 in one node\n", "shard 4; weights kept, gradients whole, checkpointing none\n",
                           "micro-batches of 1 x 32 tokens to a step", "an estimate: cuDNN was not asked for ",
                           "CUDA's context and libraries", "NCCL's buffers", "fits the 79.1 GiB of an H100",
                           "shard x context  reduce_scatter", "over the network", "tok/s/gpu", "bound by"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

// The plan gives the same memory as a rank's dry run, to the byte.
TEST_F(Plan, MemoryIsThatOfTheDryRun) {
  for (const std::string layout : {"--parallel.replicate=2 --parallel.shard=2", "--parallel.reshard_after_forward=true",
                                   "--parallel.gradients=sharded --training.reduce_dtype=bf16",
                                   "--parallel.pipeline=4 --model.num_hidden_layers=4 --training.global_batch_size=8 "
                                   "--activation_checkpoint.mode=full --activation_checkpoint.layers=1"}) {
    const std::string options = layout + " --training.micro_batch_size=1 --run.device=cuda";
    const ProgramResult dry =
        run_.run("train run.toml --dry-run " + options,
                 "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=1 exec env");
    ASSERT_EQ(dry.code, 0) << dry.err;
    EXPECT_EQ(memory_part(plan("--gpus 4xH200 " + options).out), memory_part(dry.out)) << layout;
  }
}

TEST_F(Plan, IsJsonForPrograms) {
  const Json plan = plan_json("--gpus 4xH100 --nodes 2 --training.micro_batch_size=1 --training.global_batch_size=8");
  EXPECT_TRUE(plan["parameters"].is_number_integer()) << plan["parameters"];
  EXPECT_EQ(plan["gpu"], "H100");
  EXPECT_EQ(plan["gpus"], 4);
  EXPECT_EQ(plan["nodes"], 2);
  EXPECT_EQ(plan["layout"]["shard"], 4);
  EXPECT_EQ(plan["layout"]["weights"], "kept");
  EXPECT_EQ(plan["layout"]["gradients"], "whole");
  EXPECT_EQ(plan["layout"]["micro_batches"], 2);
  EXPECT_TRUE(plan["fits"]);
  const Json& memory = plan["memory_bytes"];
  std::int64_t sum = 0;
  for (const char* name : {"weights", "master weights", "moments", "gradients", "activations", "workspace", "state"}) {
    sum += memory[name].get<std::int64_t>();
  }
  EXPECT_EQ(memory["total"], sum);
  EXPECT_EQ(memory["needed"], sum + memory["context"].get<std::int64_t>() + memory["nccl"].get<std::int64_t>());
  // With two ranks in each node, a ring leaves the node in one of two places, so NVLink and the network carry the same bytes.
  EXPECT_GT(plan["network_bytes"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(plan["network_bytes"].get<double>(), plan["nvlink_bytes"].get<double>());
  double sent = 0;
  for (const Json& exchange : plan["exchanges"]) sent += exchange["bytes"].get<double>();
  EXPECT_DOUBLE_EQ(sent, plan["network_bytes"].get<double>() + plan["nvlink_bytes"].get<double>());
  // With kept weights and whole gradients, another micro-batch sends nothing more.
  for (const Json& exchange : plan["exchanges"]) EXPECT_EQ(exchange["bytes_each_micro_batch"], 0.0) << exchange;
  const Json& predicted = plan["predicted"];
  EXPECT_NEAR(predicted["step_s"].get<double>(),
              predicted["compute_s"].get<double>() + predicted["memory_s"].get<double>() + predicted["exposed_s"].get<double>(),
              1e-12);
  EXPECT_DOUBLE_EQ(predicted["tokens_per_s_per_gpu"].get<double>(), 8 * 32 / 4 / predicted["step_s"].get<double>());
  for (const char* key : {"tflops_per_gpu", "mfu_pct", "wire_s"}) EXPECT_GT(predicted[key].get<double>(), 0) << key;
  EXPECT_GT(plan["ops"].size(), 10u);
  EXPECT_EQ(plan_json("--gpus 1xH100")["nvlink_bytes"], 0.0);
}

// Each of 16 ranks in two nodes sends an equal share of its tokens to each of 15 others, of which 8 are in the other node. Its
// adapter sends 40 GB/s.
TEST_F(Plan, TokensForExpertsOfOtherNodesCrossTheNetwork) {
  const ProgramResult result = plan_config(
      "configs/qwen3-30b-a3b.toml --gpus 16xH100 --model.num_hidden_layers=2 --training.global_batch_size=16 "
      "--training.micro_batch_size=1 --parallel.expert=16 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json plan = json_of(result.out);
  double network = 0;
  int found = 0;
  for (const Json& exchange : plan["exchanges"]) {
    network += exchange["network_bytes"].get<double>();
    if (exchange["op"] != "all_to_all") continue;
    ++found;
    const double leaving = exchange["bytes"].get<double>() * 8 / 15;
    EXPECT_DOUBLE_EQ(exchange["network_bytes"], leaving);
    EXPECT_GE(exchange["seconds"], leaving / 40e9);
  }
  EXPECT_EQ(found, 1);
  EXPECT_DOUBLE_EQ(plan["network_bytes"], network);
}

// What parameters take is in the plan's categories to the byte, for every stage.
TEST_F(Plan, ParametersAddUpToTheMemory) {
  const std::string pipeline =
      "configs/llama3.1-8b.toml --gpus 8xH100 --model.num_hidden_layers=4 --parallel.pipeline_head_blocks=0 "
      "--training.micro_batch_size=1 "
      "--training.global_batch_size=8 "
      "--parallel.pipeline=2 --parallel.tensor=2 --parallel.reshard_after_forward=true --parallel.gradients=sharded "
      "--training.reduce_dtype=bf16 ";
  const std::string mixture = "configs/mixtral-8x7b.toml --gpus 8xH100 --model.num_hidden_layers=2 --parallel.expert=4 ";
  const auto json = [](const std::string& arguments) {
    const ProgramResult result = plan_config(arguments + "--json");
    EXPECT_EQ(result.code, 0) << result.err;
    return json_of(result.out);
  };
  for (const std::string& options : {pipeline + "--stage 0 ", pipeline + "--stage 1 ", pipeline, mixture}) {
    SCOPED_TRACE(options);
    const Json memory = json(options)["memory_bytes"], parameters = json(options + "--parameters ");
    ASSERT_EQ(parameters["bytes"].size(), 4u) << parameters["bytes"];
    std::int64_t of_kinds = 0, of_categories = 0;
    for (const auto& [category, bytes] : parameters["bytes"].items()) {
      EXPECT_EQ(bytes["total"], memory[category]) << category;
      of_categories += bytes["copies"].get<std::int64_t>() + bytes["scales"].get<std::int64_t>();
    }
    for (const Json& kind : parameters["kinds"]) {
      std::int64_t sum = kind["scale_bytes"].get<std::int64_t>();
      for (const Json& copy : kind["copies"]) sum += copy["bytes"].get<std::int64_t>();
      EXPECT_EQ(kind["bytes"], sum) << kind["name"];
      of_kinds += sum;
    }
    EXPECT_EQ(of_kinds, of_categories);
  }
  EXPECT_EQ(json(pipeline + "--parameters --stage 1 ")["stage"], 1);
  const ProgramResult text = plan_config(pipeline + "--parameters --stage 1");
  for (const char* part : {"held by rank 4, pipeline stage 1\n", "model.layers.2-3.mlp.down_proj ", "lm_head ", "slot E4M3"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  EXPECT_EQ(text.out.find("embed_tokens"), std::string::npos) << text.out;
  const ProgramResult experts = plan_config(mixture + "--parameters");
  EXPECT_NE(experts.out.find("model.layers.0-1.block_sparse_moe.experts.0-1.w2 "), std::string::npos) << experts.out;
}

// A checkpoint holds a master weight and two moments for each parameter, all in F32. Two nodes together write 2 GB in a second.
TEST_F(Plan, GoodputIsWhatFailuresLeave) {
  const std::string options = "configs/llama3.1-8b.toml --gpus 16xH200 --checkpoint.interval=100 --goodput ";
  const ProgramResult result = plan_config(options + "--json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json plan = json_of(result.out);
  const double bytes = plan["checkpoint_bytes"], step = plan["step_s"];
  EXPECT_NEAR(bytes, 12 * 8.03e9, 0.001 * bytes);
  EXPECT_DOUBLE_EQ(plan["failure_every_s"], 50'000 * 3600. / 16);
  EXPECT_EQ(plan["save_s"], 0.0) << "the copy hides behind the step";
  EXPECT_NEAR(plan["write_s"], bytes / 2e9 + bytes / 16 / 55e9, 1e-6);
  EXPECT_NEAR(plan["recover_s"], 5 + 3 + 2.9 + 5 + 2 * bytes / 2e9, 1e-6) << "sums are checked before anything is loaded";
  // On average a failure repeats half an interval, and the work that was done while the newest checkpoint was written. Failures are
  // so rare that their shares add up.
  const Json own = plan["as_configured"];
  const double mtbf = plan["failure_every_s"], repeated = 50 * step + plan["write_s"].get<double>();
  EXPECT_NEAR(own["repeated"], repeated / mtbf, 0.01 * repeated / mtbf);
  EXPECT_NEAR(own["recovery"], plan["recover_s"].get<double>() / mtbf, 1e-6);
  EXPECT_GE(plan["best"]["productive"], own["productive"]);
  EXPECT_GE(plan["advised"]["interval"], plan["best"]["interval"]);
  EXPECT_EQ(plan["advised"]["interval"], 1000) << "failures are so rare that a save at the end of the run would do";
  EXPECT_LT(plan["restarted_by_hand"]["productive"], own["productive"]);

  // In a step of one micro-batch 16 ranks copy their part in 0.11 s, which forward and backward hide. The two ranks of one of
  // eight replicas copy for longer than a step; of a step, the update takes less than a tenth.
  const auto saved = [&](const std::string& layout) {
    return json_of(plan_config(options + "--training.global_batch_size=16 --json " + layout).out);
  };
  EXPECT_EQ(saved("")["save_s"], 0.0);
  const Json replicas = saved("--parallel.replicate=8");
  const double copy_s = bytes / 2 / 55e9, short_step = replicas["step_s"];
  EXPECT_GT(replicas["save_s"], copy_s - short_step);
  EXPECT_LT(replicas["save_s"], copy_s - 0.9 * short_step);

  const ProgramResult text = plan_config(options + "--mtbf 1000 --storage 20GB");
  for (const char* part : {"16 H200 in 2 nodes of 8", "; --mtbf 1,000", "the storage takes 20.0 GB/s", "every 100 steps, ", ", advised\n",
                           "if a person restarts the run after 30m00s: "}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out << text.err;
  }
  const ProgramResult extremes = plan_config(options + "--checkpoint.interval=100000 --mtbf 0.001");
  for (const char* part : {"; --mtbf 0.001\n", "every 1,000 steps, "})
    EXPECT_NE(extremes.out.find(part), std::string::npos) << part;
  EXPECT_EQ(extremes.out.find("every 100,000 steps"), std::string::npos) << "no interval is longer than the run";
  for (const char* wrong : {"--goodput --checkpoint.interval=0", "--goodput --storage fast", "--goodput --mtbf 0", "--mtbf 1000",
                            "--goodput --search", "--goodput --schedule"}) {
    EXPECT_EQ(plan_config("configs/llama3.1-8b.toml --gpus 16xH200 " + std::string(wrong)).code, 2) << wrong;
  }
}

// Nodes of 8 cut some groups of 6 ranks into 2 + 4. The two ranks send all that their ring carries. Of groups of 12, each has 8
// ranks in one node and 4 in another.
TEST_F(Plan, TakesTheGroupThatSendsMostOverTheNetwork) {
  const auto exchanges = [](const std::string& options) {
    const ProgramResult result =
        plan_config("configs/llama3.2-1b.toml --model.num_hidden_layers=2 --training.micro_batch_size=1 --json " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    return json_of(result.out)["exchanges"];
  };
  const auto reduction = [](const Json& all, const char* group) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Json& e) { return e["group"] == group && e["op"] == "reduce_scatter"; });
    return found == all.end() ? Json() : *found;
  };
  for (const auto& [replicate, fewest] : {std::pair(4, 2), std::pair(2, 4)}) {
    const Json sent = reduction(
        exchanges(concat("--gpus 24xH100 --training.global_batch_size=24 --parallel.replicate=", replicate)), "shard x context");
    ASSERT_TRUE(sent.is_object()) << replicate;
    EXPECT_EQ(sent["nodes"], 2);
    EXPECT_DOUBLE_EQ(sent["network_bytes"], sent["bytes"].get<double>() / fewest);
  }
  // In two nodes of 6 the ranks 4 to 7 of a tensor axis cannot read each other's memory. In two nodes of 8 all can.
  const auto fetches = [&](const std::string& options) {
    const Json all = exchanges(options + " --parallel.tensor=4 --training.global_batch_size=12");
    return std::count_if(all.begin(), all.end(), [](const Json& e) { return e["op"] == "fetch"; });
  };
  EXPECT_EQ(fetches("--gpus 12xH100 --nodes 2"), 0);
  EXPECT_GT(fetches("--gpus 16xH100 --nodes 2"), 0);
}

// Four ranks of a context axis: the K and V of a rank in a layer are 2 x 512 numbers in BF16 of 2048 tokens, 4 MiB, and it sends
// them to 3 others. Forward gathers them on the computation's stream, backward beside
// it, and there are two layers.
TEST_F(Plan, SaysWhatEachMicroBatchAddsToEachStream) {
  const double bytes = 2 * 3 * 4 * 1024 * 1024;
  for (const int micro_batches : {2, 5}) {
    const ProgramResult result = plan_config(
        concat("configs/llama3.2-1b.toml --gpus 4xH100 --model.num_hidden_layers=2 --training.seq_len=8192 --parallel.context=4 "
               "--training.micro_batch_size=1 --json --training.global_batch_size=",
               micro_batches));
    ASSERT_EQ(result.code, 0) << result.err;
    int gathers = 0;
    const Json plan = json_of(result.out);
    for (const Json& exchange : plan["exchanges"]) {
      if (exchange["group"] != "context") continue;
      gathers += exchange["op"] == "all_gather";
      EXPECT_EQ(exchange["bytes_each_micro_batch"], bytes) << exchange;
      EXPECT_EQ(exchange["bytes"], micro_batches * bytes) << exchange;
    }
    EXPECT_EQ(gathers, 2);
  }
}

// Both stages send 8 messages of 8192 tokens x 4096 numbers in BF16 over the network, whose adapters send 40 GB/s.
TEST_F(Plan, CountsTheMessagesOfStages) {
  const double bytes = 8.0 * 8192 * 4096 * 2;
  for (const auto& [stage, group] : {std::pair("0", "outputs of stage 0"), std::pair("1", "gradients to stage 0")}) {
    const ProgramResult result = plan_config(concat(
        "configs/llama3.1-8b.toml --gpus 16xH100 --parallel.pipeline=2 --training.global_batch_size=64 --json --stage ", stage));
    ASSERT_EQ(result.code, 0) << result.err;
    const Json plan = json_of(result.out);
    const auto sends = [](const Json& exchange) { return exchange["op"] == "send"; };
    const Json& all = plan["exchanges"];
    ASSERT_EQ(std::count_if(all.begin(), all.end(), sends), 1);
    const Json& sent = *std::find_if(all.begin(), all.end(), sends);
    EXPECT_EQ(sent["group"], group);
    EXPECT_EQ(sent["bytes"], bytes);
    EXPECT_EQ(sent["network_bytes"], bytes);
    for (const Json& exchange : all) EXPECT_TRUE(exchange["bytes_each_micro_batch"].is_null()) << exchange;
    // Beside the messages, the stages add up a few numbers.
    EXPECT_NEAR(plan["network_bytes"].get<double>(), bytes, 4096);
    EXPECT_GE(sent["seconds"], bytes / 40e9);
    EXPECT_GT(plan["predicted"]["wire_s"], sent["seconds"]);
  }
}

// The plan of each stage; without --stage the memory is that of the fullest one.
TEST_F(Plan, IsOfAStage) {
  const std::string options =
      "--gpus 4xH100 --training.micro_batch_size=1 --training.global_batch_size=8 --parallel.pipeline=4 "
      "--model.num_hidden_layers=4 ";
  std::vector<std::int64_t> totals;
  for (const char* stage : {"0", "1", "2", "3"}) {
    totals.push_back(plan_json(options + "--stage " + stage)["memory_bytes"]["total"].get<std::int64_t>());
    const ProgramResult schedule = plan(options + "--schedule --stage " + stage);
    EXPECT_NE(schedule.out.find(concat("The micro-batches as each rank of stage ", stage, " enqueues them")), std::string::npos)
        << schedule.out;
    EXPECT_NE(schedule.out.find(concat("block ", stage, " m0 forward: qkv")), std::string::npos) << schedule.out;
  }
  EXPECT_EQ(plan_json(options)["memory_bytes"]["total"], *std::max_element(totals.begin(), totals.end()));
  EXPECT_GT(totals[1], totals[2]) << "stage 1 has one micro-batch more under way";
  EXPECT_TRUE(refused(plan(options + "--stage 4"), 2, "--stage 4: the run has 4 pipeline stages; their numbers are 0 to 3"));
  EXPECT_TRUE(refused(plan("--gpus 1xH100 --stage 1"), 2, "--stage 1: the run has one pipeline stage; its number is 0"));
}

// Stages between the first and the last one differ if their blocks do. Here stage 2 takes most, or one of its blocks is in BF16.
TEST_F(Plan, IsOfTheFullestAndTheBusiestStage) {
  const std::string stages = " --gpus 16xH100 --parallel.pipeline=4 --training.global_batch_size=64 ";
  const std::string dense = "configs/llama2-7b.toml" + stages +
                            "--model.num_hidden_layers=16 --parallel.pipeline_head_blocks=0 --training.micro_batch_size=1 "
                            "--activation_checkpoint.mode=full --activation_checkpoint.layers=8 ";
  const std::string mixture = "configs/qwen3-30b-a3b.toml" + stages + "--model.num_hidden_layers=4 --model.decoder_sparse_step=3";
  for (const std::string& options : {dense, dense + "--precision.skip='[\"*.9.mlp.*\"]'", mixture}) {
    SCOPED_TRACE(options);
    const auto json = [&](const std::string& stage) {
      const ProgramResult result = plan_config(options + " --json" + stage);
      EXPECT_EQ(result.code, 0) << stage << result.err;
      return json_of(result.out);
    };
    std::vector<std::int64_t> totals;
    std::vector<Json> predicted;
    for (int stage = 0; stage < 4; ++stage) {
      const Json plan = json(concat(" --stage ", stage));
      totals.push_back(plan["memory_bytes"]["total"].get<std::int64_t>());
      predicted.push_back(plan["predicted"]);
    }
    const Json& busiest = *std::min_element(predicted.begin(), predicted.end(), [](const Json& a, const Json& b) {
      return a["bubble_s"].get<double>() < b["bubble_s"].get<double>();
    });
    const Json plan = json("");
    EXPECT_EQ(plan["memory_bytes"]["total"], *std::max_element(totals.begin(), totals.end()));
    EXPECT_EQ(totals[2], *std::max_element(totals.begin(), totals.end()));
    EXPECT_EQ(plan["predicted"], busiest);
  }
}

TEST_F(Plan, WhatDoesNotFitSaysWhatHelps) {
  const ProgramResult result = plan_config("configs/llama3-70b.toml --gpus 8xH100 --activation_checkpoint.mode=none");
  EXPECT_TRUE(refused(result, 3, "this run needs ",
                      " of a GPU, and an H100 has 79.1 GiB; what helps: activation_checkpoint.mode = \"full\" (",
                      "optimizer.state_dtype = \"bf16\" (", "more GPUs in parallel.shard"));
  EXPECT_NE(result.out.find("does not fit the 79.1 GiB of an H100"), std::string::npos) << result.out;
  // With a context axis of 2 as many ranks as before hold the shards of the experts, so it saves less than 1%.
  const ProgramResult mixture = plan_config(
      "configs/qwen3-30b-a3b.toml --gpus 8xH100 --model.num_hidden_layers=24 --training.global_batch_size=64 --parallel.replicate=4");
  EXPECT_TRUE(refused(mixture, 3, "optimizer.state_dtype = \"bf16\" ("));
  EXPECT_EQ(mixture.err.find("twice the context axis"), std::string::npos) << mixture.err;
  const ProgramResult json = plan_config("configs/llama3-70b.toml --gpus 8xH100 --json");
  EXPECT_EQ(json.code, 3);
  EXPECT_FALSE(json_of(json.out)["fits"]);
  EXPECT_TRUE(refused(plan_config("configs/llama3.1-405b.toml --gpus 2xH100 --search"), 3, "no layout of 2 H100 fits"));
}

// Hopper emulates MXFP8 at a rate that nobody measured. The plan gives memory and work, but no time.
TEST_F(Plan, PredictsNothingForAnEmulatedRecipe) {
  const std::string mx = "--gpus 1xH100 --precision.recipe=mxfp8 --precision.emulate=true ";
  const ProgramResult text = plan(mx);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("no prediction: an H100 has no instructions for mxfp8 and emulates it"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("mfu"), std::string::npos) << text.out;
  EXPECT_TRUE(plan_json(mx)["predicted"].is_null());
  for (const char* option : {"--search", "--schedule"}) {
    EXPECT_TRUE(refused(plan(mx + option), 2, option, "is emulated on an H100, and the emulation's rate is not known"));
  }
}

// The comment of each preset names at least one command that plans it, and what it plans fits.
TEST_F(Plan, OfEveryPresetFits) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_dir() + "/configs")) {
    if (!entry.is_regular_file()) continue;
    std::istringstream lines(read_file(entry.path()));
    int commands = 0;
    for (std::string line; std::getline(lines, line);) {
      const std::size_t at = line.find("octet plan ");
      if (at == std::string::npos) continue;
      ++commands;
      const ProgramResult result = run_program(line.substr(at + std::string("octet ").size()), source_dir());
      EXPECT_EQ(result.code, 0) << entry.path() << ": " << line << "\n" << result.err;
    }
    EXPECT_GE(commands, 1) << entry.path();
  }
}

TEST_F(Plan, RefusesInOneLine) {
  EXPECT_TRUE(refused(plan(""), 2, "--gpus is required"));
  EXPECT_TRUE(refused(plan("--gpus 8xA100"), 2, "unknown GPU A100; known are H100, H200\n"));
  EXPECT_TRUE(refused(plan("--gpus 8"), 2, "must be a number, an x and a GPU, as in 8xH100"));
  EXPECT_TRUE(refused(plan("--gpus 8xH100 --nodes 3"), 2, "--nodes 3: must divide the 8 GPUs"));
  EXPECT_TRUE(refused(plan("--gpus 8xH100 --nodes 0"), 2, "--nodes"));
  EXPECT_TRUE(refused(plan("--gpus 4xH100 --parallel.replicate=3"), 2, "parallel.replicate = 3: must divide the number of ranks, 4"));
  EXPECT_TRUE(
      refused(plan("--gpus 1xH100 --data.document_mask=true --run.deterministic=true"), 2, "with run.deterministic = true"));
  EXPECT_TRUE(refused(plan("--gpus 4xH100 --serach"), 2, "did you mean --search?"));
  EXPECT_TRUE(refused(run_.run("plan nowhere.toml --gpus 8xH100"), 2, "nowhere.toml"));
}

// The message offers two ways out, and both work.
TEST_F(Plan, SaysWhichBatchWouldDo) {
  const std::string command = "configs/llama3.1-8b.toml --gpus 256xH100 --nodes 32 ";
  EXPECT_TRUE(refused(plan_config(command), 2,
                      "training.global_batch_size = 64: must be a multiple of training.micro_batch_size = 1 times 256 "
                      "data-parallel ranks: give --training.global_batch_size=256, or a layout with fewer of them: `octet plan` with --search "
                      "finds the fastest\n"));
  EXPECT_EQ(plan_config(command + "--training.global_batch_size=256").code, 0);
  EXPECT_EQ(plan_config(command + "--search").code, 0);
  EXPECT_TRUE(refused(plan("--gpus 4xH100 --training.global_batch_size=10"), 2, "give --training.global_batch_size=16, or "));
}

// Returns the layout of a plan as options for `octet train`.
std::string options_of(const Json& layout) {
  const std::int64_t chunks = layout["pipeline_chunks"].get<std::int64_t>();
  return concat(" --parallel.pipeline=", layout["pipeline"], " --parallel.pipeline_chunks=", chunks,
                " --parallel.pipeline_schedule=", chunks > 1 ? "interleaved" : "1f1b",
                " --parallel.replicate=", layout["replicate"], " --parallel.context=", layout["context"],
                " --parallel.tensor=", layout["tensor"], " --parallel.expert=", layout["expert"],
                " --parallel.reshard_after_forward=", layout["weights"] == "kept" ? "false" : "true",
                " --parallel.gradients=", layout["gradients"], " --activation_checkpoint.mode=", layout["activation_checkpoint"],
                " --training.micro_batch_size=", layout["micro_batch_size"]);
}

TEST_F(Plan, SearchRanksWhatFits) {
  const std::string command = "configs/llama3.1-8b.toml --gpus 16xH100 --search --training.global_batch_size=32";
  const ProgramResult json = plan_config(command + " --json");
  ASSERT_EQ(json.code, 0) << json.err;
  const Json search = json_of(json.out);
  const Json& best = search["best"];
  ASSERT_EQ(best.size(), 10u);
  EXPECT_GE(search["fitting"], 10);
  EXPECT_EQ(best[0]["layout"]["pipeline"], 1) << "a bubble gains nothing where all fits";
  for (std::size_t i = 0; i < best.size(); ++i) {
    EXPECT_TRUE(best[i]["fits"]) << best[i]["layout"];
    if (i == 0) continue;
    EXPECT_LE(best[i]["predicted"]["tokens_per_s_per_gpu"].get<double>(),
              best[i - 1]["predicted"]["tokens_per_s_per_gpu"].get<double>());
  }
  const ProgramResult text = plan_config(command);
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find(search["why"].get<std::string>() + "\n"), std::string::npos) << text.out;
  // `octet plan` confirms the first layout that the search finds.
  const ProgramResult plan = plan_config("configs/llama3.1-8b.toml --gpus 16xH100 --training.global_batch_size=32 --json" +
                                         options_of(best[0]["layout"]));
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(json_of(plan.out)["predicted"], best[0]["predicted"]);
}

// Fourteen of 405B's blocks on eight nodes of one GPU: the gathered blocks and gradients of shards do not fit, stages do. `octet
// plan` confirms each of them.
TEST_F(Plan, SearchFindsTheStagesThatFit) {
  const std::string command =
      "configs/llama3.1-405b.toml --gpus 8xH200 --nodes 8 --model.num_hidden_layers=14 --training.global_batch_size=32 ";
  const ProgramResult json = plan_config(command + "--search --json");
  ASSERT_EQ(json.code, 0) << json.err;
  const Json search = json_of(json.out);
  for (const Json& run : search["best"]) {
    EXPECT_TRUE(run["fits"]);
    EXPECT_GT(run["layout"]["pipeline"].get<int>(), 1) << run["layout"];
    EXPECT_GT(run["predicted"]["bubble_s"].get<double>(), 0);
    const ProgramResult plan = plan_config(command + "--json" + options_of(run["layout"]));
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_EQ(json_of(plan.out)["predicted"], run["predicted"]) << run["layout"];
  }
  const ProgramResult text = plan_config(command + "--search");
  EXPECT_NE(text.out.find("pipeline replicate  shard "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(" exposed bubble  bound\n"), std::string::npos) << text.out;
  // The run refuses stages of a tied head, so there is nothing to find.
  EXPECT_TRUE(refused(plan_config(command + "--search --model.tie_word_embeddings=true"), 3, "no layout of 8 H200 fits"));
}

// The search divides experts where that is faster, and a run accepts every layout that it offers.
TEST_F(Plan, SearchSharesExpertsOut) {
  const std::string command = "configs/mixtral-8x7b.toml --gpus 16xH100 --model.num_hidden_layers=4 ";
  const ProgramResult json = plan_config(command + "--search --json");
  ASSERT_EQ(json.code, 0) << json.err;
  const Json search = json_of(json.out);
  std::set<std::int64_t> sizes;
  for (const Json& run : search["best"]) {
    const Json& layout = run["layout"];
    const std::int64_t expert = layout["expert"].get<std::int64_t>();
    sizes.insert(expert);
    EXPECT_EQ(8 % expert, 0);
    EXPECT_EQ(layout["shard"].get<std::int64_t>() % expert, 0);
    const ProgramResult plan = plan_config(command + "--json" + options_of(layout));
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_EQ(json_of(plan.out)["predicted"], run["predicted"]) << layout;
  }
  EXPECT_GT(*sizes.rbegin(), 1);
  const ProgramResult text = plan_config(command + "--search");
  EXPECT_NE(text.out.find(" tensor  expert  weights "), std::string::npos) << text.out;
}

// Eight GPUs share two sequences, so each sequence must be divided along its tokens or across the layers, as far as the heads
// allow it.
TEST_F(Plan, SearchCutsLayersWhereTheRunAllowsIt) {
  const auto tensor_sizes = [](const std::string& options) {
    const ProgramResult result =
        plan_config("configs/llama3.1-8b.toml --gpus 8xH100 --search --json --training.global_batch_size=2 " + options);
    EXPECT_EQ(result.code, 0) << result.err;
    std::set<std::int64_t> sizes;
    const Json search = json_of(result.out);
    for (const Json& run : search["best"]) {
      const Json& layout = run["layout"];
      sizes.insert(layout["tensor"].get<std::int64_t>());
      EXPECT_EQ(layout["pipeline"].get<int>() * layout["replicate"].get<int>() * layout["shard"].get<int>() *
                    layout["context"].get<int>() * layout["tensor"].get<int>(),
                8);
    }
    return sizes;
  };
  EXPECT_TRUE(tensor_sizes("").contains(2));
  EXPECT_EQ(tensor_sizes("--model.num_attention_heads=40 --model.num_key_value_heads=5"), std::set<std::int64_t>({1}));
}

// A mistake that no layout can mend is reported without a search.
TEST_F(Plan, SearchRefusesWhatNoLayoutChanges) {
  EXPECT_TRUE(refused(plan("--gpus 4xH100 --search --training.steps=0"), 2, "training.steps = 0"));
  EXPECT_TRUE(refused(plan("--gpus 4xH100 --search --parallel.expert_lanes=2"), 2, "there is no exchange to hide"));
  // Only engines refuse these two together, each of them.
  EXPECT_TRUE(refused(plan("--gpus 4xH100 --search --run.deterministic=true --data.document_mask=true"), 2,
                      "data.document_mask = true", "with run.deterministic = true"));
}

// The search passes over layouts that only an engine refuses, and offers what the run's own layout keys would not allow.
TEST_F(Plan, SearchPassesOverWhatIsRefused) {
  const std::string dense = "configs/llama3.1-8b.toml --gpus 4xH100 --training.global_batch_size=8 ",
                    experts = "configs/qwen3-30b-a3b.toml --gpus 2xH200 --training.global_batch_size=8 ";
  for (const std::string& options :
       {dense + "--precision.recipe=fp8_delayed --precision.attention=fp8_forward --model.num_hidden_layers=8",
        experts + "--model.num_hidden_layers=12 --model.decoder_sparse_step=6",
        experts + "--model.num_hidden_layers=16 --model.decoder_sparse_step=4",
        dense + "--model.num_hidden_layers=4 --training.global_batch_size=131072",
        experts + "--model.num_hidden_layers=2 --parallel.expert=2 --parallel.expert_lanes=2"}) {
    const ProgramResult result = plan_config(options + " --search --json");
    ASSERT_EQ(result.code, 0) << options << result.err;
    const Json search = json_of(result.out);
    ASSERT_FALSE(search["best"].empty()) << options;
    if (options.find("lanes") != std::string::npos) {
      EXPECT_GT(search["best"][0]["layout"]["expert"], 1);
    }
  }
}

// GPT-Neo whose config.json lists every layer has no slice of few layers, so the search counts it whole.
TEST_F(Plan, SearchCountsAListOfLayersWhole) {
  const Json kinds = {"global", "local"}, types = Json::array({Json::array({kinds, 4})});
  const Json model = {{"model_type", "gpt_neo"},
                      {"hidden_size", 1024},
                      {"num_layers", 8},
                      {"num_heads", 8},
                      {"vocab_size", 4096},
                      {"attention_types", types},
                      {"max_position_embeddings", 2048}};
  std::filesystem::create_directory(run_ / "listed");
  write_text(run_ / "listed" / "config.json", model.dump());
  write_text(run_ / "listed.toml", "[model]\ninit_from = 'listed'\n[[data.source]]\npath = 'none'\n");
  const ProgramResult result =
      run_.run("plan listed.toml --gpus 2xH100 --search --training.seq_len=2048 --training.global_batch_size=4");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find(" layouts fit"), std::string::npos) << result.out;
}

// The plan says which shapes have a measured workspace.
TEST_F(Plan, SaysWhoseWorkspaceWasMeasured) {
  const std::string run = "configs/llama3.1-8b.toml --gpus 2xH200 --training.micro_batch_size=1 ";
  EXPECT_NE(plan_config(run + "--training.seq_len=8192").out.find("measured, cuDNN 9.19"), std::string::npos);
  EXPECT_NE(plan_config(run + "--training.seq_len=4096")
                .out.find("an estimate: cuDNN was not asked for 32 heads on 8, of 128; 1 x 4096 queries on 4096 keys"),
            std::string::npos);
  // The last of eight chunks attends to the chunks before it in a separate call.
  EXPECT_NE(plan_config("configs/llama3.1-8b.toml --gpus 4xH200 --training.seq_len=16384 --parallel.context=4")
                .out.find("1 x 2048 queries on 14336 keys"),
            std::string::npos);
}

// The plans of the runs for eight H100 as they are printed: memory to the byte, work, traffic and the prediction. If a change is
// meant to change them, `octet plan` writes the new ones.
TEST_F(Plan, OfTheRunsOfConfigs) {
  const std::pair<const char*, const char*> runs[] = {{"llama3.1-8b-8xh100", "8xH100"}, {"llama3.1-8b-16k-8xh100", "8xH100"}};
  for (const auto& [name, gpus] : runs) {
    const ProgramResult result = plan_config(concat("configs/runs/", name, ".toml --gpus ", gpus));
    ASSERT_EQ(result.code, 0) << result.err;
    const std::string golden = concat(golden_dir(), "/plan/", name, ".txt");
    EXPECT_EQ(result.out, read_file(golden)) << golden;
  }
}

}  // namespace
}  // namespace octet::testing

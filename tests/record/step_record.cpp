// octet_step_record FOLDER [PART]: writes what the steps of many engines enqueue, and hashes of what they compute, to FOLDER. A
// redesign of the core compares two of these folders (tools/compare_steps.sh). PART (ops or bits) writes only one of the two.
//   ops/NAME.txt    the ops of each rank and stream on the meta device, with the ops of other streams that must have ended
//   (step_record.h) plan.txt        bytes by category of each of these engines bits.txt        checksums of weights, moments,
//   scales, gradients and losses after three steps of ranks on the CPU
#include "support/step_record.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>

#include "octet/base/checksum.h"
#include "support/folder.h"
#include "support/mesh_run.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;
using train::EngineOptions;

struct Case {
  std::string name;
  EngineOptions options;
  Layout layout;
};

const std::vector<std::pair<std::string, nn::Checkpointing>> kCheckpointing = {
    {"none", nn::Checkpointing::none}, {"selective", nn::Checkpointing::selective}, {"full", nn::Checkpointing::full}};

std::vector<std::pair<std::string, EngineOptions>> families(const std::string& recipe) {
  EngineOptions tied = tensor_options(recipe), window = tensor_options(recipe), skip = tensor_options(recipe);
  tied.model.tied_head = true;
  window.model.sliding_window = 16;
  return {{"llama", tensor_options(recipe)},
          {"tied", tied},
          {"window", window},
          {"mixtral", mixture_options(recipe)},
          {"neox-parallel", gpt_neox_options(recipe, true)},
          {"neox", gpt_neox_options(recipe, false)}};
}

std::vector<Layout> layouts(const EngineOptions& options) {
  std::vector<Layout> result = {kAlone};
  if (options.model.experts > 0) {
    result.insert(result.end(), kMixtures.begin(), kMixtures.end());
  } else {
    for (const Weights weights : {Weights::kept, Weights::resharded}) {
      for (const Gradients gradients : {Gradients::whole, Gradients::sharded}) {
        result.push_back({.mesh = Mesh({1, 4, 1, 1}), .weights = weights, .gradients = gradients});
        result.push_back({.mesh = Mesh({2, 2, 2, 1}), .weights = weights, .gradients = gradients, .reduce = DType::bf16});
      }
    }
    result.push_back({.mesh = Mesh({2, 1, 1, 1})});
    result.insert(result.end(), kContexts.begin(), kContexts.end());
    result.insert(result.end(), kTensors.begin(), kTensors.end());
  }
  return result;
}

std::string without_spaces(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

// Models and layouts that few recipes distinguish: pipelines, lanes, adapters, offload, attention in FP8, and the other families.
std::vector<Case> rare_cases() {
  const auto with = [](EngineOptions options, const auto& change) {
    change(options);
    return options;
  };
  const auto deep = [](EngineOptions& options) { options.model.layers = 4; };
  const auto offload = [](EngineOptions& options) { options.storage.offload_slot = 16384; };
  const auto drop = [](EngineOptions& options) { options.adapters.dropout = {.rate = 0.25, .seed = 3}; };
  const auto mask = [](EngineOptions& options) { options.document_mask = true; };
  const auto gpt_neo = [](EngineOptions& options) { options.model = tiny_gpt_neo_config(); };
  const auto qwen3 = [](EngineOptions& options) { options.model = tiny_qwen3_config(); };
  const auto resharded = [](const Mesh& mesh, int lanes = 1) {
    return Layout{.mesh = mesh, .weights = Weights::resharded, .gradients = Gradients::sharded, .lanes = lanes};
  };
  const Mesh shards({1, 2, 1, 1}), experts({1, 4, 1, 1}, 4), parts({1, 1, 1, 2}), context({1, 1, 2, 1});
  const auto staged = [](const Mesh& mesh, int chunks) { return Layout{.mesh = mesh.with({.count = 2, .chunks = chunks})}; };
  std::vector<Case> result;
  for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_rowwise"}) {
    const EngineOptions dense = tensor_options(recipe), mixture = mixture_options(recipe);
    const std::vector<Case> of_recipe = {{"stages", with(dense, deep), staged(shards, 1)},
                                         {"stages-tensor", with(dense, deep), staged(parts, 1)},
                                         {"chunks", with(dense, deep), staged(context, 2)},
                                         {"stages-experts", with(mixture, deep), staged(Mesh({1, 2, 1, 1}, 2), 1)},
                                         {"lanes", with(mixture, deep), resharded(experts, 2)},
                                         {"adapters", adapted(dense), kAlone},
                                         {"adapters-shards", with(adapted(dense), drop), resharded(shards)},
                                         {"adapters-tensor", with(adapted(dense), drop), {.mesh = parts}},
                                         {"adapters-experts", with(adapted(mixture), drop), resharded(experts)},
                                         {"offload", with(dense, offload), kAlone},
                                         {"offload-shards", with(dense, offload), resharded(shards)},
                                         {"documents", with(dense, mask), kAlone},
                                         {"documents-context", with(dense, mask), {.mesh = context}},
                                         {"gpt_neo", with(dense, gpt_neo), kAlone},
                                         {"gpt_neo-context", with(dense, gpt_neo), {.mesh = context}},
                                         {"qwen3", with(dense, qwen3), kAlone},
                                         {"qwen3-shards", with(dense, qwen3), resharded(shards)},
                                         {"olmo2", olmo2_options(recipe), resharded(shards)},
                                         {"olmo2-context", olmo2_options(recipe), {.mesh = context}},
                                         {"phi3", phi3_options(recipe), kAlone},
                                         {"phi3-tensor", phi3_options(recipe), {.mesh = parts}}};
    for (const Case& c : of_recipe) result.push_back({concat(recipe, "-", c.name), c.options, c.layout});
  }
  for (const std::string recipe : {"fp8_delayed_attention", "fp8_delayed_attention_forward"}) {
    const EngineOptions options = with(tensor_options(recipe), [](EngineOptions& o) { o.model.head_dim = 128; });
    for (const Layout& layout : {kAlone, resharded(shards), Layout{.mesh = parts}})
      result.push_back({concat(recipe, "-", without_spaces(text(layout))), options, layout});
  }
  return result;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto& [how, checkpointing] : kCheckpointing) {
    for (const Case& c : rare_cases()) {
      result.push_back({concat("rare-", c.name, "-", how), c.options, c.layout});
      result.back().options.checkpointing = checkpointing;
      result.back().options.layout = c.layout;
    }
  }
  for (const std::string& recipe : all_recipes()) {
    for (const auto& [family, options] : families(recipe)) {
      for (const auto& [how, checkpointing] : kCheckpointing) {
        int number = 0;
        for (const Layout& layout : layouts(options)) {
          result.push_back(
              {concat(recipe, "-", family, "-", how, "-", number++, "-", without_spaces(text(layout))), options, layout});
          result.back().options.checkpointing = checkpointing;
          result.back().options.layout = layout;
        }
      }
    }
  }
  return result;
}

// A step that is watched, in which products are measured as well.
class WatchAll final : public nn::Watch {
 public:
  void operand(const nn::Scope&, std::string_view, Role, const Tensor&, const Quantized&) override {}
  void product(const nn::Scope& scope, std::string_view, std::string_view, const kernels::Gemm& gemm) override {
    const ArenaScope temporaries(scope.scratch);
    nn::run_alone(scope, gemm);
  }
  void attention(const nn::Scope&, std::string_view, const Tensor&) override {}
};

std::string ops_of(const Case& c, int rank, std::string& plan) {
  EngineOptions options = c.options;
  options.rank = rank;
  StepRecord record;
  const auto device = make_recording_device(record);
  const parallel::Groups groups = parallel::silent_groups(c.layout.mesh, rank);
  train::Engine engine(options, *device, groups);
  const Tokens tokens = random_tokens(options.seq_len * options.micro_batch_size, options.model.vocab);
  WatchAll watch;
  record.heading("refresh");
  engine.refresh();
  for (int step = 1; step <= 2; ++step) {
    record.heading(concat("step ", step));
    engine.begin_step(3);
    for (int micro = 0; micro < 3; ++micro) {
      record.heading(concat("step ", step, ", micro-batch ", micro));
      engine.forward_backward(tokens.batch(), step == 2 && micro == 0 ? &watch : nullptr);
    }
    record.heading(concat("step ", step, ", apply"));
    engine.apply(1e-3, static_cast<std::uint32_t>(step));
  }
  record.heading("evaluate");
  engine.evaluate(tokens.tokens, tokens.targets);
  plan += concat(c.name, " rank ", rank, ":");
  const train::MemoryPlan memory = train::measure(options, DeviceKind::cuda);
  for (const std::size_t bytes : memory.bytes) plan += concat(" ", bytes);
  plan += "\n";
  return record.text();  // while the engine's streams live
}

void write_ops(const fs::path& folder) {
  fs::create_directories(folder / "ops");
  std::string plan;
  for (const Case& c : cases()) {
    std::string text;
    const int ranks = c.layout.mesh.ranks();
    try {
      for (const int rank : ranks > 1 ? std::vector<int>{0, ranks - 1} : std::vector<int>{0}) {
        text += concat("rank ", rank, "\n", ops_of(c, rank, plan));
      }
    } catch (const Error& error) {
      text = concat("refused: ", error.what(), "\n");
    }
    write_text(folder / "ops" / (c.name + ".txt"), text);
  }
  write_text(folder / "plan.txt", plan);
}

std::string sum_of(const RunState& state) {
  RunningChecksum sum;
  const auto add = [&](const auto& by_name) {
    for (const auto& [name, values] : by_name) {
      sum.update(name);
      sum.update(std::as_bytes(std::span(values)));
    }
  };
  add(state.gradients.by_name());
  add(state.weights.by_name());
  add(state.scales);
  sum.update(std::as_bytes(std::span(state.taken.losses)));
  return sum.hex();
}

void write_bits(const fs::path& folder) {
  set_num_threads(1);
  std::string text;
  for (const Case& c : cases()) {
    if (c.options.checkpointing == nn::Checkpointing::selective) continue;
    std::string result;
    try {
      result = sum_of(run_mesh(c.options, c.layout, {.count = 3, .micro_batches = 8}));
    } catch (const Error& error) {
      result = concat("refused: ", error.what());
    }
    text += concat(c.name, " ", result, "\n");
  }
  write_text(folder / "bits.txt", text);
}

}  // namespace
}  // namespace octet::testing

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: octet_step_record FOLDER [ops|bits]\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const std::string part = argc > 2 ? argv[2] : "";
  std::filesystem::create_directories(folder);
  if (part != "bits") octet::testing::write_ops(folder);
  if (part != "ops") octet::testing::write_bits(folder);
}

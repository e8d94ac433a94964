// Tensor parallelism with ranks that are threads: what ranks hold of layers, and what they send. step_of_one_rank_test.cpp tests
// the steps.
#include <gtest/gtest.h>

#include <atomic>

#include "train/meshes.h"

namespace octet::testing {
namespace {

const Layout kTensorTwo = kTensors[0], kTensorFour = kTensors[1];

class Tensors : public MeshTest {};

// Returns the column codes in the weight's row-major order.
std::vector<std::uint8_t> column_codes_of(const parallel::Parameter& p) {
  if (p.columnwise_shard) return bytes_of_tensor(p.columnwise_shard);
  if (!p.codes.columnwise || p.shard_count() > 1) return {};
  std::vector<std::uint8_t> result;
  const Tensor& t = p.codes.columnwise;
  for (std::int64_t row = 0; row < p.spec.shape[0]; ++row) {
    for (std::int64_t col = 0; col < p.spec.shape[1]; ++col) result.push_back(t.as_bytes()[col * t.row_stride + row]);
  }
  return result;
}

// In each rank's part, blocks begin at its first element. The axis cuts only between blocks here, so they equal the blocks of the
// whole weight.
TEST_F(Tensors, WeightsAndCodesAreThoseOfOneRank) {
  struct Held {
    Wholes<std::uint8_t> weights, codes, column_codes;
  };
  const auto held_by = [](const train::EngineOptions& options, const Layout& layout) {
    Held held;
    std::mutex mutex;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      const std::lock_guard lock(mutex);
      for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
        held.weights.add(p, bytes_of_tensor(p.primary()), size_of(p.primary().dtype));
        if (!p.spec.quant) continue;
        held.codes.add(p, bytes_of_tensor(p.rowwise_shard));
        if (!column_codes_of(p).empty()) held.column_codes.add(p, column_codes_of(p));
      }
    });
    for (const auto* bytes : {&held.weights, &held.codes, &held.column_codes}) bytes->expect_whole();
    return held;
  };
  for (const std::string& recipe : all_recipes()) {
    train::EngineOptions options = tensor_options(recipe);
    options.model.layers = 1;
    options.model.dim = 128;
    options.model.heads = options.model.kv_heads = 4;
    options.model.head_dim = 128;
    options.model.ffn = 512;
    const Held one = held_by(options, kAlone);
    for (const Layout& layout : {kTensorTwo, kTensorFour, {.mesh = Mesh({1, 2, 1, 2})}}) {
      SCOPED_TRACE(recipe + ", " + text(layout));
      const Held actual = held_by(options, layout);
      EXPECT_TRUE(actual.weights == one.weights);
      EXPECT_TRUE(actual.codes == one.codes);
      for (const auto& [name, codes] : actual.column_codes.by_name()) EXPECT_TRUE(codes == one.column_codes.at(name)) << name;
      const bool by_row = options.recipe.is_fp8() && !kernels::is_square(options.recipe.w.tile);
      EXPECT_GE(actual.column_codes.by_name().size(), by_row ? 4u : 0u) << "four linears";
    }
  }
}

// 16-bit weights and moments, rounded stochastically.
TEST_F(Tensors, RoundTheSameOnEveryMesh) {
  train::EngineOptions options = tensor_options("bf16");
  options.storage.master_weights = false;
  options.storage.moments = DType::bf16;
  options.optimizer.max_grad_norm = 0;
  const RunState expected = run_mesh(options, kAlone, {});
  for (const Layout& layout : kTensors) {
    SCOPED_TRACE(text(layout));
    const auto same = expect_weights_of_same_gradients(run_mesh(options, layout, {}), expected);
    EXPECT_GT(same.at("model.embed_tokens.weight"), 0u) << "rows that no token has";
  }
}

// Gathered codes must have the same bits as codes made from gathered values. With a watch, ranks gather values.
TEST_F(Tensors, CodesAreThoseOfGatheredValues) {
  struct Counter : nn::Watch {
    void operand(const nn::Scope&, std::string_view, Role, const Tensor& source, const Quantized&) override { seen += !!source; }
    void product(const nn::Scope&, std::string_view, std::string_view, const kernels::Gemm&) override {}
    void attention(const nn::Scope&, std::string_view, const Tensor&) override {}
    std::atomic<int> seen = 0;
  } watch;
  for (const std::string recipe : {"fp8_delayed", "fp8_delayed_attention", "fp8_delayed_attention_forward", "fp8_current"}) {
    for (const nn::Checkpointing mode : {nn::Checkpointing::none, nn::Checkpointing::selective, nn::Checkpointing::full}) {
      train::EngineOptions options = tensor_options(recipe);
      options.checkpointing = mode;
      const RunState codes = run_mesh(options, kTensorFour, {.count = 2});
      options.watch = &watch;
      const RunState values = run_mesh(options, kTensorFour, {.count = 2});
      EXPECT_GT(watch.seen, 0);
      EXPECT_LT(codes.over_tensor[0].bytes, values.over_tensor[0].bytes) << recipe;
      SCOPED_TRACE(recipe);
      expect_same_bits(codes, values);
    }
  }
}

// Each layer gathers twice in forward and twice in backward, and scatters as often. It gathers codes if one scale serves the
// whole tensor. Embedding and head gather and scatter once each, in BF16, and the head's statistics are gathered too. Once a
// step, the ranks sum the gradients of norms, the gradients of heads that several ranks hold, and the squares of the gradient
// norm. Delayed scales are exchanged once a step. Current scales are exchanged with every gather, and those of the weights once a
// step.
TEST_F(Tensors, SendWhatTheyMust) {
  struct Again {
    nn::Checkpointing mode;
    int gathers, scatters;  // additional ones in each layer
  };
  const int steps = 2;
  for (const Again& again :
       {Again{nn::Checkpointing::none, 0, 0}, Again{nn::Checkpointing::selective, 2, 0}, Again{nn::Checkpointing::full, 2, 1}}) {
    for (const std::string recipe : {"bf16", "fp8_delayed", "fp8_current", "fp8_block"}) {
      train::EngineOptions options = tensor_options(recipe);
      options.checkpointing = again.mode;
      const models::DecoderConfig& model = options.model;
      const bool delayed = recipe == "fp8_delayed", current = recipe == "fp8_current";
      for (const Layout& layout : {kTensorTwo, kTensorFour}) {
        const int t = layout.mesh.size(Axis::tensor);
        const std::int64_t tokens = options.micro_batch_size * options.seq_len, share = tokens / t * model.dim;
        const std::int64_t micro_batches = Steps().micro_batches, gathers = micro_batches * model.layers * (4 + again.gathers);
        const std::int64_t others = micro_batches * (model.layers * (4 + again.scatters) + 4), statistics = micro_batches;
        const std::int64_t gathered_bytes = gathers * share * (delayed || current ? 1 : 2) + others * share * 2 +
                                            statistics * 3 * tokens * static_cast<std::int64_t>(sizeof(float));
        const std::int64_t norms = 2 * model.layers + 1, heads = t > model.kv_heads ? 2 * model.layers : 0;
        std::int64_t sums = norms + heads + 1,
                     summed = norms * model.dim + heads * model.kv_heads * model.head_dim * model.dim + 4;
        if (delayed) sums += 1, summed += 3 * 4 * model.layers;
        if (current) sums += 1 + gathers, summed += 4 * model.layers + gathers;
        const RunState state = run_mesh(options, layout, {.count = steps});
        SCOPED_TRACE(recipe + ", " + text(layout));
        for (const comm::Traffic& sent : state.over_tensor) {
          EXPECT_EQ(sent.messages, steps * (gathers + others + statistics + sums));
          EXPECT_EQ(sent.bytes,
                    steps * (t - 1) * (static_cast<double>(gathered_bytes) + 2.0 / t * 4.0 * static_cast<double>(summed)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::testing

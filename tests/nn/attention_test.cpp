#include "octet/nn/attention.h"

#include <cstring>

#include "nn/layer_fixture.h"
#include "octet/kernels/rope/rope.h"

namespace octet::nn {
namespace {

using testing::values_of;

constexpr std::int64_t kBatch = 2, kLength = 5, kTokens = kBatch * kLength, kDim = 20, kHeads = 4, kKvHeads = 2, kHeadDim = 6;

struct AttentionLayer : testing::LayerTest {
  explicit AttentionLayer(std::int64_t window = 0) {
    make({.name = "attn",
          .dim = kDim,
          .heads = kHeads,
          .kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .window = window,
          .init_std = 0.5,
          .output_init_std = 0.5});
    positions = integers({0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
    h = random(DType::f64, {kTokens, kDim});
    residual = random(DType::f64, {kTokens, kDim});
    y = zeros(DType::f64, {kTokens, kDim});
  }
  void make(const Attention::Options& options) {
    use(testing::fp64_recipe());
    attention = std::make_unique<Attention>(options, recipe, *parameters, *scales);
    materialise({&attention->qkv().weights()[0], &attention->output().weights()[0]});
    const std::int64_t dims = options.rotary_dim == 0 ? kHeadDim : options.rotary_dim;
    table = zeros(DType::f32, {kLength, dims});
    const std::vector<float> angles = kernels::rope_table(dims, 100.0, std::nullopt, kLength);
    stream->copy_to_device(table.data, angles.data(), table.bytes());
  }
  Scope attention_scope() {
    Scope result = scope();
    result.batch = kBatch;
    result.rope_table = table;
    result.positions = positions;
    result.first_keys = first_keys;
    return result;
  }
  // The parts of a block, in its order.
  static void forward(const Attention& layer, const Scope& s, const Operand& h, const Tensor& residual, const Tensor& y,
                      AttentionSaved& saved) {
    layer.forward_qkv(s, h, saved);
    layer.forward_attention(s, layer.gather_keys(s, saved), saved);
    if (y) layer.forward_output(s, residual, y, saved);
  }
  static void backward(const Attention& layer, const Scope& s, const Operand& gy, const AttentionSaved& saved, const Tensor& gh) {
    const ArenaScope temporaries(s.scratch);
    AttentionBackward work;
    layer.backward_output(s, gy, work);
    layer.backward_output_wgrad(s, saved, work);
    layer.backward_attention(s, saved, work);
    layer.backward_qkv(s, saved, work, gh);
  }
  void forward() {
    stash.release_to(0);
    scratch.release_to(0);
    const Scope s = attention_scope();
    forward(*attention, s, made(attention->input(s, kTokens), h), residual, y, saved);
  }

  void backward(const Tensor& gy) { backward(*attention, attention_scope(), {.values = gy}, saved, gh); }

  // Checks the derivatives of the output with respect to the input, both weights and their biases, if there are any.
  void expect_derivative() {
    const Tensor gy = random(DType::f64, {kTokens, kDim});
    gh = random(DType::f64, {kTokens, kDim});
    const auto loss = [&] {
      forward();
      return dot(y, gy);
    };
    loss();
    backward(gy);
    expect_gradient("h", h, gh, loss);
    expect_gradient("qkv", attention->qkv().weight().value, copy(attention->qkv().weight().grad), loss);
    expect_gradient("o", attention->output().weight().value, copy(attention->output().weight().grad), loss);
    for (Linear* linear : {&attention->qkv(), &attention->output()}) {
      if (linear->bias()) expect_gradient(linear->name() + " bias", linear->bias()->value, copy(linear->bias()->grad), loss);
    }
  }

  // Checks that the output of token t changes with the input of another token exactly if sees(t, other).
  void expect_sees(const std::function<bool(std::size_t, std::size_t)>& sees) {
    forward();
    const std::vector<double> before = values_of(y);
    for (std::size_t changed = 0; changed < kTokens; ++changed) {
      const Tensor unchanged = h;
      h = copy(h);
      for (std::size_t i = 0; i < kDim; ++i) h.as<double>()[changed * kDim + i] += 1.0;
      forward();
      h = unchanged;
      const std::vector<double> after = values_of(y);
      for (std::size_t t = 0; t < kTokens; ++t) {
        const auto at = static_cast<std::ptrdiff_t>(t * kDim);
        const bool same = std::equal(before.begin() + at, before.begin() + at + kDim, after.begin() + at);
        EXPECT_EQ(same, !sees(t, changed)) << "token " << t << " when " << changed << " changes";
      }
    }
  }

  std::unique_ptr<Attention> attention;
  AttentionSaved saved;
  Tensor table, positions, first_keys, h, residual, y, gh;
};

TEST_F(AttentionLayer, BackwardIsTheDerivative) { expect_derivative(); }

// As in GPT-NeoX: one module for Q, K and V, rotation of the first dims only, and biases.
TEST_F(AttentionLayer, BackwardIsTheDerivativeWithBiasesAndAPartRotated) {
  make({.name = "attn",
        .qkv = {"query_key_value"},
        .output = "dense",
        .dim = kDim,
        .heads = kHeads,
        .kv_heads = kHeads,
        .head_dim = kHeadDim,
        .rotary_dim = 4,
        .qkv_bias = true,
        .output_bias = true,
        .init_std = 0.5,
        .output_init_std = 0.5});
  EXPECT_EQ(attention->qkv().name(), "attn.query_key_value");
  EXPECT_EQ(attention->output().name(), "attn.dense");
  const parallel::Parameter &qkv = *attention->qkv().bias(), &output = *attention->output().bias();
  for (const parallel::Parameter* bias : {&qkv, &output}) {
    stream->copy_to_device(bias->value.data, random(DType::f64, bias->value.shape).data, bias->value.bytes());
  }
  expect_derivative();
}

TEST_F(AttentionLayer, SeesNoLaterTokenAndNoOtherSequence) {
  expect_sees([](std::size_t t, std::size_t other) { return t >= other && t / kLength == other / kLength; });
}

TEST_F(AttentionLayer, SeesNoOtherDocument) {
  first_keys = integers({0, 0, 2, 2, 2, 0, 1, 2, 3, 3});
  const std::vector<std::int64_t> document = {0, 0, 1, 1, 1, 2, 3, 4, 5, 5};
  expect_sees([&](std::size_t t, std::size_t other) { return t >= other && document[t] == document[other]; });
}

TEST_F(AttentionLayer, BackwardIsTheDerivativeWithDocuments) {
  first_keys = integers({0, 0, 2, 2, 2, 0, 1, 2, 3, 3});
  expect_derivative();
}

struct WindowedAttentionLayer : AttentionLayer {
  static constexpr std::int64_t kWindow = 3;
  WindowedAttentionLayer() : AttentionLayer(kWindow) {}
};

TEST_F(WindowedAttentionLayer, SeesNoTokenBehindTheWindow) {
  expect_sees(
      [](std::size_t t, std::size_t other) { return t >= other && t < other + kWindow && t / kLength == other / kLength; });
}

TEST_F(WindowedAttentionLayer, BackwardIsTheDerivative) { expect_derivative(); }

TEST_F(WindowedAttentionLayer, BackwardIsTheDerivativeWithDocuments) {
  first_keys = integers({0, 0, 0, 0, 4, 0, 1, 1, 1, 1});
  expect_derivative();
}

// Attention sees the relative positions of tokens only.
TEST_F(AttentionLayer, KnowsWhereTokensAre) {
  forward();
  const std::vector<double> before = values_of(y);
  positions = integers({0, 1, 3, 4, 2, 2, 3, 4, 0, 1});
  forward();
  const std::vector<double> after = values_of(y);
  EXPECT_FALSE(testing::near_norm(after, before, 1e-6));
  // A shifted sequence gives the same result, except for the rounding of the FP32 angles in the table.
  positions = integers({0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  const Tensor shifted = table;
  const std::vector<float> angles = kernels::rope_table(kHeadDim, 100.0, std::nullopt, kLength + 3);
  stream->copy_to_device(shifted.data, angles.data() + 3 * kHeadDim, shifted.bytes());
  forward();
  EXPECT_TRUE(testing::near_norm(values_of(y), before, 0x1p-20));
}

TEST_F(AttentionLayer, AllWaysToBackwardGiveTheSameBits) {
  for (const std::string name : {"bf16", "fp8_current", "fp8_block", "mxfp8"}) {
    use(recipes::make_recipe(name, {}));
    Attention layer({.name = "attn", .dim = 32, .heads = 2, .kv_heads = 1, .head_dim = 16}, recipe, *parameters, *scales);
    materialise({&layer.qkv().weights()[0], &layer.output().weights()[0]});
    const Tensor angles = zeros(DType::f32, {kLength, 16}), out = zeros(DType::bf16, {kTokens, 32});
    const Tensor x = random(DType::bf16, {kTokens, 32}), gy = random(DType::bf16, {kTokens, 32});
    enum class Way { forward, without_y, rebuilt, output_linear_alone };
    struct Gradients {
      Tensor h, qkv_weight, output_weight;
    };
    const auto gradients = [&](Way way) {
      const Checkpointing mode = way == Way::rebuilt ? Checkpointing::selective : Checkpointing::none;
      Scope s = attention_scope();
      s.rope_table = angles;
      s.checkpointing = mode;
      s.dtype = dtype();
      stash.release_to(0);
      scratch.release_to(0);
      AttentionSaved state;
      forward(layer, s, made(layer.input(s, kTokens), x), x, way == Way::without_y ? Tensor{} : out, state);
      if (mode == Checkpointing::selective) {
        const Scope again = rebuild_scope(s);
        layer.rebuild(again, made(layer.input(again, kTokens), x), state);
      }
      Gradients result{.h = zeros(DType::bf16, {kTokens, 32})};
      const auto copy = [&](const Tensor& from) {
        const Tensor to = zeros(from.dtype, from.shape);
        std::memcpy(to.data, from.data, from.bytes());
        return to;
      };
      if (way == Way::output_linear_alone) {  // backward of this linear reads what its own forward kept
        const Operand o = linear_forward(layer.output(), s, {.values = state.o}, {}, out);
        linear_backward(layer.output(), s, {.values = gy}, o, {});
        return Gradients{.output_weight = copy(layer.output().weight().grad)};
      }
      backward(layer, s, made(layer.output().g().gradient(s, gy), gy), state, result.h);
      result.qkv_weight = copy(layer.qkv().weight().grad);
      result.output_weight = copy(layer.output().weight().grad);
      return result;
    };
    const Gradients expected = gradients(Way::forward);
    for (const Way way : {Way::rebuilt, Way::without_y}) {
      const Gradients actual = gradients(way);
      EXPECT_TRUE(testing::same_bytes(actual.h, expected.h)) << name;
      EXPECT_TRUE(testing::same_bytes(actual.qkv_weight, expected.qkv_weight)) << name;
      EXPECT_TRUE(testing::same_bytes(actual.output_weight, expected.output_weight)) << name;
    }
    EXPECT_TRUE(testing::same_bytes(gradients(Way::output_linear_alone).output_weight, expected.output_weight)) << name;
  }
}

}  // namespace
}  // namespace octet::nn

// The FP8 path of nn::Attention: what it keeps, which gradients it computes, and that no way to backward changes a bit.
#include <cmath>

#include "nn/layer_fixture.h"
#include "octet/kernels/rope/rope.h"
#include "octet/nn/attention.h"
#include "support/bounds.h"

namespace octet::nn {
namespace {

using testing::same_bytes;
using testing::values_of;

struct AttentionFp8Layer : testing::LayerTest {
  static constexpr std::int64_t kSequences = 2, kLength = 40, kTokens = kSequences * kLength, kDim = 64, kHeads = 4, kKvHeads = 2,
                                kHeadDim = 16;

  struct Gradients {
    Tensor h, qkv, output;
  };

  void make(recipes::Options options = {}) {
    if (options.attention == "bf16") options.attention = "fp8_forward";
    use(recipes::make_recipe("fp8_delayed", options));
    layer = std::make_unique<Attention>(
        Attention::Options{
            .name = "attn", .dim = kDim, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim, .init_std = 0.1},
        recipe, *parameters, *scales);
    materialise({&layer->qkv().weights()[0], &layer->output().weights()[0]});
    for (const auto& state : scales->tensors()) {
      if (state.name.ends_with(".scale")) *state.tensor.as<float>() = 60;
    }
    parameters->refresh(*stream, scratch);  // with these scales
    table = zeros(DType::f32, {kLength, kHeadDim});
    const std::vector<float> angles = kernels::rope_table(kHeadDim, 100.0, std::nullopt, kLength);
    stream->copy_to_device(table.data, angles.data(), table.bytes());
    std::vector<std::int32_t> at;
    for (std::int64_t t = 0; t < kTokens; ++t) at.push_back(static_cast<std::int32_t>(t % kLength));
    positions = integers(at);
    x = random(DType::bf16, {kTokens, kDim});
    gy = random(DType::bf16, {kTokens, kDim});
    y = zeros(DType::bf16, {kTokens, kDim});
  }
  Scope attention_scope() {
    Scope result = scope();
    result.batch = kSequences;
    result.rope_table = table;
    result.positions = positions;
    return result;
  }
  void forward(const Scope& s) {
    stash.release_to(0);
    scratch.release_to(0);
    saved = {};
    layer->forward_qkv(s, made(layer->input(s, kTokens), x), saved);
    layer->forward_attention(s, layer->gather_keys(s, saved), saved);
    layer->forward_output(s, x, y, saved);
  }
  Gradients backward(const Scope& s) {
    if (s.checkpointing == Checkpointing::selective) {
      const Scope again = rebuild_scope(s);
      layer->rebuild(again, made(layer->input(again, kTokens), x), saved);
    }
    const Tensor gh = zeros(DType::bf16, {kTokens, kDim});
    AttentionBackward work;
    layer->backward_output(s, made(layer->output().g().gradient(s, gy), gy), work);
    layer->backward_output_wgrad(s, saved, work);
    layer->backward_attention(s, saved, work);
    gqkv = copy(work.gqkv);
    go = copy(work.go);
    layer->backward_qkv(s, saved, work, gh);
    return {gh, copy(layer->qkv().weight().grad), copy(layer->output().weight().grad)};
  }
  // The values of codes in F64, without the rounding to BF16.
  Tensor decoded(const Quantized& q) {
    return filled(DType::f64, q.rowwise.shape, [&](std::int64_t i) {
      return static_cast<double>(decode_fp8(q.format, q.rowwise.as_bytes()[i])) *
             static_cast<double>(*q.rowwise_scale_inv.as<float>());
    });
  }
  float amax_of(const std::string& operand, char role = 'x') {
    for (const auto& state : scales->tensors()) {
      if (state.name == concat("fp8.", operand, ".", role, ".amax_history")) return *state.tensor.as<float>();
    }
    ADD_FAILURE() << "no state of " << operand;
    return 0;
  }

  static kernels::AttentionShape exact_shape() {
    return {.batch = kSequences,
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim,
            .scale = 1 / std::sqrt(static_cast<double>(kHeadDim))};
  }
  static double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) error += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
    return std::sqrt(error / norm);
  }

  std::unique_ptr<Attention> layer;
  AttentionSaved saved;
  Tensor table, positions, x, gy, y, gqkv, go;
};

// Backward is that of attention over the values of forward's codes: the F64 kernels compute the same from these values. They
// read the same O, whose rounding is a part of forward. The values are rounded to BF16, the gradient of O is BF16, and so are the
// results; each rounding moves a gradient by at most 2^-8 of the magnitudes that it sums. Gradients of attention over Q, K and V
// themselves are as far away as E4M3's rounding implies, which is at least 2^-4 / sqrt(12), and so are those of no FP8 at all.
TEST_F(AttentionFp8Layer, BackwardIsThatOfTheValuesOfForwardsCodes) {
  make();
  forward(attention_scope());
  EXPECT_FALSE(saved.qkv || saved.o) << "codes replace them";
  const AttentionSaved kept = saved;
  const Tensor lse32 = copy(saved.lse);
  const Tensor q = decoded(kept.q_codes), k = decoded(kept.k_codes), v = decoded(kept.v_codes), o = decoded(kept.o_codes);
  backward(attention_scope());
  const kernels::AttentionShape shape = exact_shape();
  const Tensor exact_o = zeros(DType::f64, o.shape), lse = zeros(DType::f64, {kSequences * kHeads, kLength});
  kernels::attention_forward(*stream, scratch, {.shape = shape, .q = q, .k = k, .v = v, .o = exact_o, .lse = lse});
  EXPECT_TRUE(testing::near_norm(values_of(lse32), values_of(lse), 0x1p-18))
      << "the sum is that of probabilities before rounding";
  const Band noise = rounding_noise(0x1p-4);
  const double of_o = distance(values_of(o), values_of(exact_o));
  EXPECT_GT(of_o, noise.low);                        // O's own rounding alone
  EXPECT_LT(of_o, 2 * std::sqrt(2.0) * noise.high);  // with that of probabilities, which is independent

  const Tensor gradient =
      filled(DType::f64, go.shape, [&](std::int64_t i) { return static_cast<double>(static_cast<float>(go.as<BFloat16>()[i])); });
  const Tensor gq = zeros(DType::f64, q.shape), gk = zeros(DType::f64, k.shape), gv = zeros(DType::f64, v.shape);
  kernels::attention_backward(
      *stream, scratch,
      {.shape = shape, .q = q, .k = k, .v = v, .o = o, .lse = lse, .go = gradient, .gq = gq, .gk = gk, .gv = gv});
  std::int64_t begin = 0;
  for (const Tensor& expected : {gq, gk, gv}) {
    const Tensor actual = copy(gqkv.slice_cols(begin, begin + expected.cols()));
    begin += expected.cols();
    EXPECT_LT(distance(values_of(actual), values_of(expected)), 4 * 0x1p-8) << "of the columns before " << begin;
  }
}

TEST_F(AttentionFp8Layer, AllWaysToBackwardGiveTheSameBits) {
  struct Ignore final : Watch {
    void operand(const Scope&, std::string_view name, Role, const Tensor& source, const Quantized& q) override {
      EXPECT_TRUE(source && (q.rowwise || q.columnwise)) << name;
      seen.push_back(std::string(name));
    }
    void product(const Scope&, std::string_view, std::string_view, const kernels::Gemm&) override {}
    void attention(const Scope&, std::string_view, const Tensor&) override {}
    std::vector<std::string> seen;
  } watch;
  for (const recipes::Options& options : {recipes::Options{}, {.wgrad = "bf16"}, {.attention = "fp8"}}) {
    make(options);
    const auto run = [&](Checkpointing mode, Watch* by) {
      for (const auto& state : scales->tensors()) {
        if (state.name.ends_with(".amax_history")) *state.tensor.as<float>() = 0;
      }
      parameters->zero_gradients(*stream);
      Scope s = attention_scope();
      s.checkpointing = mode;
      s.watch = by;
      forward(s);
      const Tensor output = copy(y);
      const Gradients g = backward(s);
      std::vector<float> of_attention;
      for (const auto& state : scales->tensors()) {
        if (!state.name.ends_with(".amax_history") || state.name.find(".w.") != std::string::npos) continue;
        of_attention.push_back(*state.tensor.as<float>());
        EXPECT_GT(of_attention.back(), 0) << state.name;
      }
      const Tensor amaxes = filled(DType::f32, {std::ssize(of_attention)}, [&](std::int64_t i) {
        return static_cast<double>(of_attention[static_cast<std::size_t>(i)]);
      });
      return std::vector<Tensor>{output, g.h, g.qkv, g.output, amaxes};
    };
    const std::vector<Tensor> expected = run(Checkpointing::none, nullptr);
    const auto expect_same = [&](const std::vector<Tensor>& actual, const char* what) {
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bytes(actual[i], expected[i])) << what << " " << i;
    };
    expect_same(run(Checkpointing::selective, nullptr), "selective");
    expect_same(run(Checkpointing::none, &watch), "watched");
    for (const char* name : {"attn.q", "attn.k", "attn.v", "attn.o_proj"})
      EXPECT_TRUE(std::find(watch.seen.begin(), watch.seen.end(), name) != watch.seen.end()) << name;
  }
}

// Backward in FP8 differs from exact gradients of attention over forward's codes by the roundings of P, gO, dS and the result.
TEST_F(AttentionFp8Layer, BackwardInFp8IsAsNearAsItsRoundings) {
  make({.attention = "fp8"});
  for (const auto& state : scales->tensors()) {
    if (state.name.ends_with(".g.scale")) *state.tensor.as<float>() = 4000;
  }
  forward(attention_scope());
  const AttentionSaved kept = saved;
  const Tensor q = decoded(kept.q_codes), k = decoded(kept.k_codes), v = decoded(kept.v_codes), o = decoded(kept.o_codes);
  backward(attention_scope());
  const Tensor exact_o = zeros(DType::f64, o.shape), lse = zeros(DType::f64, {kSequences * kHeads, kLength});
  kernels::attention_forward(*stream, scratch, {.shape = exact_shape(), .q = q, .k = k, .v = v, .o = exact_o, .lse = lse});
  const Tensor gradient =
      filled(DType::f64, go.shape, [&](std::int64_t i) { return static_cast<double>(static_cast<float>(go.as<BFloat16>()[i])); });
  const Tensor gq = zeros(DType::f64, q.shape), gk = zeros(DType::f64, k.shape), gv = zeros(DType::f64, v.shape);
  kernels::attention_backward(
      *stream, scratch,
      {.shape = exact_shape(), .q = q, .k = k, .v = v, .o = o, .lse = lse, .go = gradient, .gq = gq, .gk = gk, .gv = gv});
  const Band noise = rounding_noise(0x1p-3);  // of E5M2
  std::int64_t begin = 0;
  for (const Tensor& expected : {gq, gk, gv}) {
    const Tensor actual = copy(gqkv.slice_cols(begin, begin + expected.cols()));
    begin += expected.cols();
    const double error = distance(values_of(actual), values_of(expected));
    EXPECT_GT(error, noise.low) << "the result's own rounding alone; columns before " << begin;
    EXPECT_LT(error, 2 * std::sqrt(3.0) * noise.high) << "three roundings to E5M2; columns before " << begin;
  }
}

// Calibration computes gradients in BF16, and records the amaxes of all that backward in FP8 casts.
TEST_F(AttentionFp8Layer, CalibrationRecordsGradients) {
  make({.attention = "fp8", .skip = {"attn.q_proj.fused"}});
  Scope s = attention_scope();
  s.pass = Pass::calibration;
  forward(s);
  const Tensor qkv = copy(saved.qkv), o = copy(saved.o), lse = copy(saved.lse);
  backward(s);
  const auto amax = [](const std::vector<double>& values) {
    double largest = 0;
    for (const double x : values) largest = std::max(largest, std::abs(x));
    return static_cast<float>(largest);
  };
  const std::int64_t kq = kHeads * kHeadDim, kkv = kKvHeads * kHeadDim;
  EXPECT_EQ(amax_of("attn.o", 'g'), amax(values_of(go)));
  EXPECT_EQ(amax_of("attn.q", 'g'), amax(values_of(copy(gqkv.slice_cols(0, kq)))));
  EXPECT_EQ(amax_of("attn.k", 'g'), amax(values_of(copy(gqkv.slice_cols(kq, kq + kkv)))));
  EXPECT_EQ(amax_of("attn.v", 'g'), amax(values_of(copy(gqkv.slice_cols(kq + kkv, kq + 2 * kkv)))));
  // dS from BF16 values; the codes that pass through attention are each within 2^-4 of them, those of gO within 2^-3.
  const std::vector<double> x = values_of(qkv), of_o = values_of(o), g = values_of(go), of_lse = values_of(lse);
  const auto at = [&](std::int64_t t, std::int64_t column) { return x[static_cast<std::size_t>(t * (kq + 2 * kkv) + column)]; };
  double largest = 0;
  for (std::int64_t b = 0; b < kSequences; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t k = kq + h / (kHeads / kKvHeads) * kHeadDim, v = k + kkv;
      for (std::int64_t i = 0; i < kLength; ++i) {
        for (std::int64_t j = 0; j <= i; ++j) {
          double logit = 0, dp = 0;
          for (std::int64_t d = 0; d < kHeadDim; ++d) {
            const std::int64_t query = b * kLength + i, key = b * kLength + j;
            const auto column = static_cast<std::size_t>(query * kq + h * kHeadDim + d);
            logit += at(query, h * kHeadDim + d) * at(key, k + d) * exact_shape().scale;
            dp += g[column] * (at(key, v + d) - of_o[column]);
          }
          const double p = std::exp(logit - of_lse[static_cast<std::size_t>((b * kHeads + h) * kLength + i)]);
          largest = std::max(largest, std::abs(exact_shape().scale * p * dp));
        }
      }
    }
  }
  EXPECT_NEAR(amax_of("attn.s", 'g'), largest, 0.25 * largest);
}

// The codes are those that the kernels make of what BF16 attention reads, and their amaxes are recorded once.
TEST_F(AttentionFp8Layer, CastsNormedAndRotatedOperands) {
  make({.skip = {"attn.q_proj.fused"}});  // so that calibration does not cast its input otherwise
  Scope s = attention_scope();
  s.pass = Pass::calibration;
  s.record = Record::nothing;
  forward(s);
  ASSERT_TRUE(saved.qkv) << "calibration attends in BF16";
  const Tensor qkv = copy(saved.qkv);
  for (const bool records : {false, true}) {
    s.pass = Pass::training;
    s.record = records ? Record::amax : Record::nothing;
    forward(s);
  }
  std::int64_t begin = 0;
  const Tensor factor = filled(DType::f32, {1}, [](std::int64_t) { return 60; });
  for (const auto& [name, q] :
       {std::pair("attn.q", saved.q_codes), std::pair("attn.k", saved.k_codes), std::pair("attn.v", saved.v_codes)}) {
    const Tensor values = copy(qkv.slice_cols(begin, begin + q.rowwise.cols()));
    begin += q.rowwise.cols();
    float amax = 0;
    Quantized expected;
    expected.rowwise = zeros(DType::f8_e4m3, values.shape);
    expected.rowwise_scale_inv = zeros(DType::f32, {1});
    kernels::quantize(*stream, scratch,
                      {.x = values, .spec = recipe.x, .out = expected, .scale = factor.as<float>(), .amax = &amax});
    EXPECT_TRUE(same_bytes(q.rowwise, expected.rowwise)) << name;
    EXPECT_TRUE(same_bytes(q.rowwise_scale_inv, expected.rowwise_scale_inv)) << name;
    EXPECT_EQ(amax_of(name), amax) << name;
    EXPECT_GT(amax, 0);
  }
}

TEST_F(AttentionFp8Layer, NoAmaxIsRecordedWhereNothingMayBe) {
  make({.attention = "fp8"});
  Scope s = attention_scope();
  s.record = Record::nothing;
  for (const Pass pass : {Pass::training, Pass::calibration}) {
    s.pass = pass;
    forward(s);
    backward(s);
    for (const char* name : {"attn.q", "attn.k", "attn.v", "attn.o_proj"}) EXPECT_EQ(amax_of(name), 0) << name;
    for (const char* name : {"attn.q", "attn.k", "attn.v", "attn.o", "attn.s"}) EXPECT_EQ(amax_of(name, 'g'), 0) << name;
  }
}

// O has the scale of its output linear. Without FP8 there, there is none.
TEST_F(AttentionFp8Layer, IsInBf16IfItsOutputLinearIs) {
  make({.skip = {"attn.o_proj"}});
  EXPECT_FALSE(layer->is_fp8(attention_scope()));
  for (const auto& state : scales->tensors()) EXPECT_EQ(state.name.find("attn.q.x"), std::string::npos) << state.name;
  forward(attention_scope());
  EXPECT_TRUE(saved.qkv && saved.o);
}

}  // namespace
}  // namespace octet::nn

// Tests what happens at the edges of layers that the tensor axis cuts. The ranks are threads.
#include "octet/nn/sequence.h"

#include "nn/layer_fixture.h"
#include "octet/nn/head_loss.h"
#include "support/bounds.h"
#include "support/mesh_ranks.h"

namespace octet::nn {
namespace {

using testing::values_of;

// Everything that a layer of one rank needs.
struct Rank {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream = device->make_stream();
  Arena stash{*device, MemoryCategory::activations, 1 << 22}, scratch{*device, MemoryCategory::workspace, std::size_t{1} << 28};
  parallel::Groups groups;

  Scope scope(DType dtype) {
    return {.stream = *stream,
            .stash = stash,
            .scratch = scratch,
            .dtype = dtype,
            .context = *groups.context,
            .tensor = *groups.tensor,
            .expert = *groups.expert};
  }
};

template <class Body>
void on_ranks(int ranks, const Body& body) {
  testing::ThreadRanks threads;
  testing::run_ranks(ranks, [&](int rank) {
    Rank at;
    at.groups = threads.groups(parallel::Mesh({1, 1, 1, ranks}), rank, *at.device);
    body(rank, at);
  });
}

struct Tokens : testing::OpTest {};

// The sums of these numbers are exact.
TEST_F(Tokens, AreGatheredAndSummedInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [&](int rank, Rank& at) {
      const Scope scope = at.scope(DType::bf16);
      EXPECT_EQ(share_of_tokens(scope, 8), 8 / ranks);
      const Tensor x = allocate(at.stash, DType::bf16, {2, 3}), y = allocate(at.stash, DType::bf16, {2, 3});
      for (int i = 0; i < 6; ++i) x.as<BFloat16>()[i] = BFloat16(static_cast<float>(6 * rank + i));
      const Tensor all = gather_tokens(scope, at.scratch, x);
      EXPECT_EQ(all.data == x.data, ranks == 1);
      const std::vector<double> gathered = values_of(all);
      for (std::size_t i = 0; i < gathered.size(); ++i) EXPECT_EQ(gathered[i], static_cast<double>(i));
      for (const Tensor& residual : {Tensor{}, x}) {
        PartialSum sum(scope, residual, y);
        EXPECT_EQ(sum.d.rows(), 2 * ranks);
        for (std::int64_t i = 0; i < sum.d.elements(); ++i) {
          const float c = sum.c ? static_cast<float>(sum.c.as<BFloat16>()[i]) : 0.0f;
          sum.d.as<BFloat16>()[i] = BFloat16(static_cast<float>(i + rank) + c);
        }
        sum.finish(scope);
        for (int i = 0; i < 6; ++i) {
          const int place = 6 * rank + i, expected = ranks * place + ranks * (ranks - 1) / 2 + (residual ? place : 0);
          EXPECT_EQ(static_cast<float>(y.as<BFloat16>()[i]), static_cast<float>(expected)) << "of " << ranks;
        }
      }
      if (ranks > 1) {
        EXPECT_THROW(share_of_tokens(scope, 9), Error);
      }
    });
  }
}

// Small integers, so that the sums of their products are exact.
double number(std::int64_t row, std::int64_t col) { return static_cast<double>((7 * row + 3 * col) % 5 - 2); }

// Two ranks hold the rows or the columns of a weight. Rank r shares the tokens on the side of the linear that is not cut.
TEST_F(Tokens, ALinearThatIsCutComputesWhatTheWholeOneDoes) {
  constexpr std::int64_t kRanks = 2, kTokens = 8, kIn = 4, kOut = 6;
  for (const parallel::Cut along : {parallel::Cut::rows, parallel::Cut::columns}) {
    on_ranks(kRanks, [&](int rank, Rank& at) {
      const bool rows = along == parallel::Cut::rows;
      const Recipe recipe = recipes::make_recipe("fp32", {});
      parallel::ParameterStore store(parallel::TensorPlace{rank, kRanks});
      recipes::ScaleState scales(recipe);
      const Linear linear({.parts = {"a"}, .out = kOut, .in = kIn, .cut = {.along = along}, .bias = true}, recipe, store, scales);
      store.materialise(*at.device, {.compute = DType::f32}, &at.groups, {});
      store.zero_gradients(*at.stream);
      const std::int64_t share = kTokens / kRanks, out = rows ? kOut / kRanks : kOut, in = rows ? kIn : kIn / kRanks;
      // Where the tokens, outputs and inputs of this rank begin.
      const std::int64_t x0 = rows ? rank * share : 0, y0 = rows ? 0 : rank * share, o0 = rows ? rank * out : 0;
      const std::int64_t i0 = rows ? 0 : rank * in;
      const auto numbers = [&](Shape shape, std::int64_t row, std::int64_t col) {
        const Tensor result = allocate(at.stash, DType::f32, shape);
        for (std::int64_t r = 0; r < shape[0]; ++r) {
          for (std::int64_t c = 0; c < shape[1]; ++c)
            result.as<float>()[r * shape[1] + c] = static_cast<float>(number(row + r, col + c));
        }
        return result;
      };
      const Tensor w = linear.weight().value, b = linear.bias()->value;
      ASSERT_EQ(w.shape, Shape({out, in}));
      std::memcpy(w.data, numbers({out, in}, 100 + o0, i0).data, w.bytes());
      std::memcpy(b.data, numbers({1, out}, 200, o0).data, b.bytes());
      const Tensor x = numbers({rows ? share : kTokens, in}, x0, i0),
                   residual = numbers({rows ? kTokens : share, out}, 50 + y0, o0);
      const Tensor g = numbers(residual.shape, 300 + y0, o0), y = numbers(g.shape, 0, 0), gx = numbers(x.shape, 0, 0);

      const Scope scope = at.scope(DType::f32);
      const Operand kept = linear_forward(scope, linear, {.values = x}, Reads::fprop_and_wgrad, residual, y);
      linear_backward(scope, linear, {.values = g}, kept, gx);

      const auto expect = [&](const Tensor& actual, std::int64_t row, std::int64_t col, auto expected) {
        for (std::int64_t r = 0; r < actual.rows(); ++r) {
          for (std::int64_t c = 0; c < actual.cols(); ++c)
            EXPECT_EQ(actual.as<float>()[r * actual.cols() + c], expected(row + r, col + c)) << r << ", " << c;
        }
      };
      const auto sum = [](std::int64_t count, auto term) {
        double total = 0;
        for (std::int64_t i = 0; i < count; ++i) total += term(i);
        return total;
      };
      expect(y, y0, o0, [&](auto t, auto o) {
        return sum(kIn, [&](auto i) { return number(t, i) * number(100 + o, i); }) + number(50 + t, o) + number(200, o);
      });
      expect(gx, x0, i0,
             [&](auto t, auto i) { return sum(kOut, [&](auto o) { return number(300 + t, o) * number(100 + o, i); }); });
      expect(linear.weight().grad, o0, i0,
             [&](auto o, auto i) { return sum(kTokens, [&](auto t) { return number(300 + t, o) * number(t, i); }); });
      // The gradient of a bias that all ranks hold is that of this rank's tokens.
      expect(linear.bias()->grad.reshape({1, out}), 0, o0,
             [&](auto, auto o) { return sum(g.rows(), [&](auto t) { return number(300 + y0 + t, o); }); });
    });
  }
}

// The vocabulary is so large that the logits of all tokens never exist at once. Each chunk has tokens of both ranks' shares.
TEST_F(Tokens, HeadAndLossAddUpInChunks) {
  constexpr std::int64_t kVocab = (1 << 17) + 16, kTokens = 300, kDim = 2;
  const Tensor h = random(DType::f32, {kTokens, kDim}), gh = zeros(DType::f32, {kTokens, kDim}), together = copy(gh);
  const Tensor gw = zeros(DType::f32, {kVocab, kDim}), gw_together = copy(gw);
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < kTokens; ++t) ids.push_back(t % 7 == 3 ? -100 : t * 431);
  const Tensor targets = integers(ids);
  double expected[2] = {0, 0};
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](int rank, Rank& at) {
      const Recipe recipe = recipes::make_recipe("fp32", {});
      parallel::ParameterStore store(parallel::TensorPlace{rank, ranks});
      recipes::ScaleState scales(recipe);
      HeadLoss head({.vocab = kVocab, .dim = kDim, .init_std = 0.5}, recipe, store, scales);
      store.materialise(*at.device, {.compute = DType::f32}, &at.groups, {});
      head.head().bind();
      store.initialise(*at.stream, 3);
      store.zero_gradients(*at.stream);
      const std::int64_t share = kTokens / ranks;
      const Tensor& gradient = ranks == 1 ? gh : together;
      double total[2] = {0, 0};
      head.loss(at.scope(DType::f32), h.slice_rows(rank * share, (rank + 1) * share), targets, total,
                gradient.slice_rows(rank * share, (rank + 1) * share));
      EXPECT_LT(at.scratch.high_water(), sizeof(float) * static_cast<std::size_t>(kVocab * kTokens / ranks));
      const Tensor& g = head.head().weight().grad;
      std::memcpy((ranks == 1 ? gw : gw_together).slice_rows(rank * g.rows(), (rank + 1) * g.rows()).data, g.data, g.bytes());
      if (ranks == 1) {
        std::copy(total, total + 2, expected);
        return;
      }
      // The results differ only in the order of the sums: exponentials of FP32 logits, and sums of one term from each rank.
      EXPECT_NEAR(total[0], expected[0], gamma(64, kUnitRoundoffF32) * expected[0]);
      EXPECT_EQ(total[1], expected[1]);
    });
  }
  EXPECT_TRUE(testing::near_norm(values_of(together), values_of(gh), gamma(1024, kUnitRoundoffF32)));
  EXPECT_TRUE(testing::near_norm(values_of(gw_together), values_of(gw), gamma(1024, kUnitRoundoffF32)));
}

}  // namespace
}  // namespace octet::nn

// Logits far from zero. Backward computes exp(logit - lse) for whole tiles. In a tile that is only partly filled, padding has a
// logit of about 0. If a row's lse is below -88.7, exp(0 - lse) overflows in F32, and infinity times zero is NaN. Kernels that
// mask the padding too late return such NaN on Hopper, so every length of the last tile is tried here.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/attention_fixture.h"

namespace octet::testing {
namespace {

class AttentionExtremesGpuTest : public AttentionGpuTest {
 protected:
  static constexpr std::int64_t kShifted = 16;  // columns of each head whose products shift the logits
  static constexpr double kShifts[] = {-60, -100, -130, -300, 130};

  // Adds about `shift` to all logits: the last columns of each query hold c and those of each key c or -c, so that their product
  // is kShifted c^2.
  void shift_logits(const Operands& x, double shift) {
    const double c = std::sqrt(std::abs(shift) / (kShifted * x.sizes.shape().scale));
    fill_last_columns(x.q, x.sizes.dim, c);
    fill_last_columns(x.k, x.sizes.dim, shift < 0 ? -c : c);
  }

  // Compares with the CPU. The shifted columns of gq and gk are sums of dS times c. Their exact value is zero, so only roundoff
  // is left there, and it must be finite.
  void expect_agreement_shifted(const Operands& x, double shift) {
    SCOPED_TRACE(concat(x.sizes.text(), x.first_keys.cpu ? " documents" : "", " shift ", shift));
    shift_logits(x, shift);
    run_cpu(x);
    run_gpu(x);
    const double reach = largest_norm(values_of(x.q.cpu), x.sizes.dim) * largest_norm(values_of(x.k.cpu), x.sizes.dim);
    const double logit_error = dot_error_bound(x.sizes.dim, reach * x.sizes.shape().scale, 3);
    const double sum_error = gamma(static_cast<double>(x.sizes.sk + 64), kUnitRoundoffF32);
    ASSERT_TRUE(near(lse_on_gpu(x), values_of(x.lse.cpu),
                     {.absolute = 2 * (logit_error + sum_error), .relative = gamma(8, kUnitRoundoffF32)}))
        << "lse";
    for (const Twin* t : {&x.o, &x.gq, &x.gk, &x.gv}) {
      const std::vector<double> values = on_gpu(*t);
      ASSERT_TRUE(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) << "not finite";
    }
    // An error of a logit is a relative error of P.
    const double noise = 2 * logit_error;
    EXPECT_TRUE(near_norm(on_gpu(x.o), values_of(x.o.cpu), bf16_noise(3) + noise)) << "o";
    EXPECT_TRUE(near_norm(on_gpu(x.gv), values_of(x.gv.cpu), bf16_noise(6) + noise)) << "gv";
    const std::int64_t dim = x.sizes.dim;
    EXPECT_TRUE(near_norm(unshifted(on_gpu(x.gq), dim), unshifted(values_of(x.gq.cpu), dim), bf16_noise(6) + noise)) << "gq";
    EXPECT_TRUE(near_norm(unshifted(on_gpu(x.gk), dim), unshifted(values_of(x.gk.cpu), dim), bf16_noise(6) + noise)) << "gk";
  }

  void expect_agreement_shifted(const AttentionSizes& sizes) {
    const Operands x = operands(sizes);
    for (const double shift : kShifts) {
      expect_agreement_shifted(x, shift);
      if (HasFatalFailure()) return;
    }
  }

 private:
  // The rows may be slices of longer ones.
  void fill_last_columns(const Twin& t, std::int64_t dim, double value) {
    for (std::int64_t row = 0; row < t.cpu.rows(); ++row) {
      BFloat16* const host = t.cpu.as<BFloat16>() + row * t.cpu.row_stride;
      for (std::int64_t col = 0; col < t.cpu.cols(); ++col) {
        if (col % dim >= dim - kShifted) host[col] = static_cast<BFloat16>(static_cast<float>(value));
      }
      gpu_stream->copy_to_device(t.gpu.as<BFloat16>() + row * t.gpu.row_stride, host,
                                 static_cast<std::size_t>(t.cpu.cols()) * sizeof(BFloat16));
    }
    gpu_stream->synchronize();
  }
  static std::vector<double> unshifted(const std::vector<double>& x, std::int64_t dim) {
    std::vector<double> result;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (static_cast<std::int64_t>(i) % dim < dim - kShifted) result.push_back(x[i]);
    }
    return result;
  }
};

TEST_F(AttentionExtremesGpuTest, EveryLengthOfTheLastTile) {
  for (std::int64_t rest = 1; rest <= 128; ++rest) {
    expect_agreement_shifted({1, 2, 1, 128 + rest, 128 + rest, 128});
    if (rest % 64 < 2) expect_agreement_shifted({1, 2, 1, 128 + rest, 128 + rest, 64});
    if (HasFatalFailure()) return;
  }
}

TEST_F(AttentionExtremesGpuTest, DeterministicBackward) {
  for (std::int64_t rest = 1; rest <= 128; rest += 7) {
    expect_agreement_shifted({1, 2, 1, 128 + rest, 128 + rest, 128, true});
    if (HasFatalFailure()) return;
  }
}

TEST_F(AttentionExtremesGpuTest, WindowsOfEveryLength) {
  for (std::int64_t rest = 1; rest <= 128; ++rest) {
    AttentionSizes sizes{1, 2, 1, 256 + rest, 256 + rest, 128};
    sizes.window = 64 + rest;
    expect_agreement_shifted(sizes);
    if (HasFatalFailure()) return;
  }
}

// A rank of the context axis computes a chunk of queries on a prefix of the keys, or on keys that all of them see.
TEST_F(AttentionExtremesGpuTest, RectanglesOfContextRanks) {
  for (std::int64_t rest = 1; rest <= 128; ++rest) {
    expect_agreement_shifted({1, 2, 1, 128, 128 + rest, 128});
    AttentionSizes all{1, 2, 1, 128, 64 + rest, 128};
    all.visible = Visible::all;
    if (kernels::attention_is_safe_without_mask(all.sk)) expect_agreement_shifted(all);
    if (HasFatalFailure()) return;
  }
}

TEST_F(AttentionExtremesGpuTest, DocumentsThatEndAnywhere) {
  for (std::int64_t rest = 1; rest <= 128; ++rest) {
    Operands x = operands({2, 2, 1, 512, 512, 128});
    give_documents(x, {rest, 128 + rest, 129 + rest, 192 + rest, 320 + rest});
    for (const double shift : kShifts) {
      expect_agreement_shifted(x, shift);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace octet::testing

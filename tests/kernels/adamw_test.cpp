#include "octet/kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/kernels/adamw/fp8_moments.h"
#include "octet/kernels/adamw/stochastic_rounding.h"
#include "support/bounds.h"
#include "support/paths.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::same_bytes;
using testing::values_of;

constexpr std::uint64_t kSeed = 1234567890123ull;
constexpr std::uint32_t kSubject = name_id("model.layers.0.mlp.down_proj.weight");

struct AdamWTest : testing::OpTest {
  struct Operands {
    Tensor grad, weight, moment1, moment2, value;
  };
  Operands operands(std::int64_t count, DType grad, DType weight, DType moment) {
    Operands o{.grad = random(grad, {count}, 100.0),
               .weight = random(weight, {count}),
               .moment1 = random(moment, {count}, 0.01),
               .moment2 = random(moment, {count}, 0.01),
               .value = {}};
    visit_float(moment, [&]<class T>() {
      for (std::int64_t i = 0; i < count; ++i) {
        o.moment2.as<T>()[i] = static_cast<T>(std::abs(static_cast<Real<T>>(o.moment2.as<T>()[i])));
      }
    });
    if (weight == DType::f32) o.value = zeros(DType::bf16, {count});
    return o;
  }
  Operands copy_of(const Operands& o) {
    return {.grad = copy(o.grad),
            .weight = copy(o.weight),
            .moment1 = copy(o.moment1),
            .moment2 = copy(o.moment2),
            .value = o.value ? copy(o.value) : Tensor{}};
  }
  static StepScalars scalars() {
    return {.loss_sum = 1,
            .token_count = 100,
            .grad_norm = 1,
            .grad_scale = 0.8 / 100,
            .learning_rate = 0.01,
            .bias_correction1 = 1 - std::pow(0.9, 5),
            .bias_correction2 = 1 - std::pow(0.95, 5),
            .found_inf = 0,
            .step = 6,
            .updates = 5};
  }
  AdamW op(const Operands& o, const StepScalars& s) {
    return {.grad = o.grad,
            .weight = o.weight,
            .moment1 = o.moment1,
            .moment2 = o.moment2,
            .value = o.value,
            .weight_decay = 0.1,
            .seed = kSeed,
            .subject = kSubject,
            .scalars = &s};
  }
};

// Computes the formula in F64. Values of BF16 tensors are compared before they are rounded.
struct Expected {
  std::vector<double> weight, moment1, moment2;
};
Expected formula(const std::vector<double>& grad, std::vector<double> w, std::vector<double> m, std::vector<double> v,
                 const StepScalars& s) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double g = grad[i] * s.grad_scale;
    w[i] -= s.learning_rate * 0.1 * w[i];
    m[i] = 0.9 * m[i] + 0.1 * g;
    v[i] = 0.95 * v[i] + 0.05 * g * g;
    w[i] -= s.learning_rate / s.bias_correction1 * m[i] / (std::sqrt(v[i]) / std::sqrt(s.bias_correction2) + 1e-8);
  }
  return {w, m, v};
}

TEST_F(AdamWTest, IsTheFormula) {
  for (const DType weight : {DType::f64, DType::f32}) {
    for (const DType grad : testing::kFloatTypes) {
      const Operands o = operands(3001, grad, weight, weight);
      const StepScalars s = scalars();
      const auto w0 = values_of(o.weight), m0 = values_of(o.moment1), g0 = values_of(o.grad);
      const Expected expected = formula(g0, w0, m0, values_of(o.moment2), s);
      adamw(*stream, op(o, s));
      // Each result needs at most 16 rounded operations on the magnitudes that are added. `step` bounds the size of a step by lr
      // / bias_correction1 * (|m| + |g|) / (sqrt(v) / ...).
      const double chain = gamma(16, testing::compute_roundoff(weight));
      EXPECT_TRUE(near(o.moment2, expected.moment2, {.relative = chain})) << name_of(weight);
      EXPECT_TRUE(near(values_of(o.moment1), expected.moment1, [&](std::size_t i) {
        return chain * (std::abs(m0[i]) + std::abs(g0[i]) * s.grad_scale);
      })) << name_of(weight);
      EXPECT_TRUE(near(values_of(o.weight), expected.weight,
                       [&](std::size_t i) {
                         const double step = s.learning_rate / s.bias_correction1 *
                                             (std::abs(m0[i]) + std::abs(g0[i]) * s.grad_scale) /
                                             std::sqrt(expected.moment2[i] / s.bias_correction2);
                         return chain * (std::abs(w0[i]) + step);
                       }))
          << name_of(weight) << " gradient " << name_of(grad);
      if (o.value) {
        for (std::int64_t i = 0; i < 3001; ++i) ASSERT_EQ(o.value.as<BFloat16>()[i], BFloat16(o.weight.as<float>()[i])) << i;
      }
    }
  }
}

TEST_F(AdamWTest, Bf16StateIsRoundedStochasticallyFromTheFp32Result) {
  for (const DType weight : {DType::f32, DType::bf16}) {
    const std::int64_t count = 2000, first = 8 * 1000003 + 5;
    const Operands o = operands(count, DType::f32, weight, DType::bf16), exact = [&] {
      Operands wide = operands(count, DType::f32, DType::f32, DType::f32);
      std::copy_n(o.grad.as<float>(), count, wide.grad.as<float>());
      const auto w = values_of(o.weight), m = values_of(o.moment1), v = values_of(o.moment2);
      for (std::size_t i = 0; i < w.size(); ++i) {
        wide.weight.as<float>()[i] = static_cast<float>(w[i]);
        wide.moment1.as<float>()[i] = static_cast<float>(m[i]);
        wide.moment2.as<float>()[i] = static_cast<float>(v[i]);
      }
      return wide;
    }();
    const StepScalars s = scalars();
    adamw(*stream, op(exact, s));
    AdamW narrow = op(o, s);
    narrow.elements.first = first;
    adamw(*stream, narrow);
    const auto check = [&](const Tensor& actual, const Tensor& fp32, RngStream stream) {
      const Rng rng(kSeed, stream, kSubject);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = rounding_bits(rng, static_cast<std::uint64_t>(first + i), s.step);
        ASSERT_EQ(actual.as<BFloat16>()[i], BFloat16::stochastic(fp32.as<float>()[i], bits)) << i;
      }
    };
    check(o.moment1, exact.moment1, RngStream::round_moment1);
    check(o.moment2, exact.moment2, RngStream::round_moment2);
    if (weight == DType::bf16) {
      check(o.weight, exact.weight, RngStream::round_weight);
    } else {
      EXPECT_TRUE(same_bytes(o.weight, exact.weight));
    }
  }
}

TEST_F(AdamWTest, AnyCutGivesTheSameBits) {
  const std::int64_t count = 5000, first = 3;
  for (const DType weight : {DType::f32, DType::bf16}) {
    const Operands o = operands(count, DType::bf16, weight, DType::bf16);
    const Operands whole = copy_of(o), cut = copy_of(o);
    const StepScalars s = scalars();
    AdamW all = op(whole, s);
    all.elements.first = first;
    adamw(*stream, all);
    const std::vector<std::int64_t> cuts = {0, 1, 8, 13, 700, 1723, 4999, count};
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = [&](const Tensor& tensor) { return tensor ? tensor.slice_rows(cuts[i], cuts[i + 1]) : tensor; };
      AdamW piece = op({part(cut.grad), part(cut.weight), part(cut.moment1), part(cut.moment2), part(cut.value)}, s);
      piece.elements.first = first + cuts[i];
      adamw(*stream, piece);
    }
    EXPECT_TRUE(same_bytes(cut.weight, whole.weight));
    EXPECT_TRUE(same_bytes(cut.moment1, whole.moment1));
    EXPECT_TRUE(same_bytes(cut.moment2, whole.moment2));
    if (whole.value) {
      EXPECT_TRUE(same_bytes(cut.value, whole.value));
    }
  }
}

// Updates columns 16 to 55 of a [60, 72] matrix as a tensor of its own, from the middle of row 3 on.
TEST_F(AdamWTest, ColumnsHaveTheBitsOfTheWhole) {
  const std::int64_t rows = 60, cols = 72, from = 16, width = 40, begin = 3 * width + 8;
  for (const DType weight : {DType::f32, DType::bf16}) {
    const Operands whole = operands(rows * cols, DType::bf16, weight, DType::bf16);
    const StepScalars s = scalars();
    const auto columns = [&](const Tensor& tensor) {
      if (!tensor) return tensor;
      const Tensor all = copy(tensor.reshape({rows, cols}).slice_cols(from, from + width)).reshape({rows * width});
      return all.slice_rows(begin, rows * width);
    };
    const Operands cut = {columns(whole.grad), columns(whole.weight), columns(whole.moment1), columns(whole.moment2),
                          columns(whole.value)};
    adamw(*stream, op(whole, s));
    AdamW part = op(cut, s);
    part.elements = {.first = 3 * cols + from + 8, .run = width, .stride = cols, .skip = 8};
    adamw(*stream, part);
    EXPECT_TRUE(same_bytes(cut.weight, columns(whole.weight)));
    EXPECT_TRUE(same_bytes(cut.moment1, columns(whole.moment1)));
    EXPECT_TRUE(same_bytes(cut.moment2, columns(whole.moment2)));
    part.elements.run = 44;
    expect_refusal([&] { adamw(*stream, part); }, "columns [44 of 72] are not multiples of 8");
  }
}

// Tensors of several sizes, an empty one and columns of a matrix among them.
TEST_F(AdamWTest, AListHasTheBitsOfItsOps) {
  const StepScalars s = scalars();
  for (const DType weight : {DType::f32, DType::bf16}) {
    std::vector<AdamW> singles, list;
    std::vector<Operands> expected, actual;
    for (const std::int64_t count : {40000, 0, 1, 17000, 8, 1600}) {
      expected.push_back(operands(count, DType::bf16, weight, DType::bf16));
      actual.push_back(copy_of(expected.back()));
      for (auto* ops : {&singles, &list}) {
        ops->push_back(op(ops == &list ? actual.back() : expected.back(), s));
        ops->back().subject = static_cast<std::uint32_t>(ops->size());
        ops->back().weight_decay = count % 2 == 0 ? 0.1 : 0.0;
        ops->back().elements.first = count == 17000 ? 13 : 16;
        if (count == 1600) ops->back().elements = {.first = 24, .run = 40, .stride = 72, .skip = 8};
      }
    }
    for (const AdamW& single : singles) adamw(*stream, single);
    const AdamWList together(*device, list);
    stream->reset_work();
    adamw(*stream, together);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bytes(actual[i].weight, expected[i].weight)) << i;
      EXPECT_TRUE(same_bytes(actual[i].moment1, expected[i].moment1)) << i;
      EXPECT_TRUE(same_bytes(actual[i].moment2, expected[i].moment2)) << i;
      if (actual[i].value) {
        EXPECT_TRUE(same_bytes(actual[i].value, expected[i].value)) << i;
      }
    }
    const double bytes = stream->work().bytes;
    stream->reset_work();
    for (const AdamW& single : singles) adamw(*stream, single);
    EXPECT_EQ(bytes, stream->work().bytes);
    list.back().beta1 = 0.5;
    expect_refusal([&] { AdamWList(*device, list); }, "a list with several rules");
  }
}

TEST_F(AdamWTest, BitsDoNotDependOnThreads) {
  for (const DType state : {DType::f32, DType::bf16}) {
    const Operands o = operands(70001, DType::f32, state, state);
    const StepScalars s = scalars();
    expect_same_for_any_threads([&] {
      const Operands fresh = copy_of(o);
      adamw(*stream, op(fresh, s));
      return std::vector<Tensor>{fresh.weight, fresh.moment1, fresh.moment2};
    });
  }
}

TEST_F(AdamWTest, ASkippedStepMovesNothing) {
  const Operands o = operands(1000, DType::f32, DType::f32, DType::bf16), before = copy_of(o);
  StepScalars s = scalars();
  s.found_inf = 1;
  s.grad_scale = std::nan("");
  adamw(*stream, op(o, s));
  EXPECT_TRUE(same_bytes(o.weight, before.weight));
  EXPECT_TRUE(same_bytes(o.moment1, before.moment1));
  EXPECT_TRUE(same_bytes(o.moment2, before.moment2));
  EXPECT_TRUE(same_bytes(o.value, before.value));
}

TEST_F(AdamWTest, RefusesWhatItCannotUpdate) {
  const StepScalars s = scalars();
  const Operands o = operands(8, DType::f32, DType::f32, DType::f32);
  Operands wrong = o;
  wrong.moment2 = zeros(DType::bf16, {8});
  expect_refusal([&] { adamw(*stream, op(wrong, s)); }, "moments of F32 and BF16");
  wrong = o;
  wrong.grad = zeros(DType::f32, {9});
  expect_refusal([&] { adamw(*stream, op(wrong, s)); }, "grad must be 8 contiguous elements, got [9]");
  wrong = o;
  wrong.weight = zeros(DType::f64, {8});
  expect_refusal([&] { adamw(*stream, op(wrong, s)); }, "weights of F64 with moments of F32");
}

// tools/make_fp8_moments_golden.py computed the step in numpy and ml_dtypes, with random numbers of its own.
TEST_F(AdamWTest, Fp8MomentsHaveTheCodesAndScalesOfNumpy) {
  const auto golden = checkpoint::SafetensorsFile::open(testing::golden_dir() + "/adamw/fp8_moments.safetensors");
  const auto before = [&](const char* name) { return copy(golden.get(concat("before.", name))); };
  const Operands o{.grad = before("grad"),
                   .weight = before("weight"),
                   .moment1 = before("moment1"),
                   .moment2 = before("moment2"),
                   .value = {}};
  const Tensor scale1 = before("moment1_scale"), scale2 = before("moment2_scale");
  const StepScalars s = scalars();
  AdamW step = op(o, s);
  step.moment1_scale = scale1, step.moment2_scale = scale2;
  step.elements.first = 128 * 5;
  adamw(*stream, step);
  const auto after = [&](const char* name) { return golden.get(concat("after.", name)); };
  EXPECT_TRUE(same_bytes(o.moment1, after("moment1")));
  EXPECT_TRUE(same_bytes(o.moment2, after("moment2")));
  EXPECT_TRUE(same_bytes(scale1, after("moment1_scale")));
  EXPECT_TRUE(same_bytes(scale2, after("moment2_scale")));
  EXPECT_TRUE(same_bytes(o.weight, after("weight")));
}

struct Fp8MomentsTest : AdamWTest {
  struct State {
    Operands operands;
    Tensor scale1, scale2;
  };
  State state(std::int64_t count, DType grad, DType weight) {
    State result{operands(count, grad, weight, DType::f32), zeros(DType::f32, {moment_scales(count)}),
                 zeros(DType::f32, {moment_scales(count)})};
    result.operands.moment1 = zeros(DType::f8_e4m3, {count});
    result.operands.moment2 = zeros(DType::f8_e4m3, {count});
    return result;
  }
  State copy_of_state(const State& s) { return {copy_of(s.operands), copy(s.scale1), copy(s.scale2)}; }
  AdamW op_of(const State& state, const StepScalars& s) {
    AdamW result = op(state.operands, s);
    result.moment1_scale = state.scale1, result.moment2_scale = state.scale2;
    return result;
  }
  static double decoded(const Tensor& codes, const Tensor& scales, std::int64_t i) {
    return static_cast<double>(decode_fp8(Fp8Format::e4m3, codes.as_bytes()[i])) *
           static_cast<double>(scales.as<float>()[i / kMomentGroup]);
  }
};

// An interval that contains a number, whichever way it was rounded.
struct Interval {
  double low = 0, high = 0;
  double magnitude() const { return std::max(std::abs(low), std::abs(high)); }
  Interval widened(double by) const { return {low - by, high + by}; }
};

// Each rounding moves a number to a neighbour in its group: by at most an eighth of it, the distance of normal codes, or by the
// distance of subnormal codes, 2^-9 / 448 of the largest magnitude in the group. A second moment that is not zero may be raised
// by that, too. The intervals carry these errors through ten steps, and both states must stay in them.
TEST_F(Fp8MomentsTest, TenStepsStayWithinTheErrorsOfTheirCodes) {
  const std::int64_t count = 10 * kMomentGroup + 9;
  const State fp8 = state(count, DType::f32, DType::f32);
  Operands exact = copy_of(fp8.operands);
  exact.moment1 = zeros(DType::f32, {count}), exact.moment2 = zeros(DType::f32, {count});
  const auto n = static_cast<std::size_t>(count);
  std::vector<Interval> m(n), root(n), weight(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto w = static_cast<double>(exact.weight.as<float>()[i]);
    weight[i] = {w, w};
  }
  const double slack = gamma(32, kUnitRoundoffF32);
  for (std::uint32_t number = 1; number <= 10; ++number) {
    const Tensor grad = random(DType::f32, {count}, 100.0);
    for (std::int64_t i = 0; i < count; ++i) {  // groups differ in magnitude, and so do elements of a group
      grad.as<float>()[i] *= std::ldexp(1.0f, static_cast<int>(i / kMomentGroup) - 5 - (i % 7 == 0 ? 9 : 0));
      fp8.operands.grad.as<float>()[i] = exact.grad.as<float>()[i] = grad.as<float>()[i];
    }
    StepScalars s = scalars();
    s.step = number;
    s.bias_correction1 = 1 - std::pow(0.9, number), s.bias_correction2 = 1 - std::pow(0.95, number);
    adamw(*stream, op_of(fp8, s));
    adamw(*stream, op(exact, s));
    for (std::size_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(grad.as<float>()[i]) * s.grad_scale;
      m[i] = Interval{0.9 * m[i].low + 0.1 * g, 0.9 * m[i].high + 0.1 * g}.widened(slack * (m[i].magnitude() + std::abs(g)));
      root[i].low = std::sqrt(0.95 * root[i].low * root[i].low + 0.05 * g * g) * (1 - slack);
      root[i].high = std::sqrt(0.95 * root[i].high * root[i].high + 0.05 * g * g) * (1 + slack);
      const double correction = std::sqrt(s.bias_correction2), rate = s.learning_rate / s.bias_correction1;
      const double least = rate / (root[i].high / correction + 1e-8), most = rate / (root[i].low / correction + 1e-8);
      const double keep = 1 - s.learning_rate * 0.1;
      weight[i] = Interval{keep * weight[i].low - std::max(m[i].high * least, m[i].high * most),
                           keep * weight[i].high - std::min(m[i].low * least, m[i].low * most)};
      weight[i] = weight[i].widened(slack * (weight[i].magnitude() + m[i].magnitude() * most));
    }
    for (std::size_t first = 0; first < n; first += kMomentGroup) {
      const std::size_t end = std::min(n, first + kMomentGroup);
      double largest1 = 0, largest2 = 0;
      for (std::size_t i = first; i < end; ++i) {
        largest1 = std::max(largest1, m[i].magnitude());
        largest2 = std::max(largest2, root[i].high);
      }
      for (std::size_t i = first; i < end; ++i) {
        m[i] = m[i].widened(std::max(m[i].magnitude() / 8, largest1 * 0x1p-9 / 448) * (1 + slack));
        const double up = std::max(root[i].high / 8, largest2 * 0x1p-9 / 448) * (1 + slack);
        root[i] = {std::max(0.0, root[i].low - std::max(root[i].low / 8, largest2 * 0x1p-9 / 448) * (1 + slack)),
                   root[i].high + up};
      }
    }
    const auto inside = [](double value, const Interval& interval) { return interval.low <= value && value <= interval.high; };
    for (std::size_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ASSERT_TRUE(inside(decoded(fp8.operands.moment1, fp8.scale1, at), m[i])) << "moment1 " << i << " step " << number;
      ASSERT_TRUE(inside(decoded(fp8.operands.moment2, fp8.scale2, at), root[i])) << "moment2 " << i << " step " << number;
      ASSERT_TRUE(inside(static_cast<double>(fp8.operands.weight.as<float>()[i]), weight[i]))
          << "weight " << i << " step " << number;
      ASSERT_TRUE(inside(static_cast<double>(exact.moment1.as<float>()[i]), m[i])) << i;
      ASSERT_TRUE(inside(static_cast<double>(exact.weight.as<float>()[i]), weight[i])) << i;
      ASSERT_NE(fp8.operands.moment2.as_bytes()[i], 0) << "the root of " << i << " became zero";
    }
  }
  EXPECT_FALSE(same_bytes(fp8.operands.weight, exact.weight)) << "nothing was rounded";
}

TEST_F(Fp8MomentsTest, AnyCutInGroupsGivesTheSameBits) {
  const std::int64_t count = 9 * kMomentGroup + 50, first = 3 * kMomentGroup;
  for (const DType weight : {DType::f32, DType::bf16}) {
    const State whole = state(count, DType::bf16, weight), cut = copy_of_state(whole);
    for (std::uint32_t number = 1; number <= 3; ++number) {
      StepScalars s = scalars();
      s.step = number;
      AdamW all = op_of(whole, s);
      all.elements.first = first;
      adamw(*stream, all);
      std::vector<AdamW> pieces;
      const std::vector<std::int64_t> cuts = {0, 1, 4, 4, 7, moment_scales(count)};
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::int64_t begin = cuts[i] * kMomentGroup, end = std::min(count, cuts[i + 1] * kMomentGroup);
        const auto part = [&](const Tensor& tensor) { return tensor ? tensor.slice_rows(begin, end) : tensor; };
        const Operands& o = cut.operands;
        pieces.push_back(op({part(o.grad), part(o.weight), part(o.moment1), part(o.moment2), part(o.value)}, s));
        pieces.back().elements.first = first + begin;
        if (begin == end) continue;
        pieces.back().moment1_scale = cut.scale1.slice_rows(cuts[i], cuts[i + 1]);
        pieces.back().moment2_scale = cut.scale2.slice_rows(cuts[i], cuts[i + 1]);
      }
      adamw(*stream, AdamWList(*device, pieces));
    }
    EXPECT_TRUE(same_bytes(cut.operands.weight, whole.operands.weight));
    EXPECT_TRUE(same_bytes(cut.operands.moment1, whole.operands.moment1));
    EXPECT_TRUE(same_bytes(cut.operands.moment2, whole.operands.moment2));
    EXPECT_TRUE(same_bytes(cut.scale1, whole.scale1));
    EXPECT_TRUE(same_bytes(cut.scale2, whole.scale2));
  }
}

TEST_F(Fp8MomentsTest, BitsDoNotDependOnThreads) {
  const State o = state(70001, DType::f32, DType::f32);
  const StepScalars s = scalars();
  expect_same_for_any_threads([&] {
    const State fresh = copy_of_state(o);
    adamw(*stream, op_of(fresh, s));
    return std::vector<Tensor>{fresh.operands.weight, fresh.operands.moment1, fresh.operands.moment2, fresh.scale1, fresh.scale2};
  });
}

TEST_F(Fp8MomentsTest, RefusesWhatIsNoWholeGroup) {
  const StepScalars s = scalars();
  const State o = state(300, DType::f32, DType::f32);
  AdamW wrong = op_of(o, s);
  wrong.elements.first = 64;
  expect_refusal([&] { adamw(*stream, wrong); }, "begin and end at multiples of 128");
  wrong = op_of(o, s);
  wrong.moment2_scale = {};
  expect_refusal([&] { adamw(*stream, wrong); }, "moments in E4M3 have scales");
  wrong = op_of(o, s);
  wrong.moment1_scale = zeros(DType::f32, {2});
  expect_refusal([&] { adamw(*stream, wrong); }, "scales must be F32 [3], got F32 [2]");
}

TEST(StochasticRounding, RunsAreTheSingleNumbers) {
  const Rng rng(99, RngStream::round_weight, 5);
  for (const std::uint64_t first : {0ull, 8ull, (1ull << 35) - 64, (1ull << 40) + 24}) {
    std::uint16_t bits[kRoundingRun];
    rounding_run(rng, first, 17, bits);
    for (std::int64_t i = 0; i < kRoundingRun; ++i) {
      ASSERT_EQ(bits[i], rounding_bits(rng, first + static_cast<std::uint64_t>(i), 17)) << first << " + " << i;
    }
  }
}

TEST(StochasticRounding, IsUnbiasedBetweenExactNeighbours) {
  const Rng rng(7, RngStream::round_weight, 1);
  constexpr std::int64_t draws = 1 << 16;
  for (const float value : {1.0f + 0x1p-9f, -3.14159f, 1e-20f, 0x1.fcp-127f * 0.3f, 1.0f}) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const float near_zero = std::bit_cast<float>(u & 0xFFFF0000u), far = std::bit_cast<float>((u & 0xFFFF0000u) + 0x10000u);
    double sum = 0;
    for (std::int64_t i = 0; i < draws; ++i) {
      const float rounded = static_cast<float>(BFloat16::stochastic(value, rounding_bits(rng, static_cast<std::uint64_t>(i), 3)));
      ASSERT_TRUE(rounded == near_zero || (rounded == far && value != near_zero)) << rounded;
      sum += static_cast<double>(rounded);
    }
    // A random choice between two neighbours that are d apart has the variance p (1 - p) d^2.
    const double distance = std::abs(static_cast<double>(far) - static_cast<double>(near_zero));
    const double p = std::abs(static_cast<double>(value) - static_cast<double>(near_zero)) / distance;
    const double sigma = distance * std::sqrt(p * (1 - p) / static_cast<double>(draws));
    EXPECT_NEAR(sum / static_cast<double>(draws), static_cast<double>(value), 5 * sigma) << value;
  }
}

TEST(StochasticRounding, IsKeyedBySeedStepAndSubject) {
  const auto bits = [](std::uint64_t seed, RngStream stream, std::uint32_t subject, std::uint32_t step) {
    std::uint16_t run[kRoundingRun];
    rounding_run(Rng(seed, stream, subject), 0, step, run);
    return std::vector<std::uint16_t>(run, run + kRoundingRun);
  };
  const auto base = bits(1, RngStream::round_weight, 2, 3);
  EXPECT_EQ(base, bits(1, RngStream::round_weight, 2, 3));
  EXPECT_NE(base, bits(2, RngStream::round_weight, 2, 3));
  EXPECT_NE(base, bits(1, RngStream::round_moment1, 2, 3));
  EXPECT_NE(base, bits(1, RngStream::round_weight, 3, 3));
  EXPECT_NE(base, bits(1, RngStream::round_weight, 2, 4));
}

struct PrepareStepTest : testing::OpTest {
  StepScalars prepare(double loss, double tokens, double squares, double max_norm, std::int32_t& updates) {
    const double total[2] = {loss, tokens};
    StepScalars s{};
    prepare_step(*stream, {.loss_total = total,
                           .sum_squares = &squares,
                           .max_grad_norm = max_norm,
                           .beta1 = 0.5,
                           .beta2 = 0.75,
                           .learning_rate = 0.125,
                           .step = 9,
                           .updates = &updates,
                           .scalars = &s});
    return s;
  }
};

TEST_F(PrepareStepTest, ScalesByTheMeanAndClips) {
  std::int32_t updates = 1;
  StepScalars s = prepare(20, 8, 64 * 9.0, 0, updates);
  EXPECT_EQ(s.loss_sum, 20);
  EXPECT_EQ(s.token_count, 8);
  EXPECT_EQ(s.grad_norm, 3);
  EXPECT_EQ(s.grad_scale, 0.125);
  EXPECT_EQ(s.found_inf, 0);
  EXPECT_EQ(s.learning_rate, 0.125);
  EXPECT_EQ(s.step, 9u);
  EXPECT_EQ(updates, 2);
  EXPECT_EQ(s.updates, 2);
  EXPECT_EQ(s.bias_correction1, 1 - 0.25);
  EXPECT_EQ(s.bias_correction2, 1 - 0.5625);
  s = prepare(20, 8, 64 * 9.0, 1.5, updates);
  EXPECT_DOUBLE_EQ(s.grad_scale, 1.5 / (3 + 1e-6) / 8);
  s = prepare(20, 8, 64 * 9.0, 4.0, updates);
  EXPECT_EQ(s.grad_scale, 0.125);
}

TEST_F(PrepareStepTest, SkipsWhatIsNotFiniteWithoutCountingAnUpdate) {
  const double nan = std::nan("");
  std::int32_t updates = 4;
  for (const auto& [loss, tokens, squares] :
       std::vector<std::array<double, 3>>{{nan, 8, 1}, {HUGE_VAL, 8, 1}, {1, 8, nan}, {1, 8, HUGE_VAL}, {0, 0, 0}, {0, 0, 1}}) {
    const StepScalars s = prepare(loss, tokens, squares, 1.0, updates);
    EXPECT_EQ(s.found_inf, 1) << loss << " " << tokens << " " << squares;
    EXPECT_EQ(updates, 4);
    EXPECT_EQ(s.updates, 4);
  }
  EXPECT_EQ(prepare(1, 8, 0, 1.0, updates).found_inf, 0);
  EXPECT_EQ(updates, 5);
}

}  // namespace
}  // namespace octet::kernels

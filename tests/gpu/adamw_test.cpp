#include "octet/kernels/adamw/adamw.h"

#include <cmath>
#include <limits>

#include "gpu/twins.h"
#include "octet/kernels/adamw/fp8_moments.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::Twin;

class AdamWOnGpu : public testing::TwinTest {
 protected:
  struct State {
    Twin grad, weight, moment1, moment2, value;
  };
  // Mixes the largest and smallest magnitudes into the values, so that some products underflow and some squares overflow.
  State state(std::int64_t count, DType grad, DType weight, DType moment) {
    const Rng rng(5, RngStream::test, ++draws_);
    const auto normal = [rng](std::int64_t i) { return rng.normal(static_cast<std::uint64_t>(i)); };
    return {.grad = filled(grad, {count},
                           [&](std::int64_t i) {
                             const double hostile[] = {0.0, -0.0, 1e-40, -1e-30, 3e20, -1e38};
                             return i % 97 < 6 ? hostile[i % 97] : 100 * normal(i);
                           }),
            .weight = filled(weight, {count}, [&](std::int64_t i) { return i % 89 == 0 ? 1e-39 : normal(i + count); }),
            .moment1 = filled(moment, {count}, [&](std::int64_t i) { return i % 83 == 0 ? 0.0 : 0.01 * normal(i + 2 * count); }),
            .moment2 = filled(moment, {count},
                              [&](std::int64_t i) { return i % 79 == 0 ? 0.0 : 0.01 * std::abs(normal(i + 3 * count)); }),
            .value = {}};
  }
  static StepScalars scalars(std::uint32_t step) {
    const int t = static_cast<int>(step);
    return {.loss_sum = 1,
            .token_count = 100,
            .grad_norm = 1,
            .grad_scale = 0.8 / 100,
            .learning_rate = 0.01 / t,
            .bias_correction1 = 1 - std::pow(0.9, t),
            .bias_correction2 = 1 - std::pow(0.95, t),
            .found_inf = 0,
            .step = step,
            .updates = t};
  }
  void set(const Twin& at, const StepScalars& s) {
    std::memcpy(at.cpu.data, &s, sizeof s);
    upload(at);
  }
  static AdamW op(const State& s, const Twin& scalars, Tensor Twin::*side) {
    return {.grad = s.grad.*side,
            .weight = s.weight.*side,
            .moment1 = s.moment1.*side,
            .moment2 = s.moment2.*side,
            .value = s.value.*side,
            .weight_decay = 0.1,
            .seed = 1234567890123ull,
            .subject = name_id("model.layers.0.mlp.down_proj.weight"),
            .scalars = static_cast<const StepScalars*>((scalars.*side).data)};
  }
  // Takes three steps from the same state on both sides.
  void expect_same_steps(const State& s, const GlobalElements& elements, const std::string& what, double epsilon = 1e-8) {
    const Twin scalars_at = zeros(DType::u8, {sizeof(StepScalars)});
    for (std::uint32_t step = 1; step <= 3; ++step) {
      set(scalars_at, scalars(step));
      AdamW on_cpu = op(s, scalars_at, &Twin::cpu), on_gpu = op(s, scalars_at, &Twin::gpu);
      on_cpu.elements = on_gpu.elements = elements;
      on_cpu.epsilon = on_gpu.epsilon = epsilon;
      adamw(*cpu_stream, on_cpu);
      adamw(*gpu_stream, on_gpu);
      const std::string at = concat(what, " step ", step, " first element ", elements.first);
      expect_same_bytes(s.weight, at + " weight");
      expect_same_bytes(s.moment1, at + " moment1");
      expect_same_bytes(s.moment2, at + " moment2");
      if (s.value.cpu) expect_same_bytes(s.value, at + " value");
    }
  }

 private:
  std::uint32_t draws_ = 0;
};

TEST_F(AdamWOnGpu, HasTheBitsOfTheCpu) {
  for (const DType grad : {DType::f32, DType::bf16}) {
    for (const DType weight : {DType::f32, DType::bf16}) {
      for (const DType moment : {DType::f32, DType::bf16}) {
        for (const std::int64_t count : {1, 7, 8, 4099, 40000}) {
          State s = state(count, grad, weight, moment);
          if (weight == DType::f32 && count % 2 == 1) s.value = poisoned(DType::bf16, {count});
          const std::string what = concat(name_of(grad), " ", name_of(weight), " ", name_of(moment), " of ", count);
          for (const std::int64_t first : {std::int64_t{0}, std::int64_t{8} * 1000003, (std::int64_t{1} << 35) + 5}) {
            expect_same_steps(s, {.first = first}, what);
          }
          expect_same_steps(s, {.first = 8 * 1003, .run = 24, .stride = 64, .skip = 16}, what + " in columns");
        }
      }
    }
  }
}

// Gradients and moments have any magnitude, and some rows have had no gradient, so quotients and roots underflow.
TEST_F(AdamWOnGpu, HasTheBitsOfTheCpuOverTheWholeRange) {
  const std::int64_t count = 100000;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double epsilon : {1e-8, 1e-15, 1e-20}) {
      const Rng rng(6, RngStream::test);
      const auto wide = [rng](std::int64_t i, int least, int most) {
        const auto at = static_cast<std::uint64_t>(i);
        return rng.normal(at) * std::exp2(least + (most - least) * rng.uniform(at, 1));
      };
      const auto some = [&](std::int64_t i, std::int64_t of, double value) { return i / of % 3 == 0 ? 0.0 : value; };
      const State s{
          .grad = filled(dtype, {count}, [&](std::int64_t i) { return some(i, 1, wide(i, -140, 60)); }),
          .weight = filled(dtype, {count}, [&](std::int64_t i) { return wide(i + count, -20, 3); }),
          .moment1 = filled(dtype, {count}, [&](std::int64_t i) { return some(i, 3, wide(i + 2 * count, -140, 20)); }),
          .moment2 = filled(dtype, {count}, [&](std::int64_t i) { return some(i, 9, std::abs(wide(i + 3 * count, -148, 60))); }),
          .value = {}};
      expect_same_steps(s, {}, concat("wide ", name_of(dtype), " epsilon ", epsilon), epsilon);
    }
  }
}

TEST_F(AdamWOnGpu, UpdatesPartsThatAreNotAligned) {
  const std::int64_t count = 5000, begin = 3;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const State whole = state(count, dtype, dtype, dtype);
    const auto part = [&](const Twin& t) { return Twin{t.cpu.slice_rows(begin, count - 1), t.gpu.slice_rows(begin, count - 1)}; };
    const State s{part(whole.grad), part(whole.weight), part(whole.moment1), part(whole.moment2), {}};
    expect_same_steps(s, {.first = begin}, concat("part of ", name_of(dtype)));
    expect_same_steps(s, {}, concat("part of ", name_of(dtype)));
    expect_same_bytes(whole.weight, "the elements beside the part");
  }
}

TEST_F(AdamWOnGpu, MovesNothingWhenInfWasFound) {
  const State s = state(3000, DType::f32, DType::bf16, DType::bf16);
  const Twin scalars_at = zeros(DType::u8, {sizeof(StepScalars)});
  StepScalars skipped = scalars(1);
  skipped.found_inf = 1;
  set(scalars_at, skipped);
  adamw(*gpu_stream, op(s, scalars_at, &Twin::gpu));
  expect_same_bytes(s.weight, "weight");
  expect_same_bytes(s.moment1, "moment1");
  expect_same_bytes(s.moment2, "moment2");
}

TEST_F(AdamWOnGpu, PreparesTheStepAsTheCpuDoes) {
  const double inf = std::numeric_limits<double>::infinity();
  struct Case {
    double loss, tokens, squares;
    std::int32_t updates;
    double max_grad_norm;
  };
  for (const Case& c : {Case{123.4, 4096, 5.5e7, 0, 1.0}, Case{123.4, 4096, 1e-3, 41, 1.0}, Case{123.4, 4096, 5.5e7, 99999, 0.0},
                        Case{inf, 4096, 1.0, 7, 1.0}, Case{1.0, 4096, std::nan(""), 7, 1.0}, Case{0.0, 0.0, 0.0, 7, 1.0}}) {
    const Twin loss = filled(DType::f64, {2}, [&](std::int64_t i) { return i == 0 ? c.loss : c.tokens; });
    const Twin squares = filled(DType::f64, {1}, [&](std::int64_t) { return c.squares; });
    const Twin updates = zeros(DType::i32, {1}), scalars_at = zeros(DType::u8, {sizeof(StepScalars)});
    updates.cpu.as<std::int32_t>()[0] = c.updates;
    upload(updates);
    const auto prepare = [&](Stream& stream, Tensor Twin::*side) {
      prepare_step(stream, {.loss_total = (loss.*side).as<double>(),
                            .sum_squares = (squares.*side).as<double>(),
                            .max_grad_norm = c.max_grad_norm,
                            .learning_rate = 3e-4,
                            .step = 17,
                            .updates = (updates.*side).as<std::int32_t>(),
                            .scalars = static_cast<StepScalars*>((scalars_at.*side).data)});
    };
    prepare(*cpu_stream, &Twin::cpu);
    prepare(*gpu_stream, &Twin::gpu);
    StepScalars actual, expected;
    std::memcpy(&actual, fetch(scalars_at.gpu).data(), sizeof actual);
    std::memcpy(&expected, scalars_at.cpu.data, sizeof expected);
    // On either side pow is within 2 units in the last place of its exact value, and 1 - pow is rounded once more.
    const double correction = 5 * 2 * kUnitRoundoffF64;
    const auto fields = [](const StepScalars& s) {
      return std::vector<double>{s.loss_sum,
                                 s.token_count,
                                 s.grad_norm,
                                 s.grad_scale,
                                 s.learning_rate,
                                 static_cast<double>(s.found_inf),
                                 static_cast<double>(s.step),
                                 static_cast<double>(s.updates)};
    };
    EXPECT_TRUE(testing::near(fields(actual), fields(expected), testing::Tolerance{})) << c.loss << " " << c.squares;
    EXPECT_NEAR(actual.bias_correction1, expected.bias_correction1, correction);
    EXPECT_NEAR(actual.bias_correction2, expected.bias_correction2, correction);
    expect_same_bytes(updates, "updates");
  }
}

// Tensors of several sizes in one launch, among them an empty one and one that begins within a group.
TEST_F(AdamWOnGpu, AListAgreesWithTheCpu) {
  for (const auto& [weight, moment] :
       {std::pair{DType::f32, DType::f32}, std::pair{DType::f32, DType::bf16}, std::pair{DType::bf16, DType::bf16}}) {
    const Twin scalars_at = zeros(DType::u8, {sizeof(StepScalars)});
    set(scalars_at, scalars(2));
    std::vector<State> states;
    std::vector<AdamW> on_cpu, on_gpu;
    for (const std::int64_t count : {40000, 0, 1, 17000, 8}) {
      states.push_back(state(count, DType::bf16, weight, moment));
      on_cpu.push_back(op(states.back(), scalars_at, &Twin::cpu));
      on_gpu.push_back(op(states.back(), scalars_at, &Twin::gpu));
      for (AdamW* op : {&on_cpu.back(), &on_gpu.back()}) {
        op->subject = static_cast<std::uint32_t>(count);
        op->weight_decay = count == 8 ? 0.0 : 0.1;
        op->elements.first = count == 17000 ? 13 : 16;
      }
    }
    for (const AdamW& single : on_cpu) adamw(*cpu_stream, single);
    const AdamWList list(*gpu, on_gpu);
    adamw(*gpu_stream, list);
    for (std::size_t i = 0; i < states.size(); ++i) {
      expect_same_bytes(states[i].weight, concat("weight ", i));
      expect_same_bytes(states[i].moment1, concat("moment1 ", i));
      expect_same_bytes(states[i].moment2, concat("moment2 ", i));
    }
  }
}

// Three steps from moments of zero. The counts end within a group of moments, and within a vector.
TEST_F(AdamWOnGpu, MomentsInFp8AgreeWithTheCpu) {
  for (const DType weight : {DType::f32, DType::bf16}) {
    for (const std::int64_t count : {1, 128, 300, 8192 + 128, 20001}) {
      const State s = state(count, DType::f32, weight, DType::f32);
      const Twin codes1 = zeros(DType::f8_e4m3, {count}), codes2 = zeros(DType::f8_e4m3, {count});
      const Twin scale1 = zeros(DType::f32, {moment_scales(count)}), scale2 = zeros(DType::f32, {moment_scales(count)});
      const Twin scalars_at = zeros(DType::u8, {sizeof(StepScalars)});
      for (std::uint32_t step = 1; step <= 3; ++step) {
        set(scalars_at, scalars(step));
        for (Tensor Twin::*side : {&Twin::cpu, &Twin::gpu}) {
          AdamW one = op(s, scalars_at, side);
          one.moment1 = codes1.*side, one.moment2 = codes2.*side;
          one.moment1_scale = scale1.*side, one.moment2_scale = scale2.*side;
          one.elements.first = 3 * kMomentGroup;
          adamw(side == &Twin::cpu ? *cpu_stream : *gpu_stream, one);
        }
        const std::string what = concat(name_of(weight), " ", count, " step ", step);
        expect_same_bytes(codes1, what + " moment1");
        expect_same_bytes(codes2, what + " moment2");
        expect_same_bytes(scale1, what + " moment1_scale");
        expect_same_bytes(scale2, what + " moment2_scale");
        expect_same_bytes(s.weight, what + " weight");
      }
    }
  }
}

}  // namespace
}  // namespace octet::kernels

#include "octet/kernels/adamw/adamw_cpu.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "octet/base/rng.h"
#include "octet/kernels/adamw/fp8_moments.h"
#include "octet/kernels/adamw/stochastic_rounding.h"
#include "octet/kernels/quantize/decode_table.h"
#include "octet/numerics/scale.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kElementsPerTask = 1 << 14;
// Elements are processed in pieces that fit into the first-level cache, converted to R whatever their storage type.
constexpr std::int64_t kAdamPiece = 1024;
static_assert(kElementsPerTask % kAdamPiece == 0 && kAdamPiece % kMomentGroup == 0);

template <class R>
struct Factors {
  R grad_scale, keep_weight, beta2, one_minus_beta1, one_minus_beta2, minus_step_size, sqrt_correction2, epsilon;

  Factors(const AdamW& op, const StepScalars& scalars)
      : grad_scale(static_cast<R>(scalars.grad_scale)),
        keep_weight(static_cast<R>(1.0 - scalars.learning_rate * op.weight_decay)),
        beta2(static_cast<R>(op.beta2)),
        one_minus_beta1(static_cast<R>(1.0 - op.beta1)),
        one_minus_beta2(static_cast<R>(1.0 - op.beta2)),
        minus_step_size(static_cast<R>(-(scalars.learning_rate / scalars.bias_correction1))),
        sqrt_correction2(static_cast<R>(std::sqrt(scalars.bias_correction2))),
        epsilon(static_cast<R>(op.epsilon)) {}
};

// The operations of torch/optim/adamw.py for a single tensor: mul_, lerp_, mul_ and addcmul_, sqrt and div and add_, addcdiv_.
template <class R>
void update(const R* __restrict grad, R* __restrict weight, R* __restrict moment1, R* __restrict moment2, std::int64_t count,
            const Factors<R>& f) {
  for (std::int64_t i = 0; i < count; ++i) {
    const R g = grad[i] * f.grad_scale;
    const R w = weight[i] * f.keep_weight;
    const R m = moment1[i] + f.one_minus_beta1 * (g - moment1[i]);
    const R v = moment2[i] * f.beta2 + f.one_minus_beta2 * g * g;
    const R denominator = std::sqrt(v) / f.sqrt_correction2 + f.epsilon;
    moment1[i] = m;
    moment2[i] = v;
    weight[i] = w + f.minus_step_size * m / denominator;
  }
}

// Elements [begin, begin + count) of `tensor` as R: in place if they are stored as R, otherwise converted into `buffer`.
template <class R>
R* load(const Tensor& tensor, std::int64_t begin, std::int64_t count, R* buffer) {
  if (tensor.dtype == kDTypeOf<R>) return tensor.as<R>() + begin;
  visit_float(tensor.dtype, [&]<class T>() {
    const T* values = tensor.as<T>() + begin;
    for (std::int64_t i = 0; i < count; ++i) buffer[i] = static_cast<R>(static_cast<Real<T>>(values[i]));
  });
  return buffer;
}

// Calls use(first, n, bits) for runs of elements begin + first + [0, n) with their random bits.
template <class Use>
void for_random_bits(const AdamW& op, RngStream stream, std::int64_t begin, std::int64_t count, const Use& use) {
  const Rng rng(op.seed, stream, op.subject);
  std::uint16_t bits[kRoundingRun];
  for (std::int64_t done = 0; done < count;) {
    const auto element = static_cast<std::uint64_t>(op.elements.at(begin + done));
    const auto skip = static_cast<std::int64_t>(element % 8);
    rounding_run(rng, element - element % 8, op.scalars->step, bits);
    const std::int64_t n = std::min({count - done, kRoundingRun - skip, op.elements.consecutive_from(begin + done)});
    use(done, n, bits + skip);
    done += n;
  }
}

// Rounds stochastically what `load` converted. What `load` left in place is already updated.
template <class R>
void store(const Tensor& tensor, std::int64_t begin, std::int64_t count, const R* values, const AdamW& op, RngStream stream) {
  if (tensor.dtype != DType::bf16) return;
  BFloat16* out = tensor.as<BFloat16>() + begin;
  for_random_bits(op, stream, begin, count, [&](std::int64_t first, std::int64_t n, const std::uint16_t* bits) {
    for (std::int64_t i = 0; i < n; ++i) {
      out[first + i] = BFloat16::stochastic(static_cast<float>(values[first + i]), bits[i]);
    }
  });
}

// FP8 moments. `begin` is a multiple of kMomentGroup.
void load_codes(const Tensor& codes, const Tensor& scales, std::int64_t begin, std::int64_t count, float* values) {
  const std::uint8_t* const from = codes.as_bytes() + begin;
  const float* const scale = scales.as<float>() + begin / kMomentGroup;
  for (std::int64_t i = 0; i < count; ++i) values[i] = kDecodeE4M3[from[i]] * scale[i / kMomentGroup];
}
void load_squares(const Tensor& codes, const Tensor& scales, std::int64_t begin, std::int64_t count, float* values) {
  load_codes(codes, scales, begin, count, values);
  for (std::int64_t i = 0; i < count; ++i) values[i] *= values[i];
}

// Writes the scales of the groups and, for each element, encode(value * factor, random bits).
template <class Encode>
void store_codes(const Tensor& codes, const Tensor& scales, std::int64_t begin, std::int64_t count, const float* values,
                 const AdamW& op, RngStream stream, const Encode& encode) {
  float factors[kAdamPiece / kMomentGroup];
  for (std::int64_t first = 0; first < count; first += kMomentGroup) {
    float amax = 0.0f;
    for (std::int64_t i = first; i < std::min(count, first + kMomentGroup); ++i) amax = max_magnitude(amax, values[i]);
    const float factor = scale_from_amax(amax, moment_spec());
    factors[first / kMomentGroup] = factor;
    scales.as<float>()[(begin + first) / kMomentGroup] = 1.0f / factor;
  }
  std::uint8_t* const to = codes.as_bytes() + begin;
  for_random_bits(op, stream, begin, count, [&](std::int64_t first, std::int64_t n, const std::uint16_t* bits) {
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = values[first + i];
      to[first + i] = encode(value * factors[(first + i) / kMomentGroup], std::uint32_t{bits[i]}, value);
    }
  });
}

// Updates a piece with moments in FP8.
void update_fp8(const AdamW& op, const Factors<float>& factors, std::int64_t first, std::int64_t count, const float* grad,
                float* weight) {
  float moment1[kAdamPiece], moment2[kAdamPiece];
  load_codes(op.moment1, op.moment1_scale, first, count, moment1);
  load_squares(op.moment2, op.moment2_scale, first, count, moment2);
  update(grad, weight, moment1, moment2, count, factors);
  store_codes(op.moment1, op.moment1_scale, first, count, moment1, op, RngStream::round_moment1,
              [](float scaled, std::uint32_t bits, float) { return encode_moment(scaled, bits); });
  for (std::int64_t i = 0; i < count; ++i) moment2[i] = std::sqrt(moment2[i]);
  store_codes(op.moment2, op.moment2_scale, first, count, moment2, op, RngStream::round_moment2,
              [](float scaled, std::uint32_t bits, float root) { return encode_root(scaled, bits, root == 0.0f); });
}

template <class R>
void update_range(const AdamW& op, const Factors<R>& factors, std::int64_t begin, std::int64_t end) {
  R grad_buffer[kAdamPiece], weight_buffer[kAdamPiece], moment1_buffer[kAdamPiece], moment2_buffer[kAdamPiece];
  for (std::int64_t first = begin; first < end; first += kAdamPiece) {
    const std::int64_t count = std::min(kAdamPiece, end - first);
    const R* grad = load(op.grad, first, count, grad_buffer);
    R* weight = load(op.weight, first, count, weight_buffer);
    if (op.moment1.dtype == DType::f8_e4m3) {
      if constexpr (std::is_same_v<R, float>) update_fp8(op, factors, first, count, grad, weight);
    } else {
      R* moment1 = load(op.moment1, first, count, moment1_buffer);
      R* moment2 = load(op.moment2, first, count, moment2_buffer);
      update(grad, weight, moment1, moment2, count, factors);
      store(op.moment1, first, count, moment1, op, RngStream::round_moment1);
      store(op.moment2, first, count, moment2, op, RngStream::round_moment2);
    }
    store(op.weight, first, count, weight, op, RngStream::round_weight);
    if (op.value) {
      BFloat16* value = op.value.as<BFloat16>() + first;
      for (std::int64_t i = 0; i < count; ++i) value[i] = static_cast<BFloat16>(static_cast<float>(weight[i]));
    }
  }
}

}  // namespace

void adamw(std::span<const AdamW> ops) {
  const AdamW& first = ops.front();
  if (first.scalars->found_inf != 0.0f) return;
  const auto run = [&]<class R>() {
    parallel_chunks(
        ops, [](const AdamW& op) { return op.weight.elements(); }, kElementsPerTask,
        [&](std::size_t number, std::int64_t, std::int64_t begin, std::int64_t end) {
          const AdamW& op = ops[number];
          update_range<R>(op, Factors<R>(op, *op.scalars), begin, end);
        });
  };
  if (first.weight.dtype == DType::f64) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
}

void prepare_step(const PrepareStep& op) {
  StepScalars& s = *op.scalars;
  s.loss_sum = op.loss_total[0];
  s.token_count = op.loss_total[1];
  const double mean = 1.0 / s.token_count;
  s.grad_norm = std::sqrt(*op.sum_squares) * mean;
  const bool moves = std::isfinite(s.loss_sum) && std::isfinite(s.grad_norm) && s.token_count > 0;
  const double clip = op.max_grad_norm > 0 ? std::min(1.0, op.max_grad_norm / (s.grad_norm + 1e-6)) : 1.0;
  s.found_inf = moves ? 0.0f : 1.0f;
  s.grad_scale = clip * mean;
  s.learning_rate = op.learning_rate;
  const std::int32_t t = *op.updates + 1;
  s.bias_correction1 = 1.0 - std::pow(op.beta1, t);
  s.bias_correction2 = 1.0 - std::pow(op.beta2, t);
  s.step = op.step;
  if (moves) *op.updates = t;
  s.updates = *op.updates;
}

}  // namespace octet::kernels::cpu

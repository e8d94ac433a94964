#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/adamw/adamw_cuda.h"
#include "octet/kernels/adamw/exact_math_cuda.cuh"
#include "octet/kernels/adamw/fp8_moments.h"
#include "octet/kernels/quantize/codes_cuda.cuh"
#include "octet/kernels/vector_cuda.cuh"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check_launch;
using octet::cuda::native_stream;

constexpr int kThreads = 256;
static_assert(AdamWItem::kGroup == kVector);
// Blocks per multiprocessor: fewer for FP32 storage, because a group then needs more registers.
template <class... T>
constexpr int kBlocks = ((sizeof(T) == sizeof(float)) || ...) ? 3 : 4;

// The key words of every round of Philox for RngStream::round_weight, round_moment1 and round_moment2, whose first words are
// equal. They are kernel parameters because computing them in each round would take a tenth of the kernel's instructions.
struct Keys {
  static constexpr std::uint32_t kRounds = 10;
  std::uint32_t first[kRounds], weight[kRounds], moment1[kRounds], moment2[kRounds];

  explicit Keys(const AdamW& op) {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto key = [&](RngStream stream) { return Rng(op.seed, stream, op.subject).round_key(round); };
      first[round] = key(RngStream::round_weight)[0];
      weight[round] = key(RngStream::round_weight)[1];
      moment1[round] = key(RngStream::round_moment1)[1];
      moment2[round] = key(RngStream::round_moment2)[1];
    }
  }
};

// The storage type of moments in FP8.
enum class Code : std::uint8_t {};

// What all items of a launch share.
struct Rule {
  double beta1, beta2, epsilon;
  Keys keys;
  const StepScalars* scalars;

  explicit Rule(const AdamW& op) : beta1(op.beta1), beta2(op.beta2), epsilon(op.epsilon), keys(op), scalars(op.scalars) {}
};

// The items of a launch: those of a table, or a single one.
struct Items {
  const AdamWItem* items = nullptr;
  const Chunk* chunks = nullptr;
  std::int64_t count = 0;  // of chunks
  AdamWItem single = {};
};

// An item as a block of threads sees it, in shared memory: in registers its fields would displace the group's elements. G, W and
// M are float or BFloat16; M may also be Code.
template <class G, class W, class M>
struct Operands {
  const G* grad;
  W* weight;
  M *moment1, *moment2;
  BFloat16* value;                       // may be null
  float *moment1_scale, *moment2_scale;  // of codes
  std::int64_t count, skip, groups;
  GlobalElements elements;
  std::uint32_t subject;
  bool aligned;

  __device__ void set(const AdamWItem& item) {
    grad = static_cast<const G*>(item.grad);
    weight = static_cast<W*>(item.weight);
    moment1 = static_cast<M*>(item.moment1);
    moment2 = static_cast<M*>(item.moment2);
    value = static_cast<BFloat16*>(item.value);
    moment1_scale = item.moment1_scale;
    moment2_scale = item.moment2_scale;
    count = item.count;
    skip = item.skip;
    groups = item.groups;
    elements.first = item.elements.first;
    elements.run = item.elements.run;
    elements.stride = item.elements.stride;
    elements.skip = item.elements.skip;
    subject = item.subject;
    aligned = item.aligned;
  }
  // The number of a group's Philox block.
  __device__ std::uint64_t block(std::int64_t group) const {
    return static_cast<std::uint64_t>(elements.consecutive() ? elements.first / kVector + group
                                                             : elements.at(group * kVector - skip) / kVector);
  }
};

// Shared memory is not initialised, which default values of members would ask for.
template <class G, class W, class M>
struct OperandsMemory {
  alignas(16) std::byte bytes[sizeof(Operands<G, W, M>)];
  __device__ Operands<G, W, M>& operands() { return *reinterpret_cast<Operands<G, W, M>*>(bytes); }
};

struct Factors {
  float grad_scale, keep_weight, beta2, one_minus_beta1, one_minus_beta2, minus_step_size, sqrt_correction2, epsilon;
  float scaled_step, scaled_correction, inverse_correction;  // used by update_fast
  bool fast;
};

// Without keep_weight, in which items differ.
__device__ Factors factors_of(const Rule& a) {
  const StepScalars& s = *a.scalars;
  Factors f{.grad_scale = static_cast<float>(s.grad_scale),
            .keep_weight = 1.0f,
            .beta2 = static_cast<float>(a.beta2),
            .one_minus_beta1 = static_cast<float>(1.0 - a.beta1),
            .one_minus_beta2 = static_cast<float>(1.0 - a.beta2),
            .minus_step_size = static_cast<float>(-(s.learning_rate / s.bias_correction1)),
            .sqrt_correction2 = static_cast<float>(sqrt(s.bias_correction2)),
            .epsilon = static_cast<float>(a.epsilon)};
  f.scaled_step = f.minus_step_size * kStepScale;
  f.scaled_correction = f.sqrt_correction2 * kRootScale;
  f.inverse_correction = __frcp_rn(f.sqrt_correction2) / kRootScale;
  f.fast = 0x1p-16f <= f.sqrt_correction2 && f.sqrt_correction2 <= 1.0f && 0x1p-60f <= f.epsilon && f.epsilon <= 0x1p60f;
  return f;
}

// The operations of adamw_cpu.cpp in the same order.
__device__ void update_moments(float g, float& moment1, float& moment2, const Factors& f) {
  g *= f.grad_scale;
  moment1 = moment1 + f.one_minus_beta1 * (g - moment1);
  moment2 = moment2 * f.beta2 + f.one_minus_beta2 * g * g;
}
__device__ void update(float g, float& weight, float& moment1, float& moment2, const Factors& f) {
  update_moments(g, moment1, moment2, f);
  const float denominator = __fdiv_rn(__fsqrt_rn(moment2), f.sqrt_correction2) + f.epsilon;
  weight = weight * f.keep_weight + __fdiv_rn(f.minus_step_size * moment1, denominator);
}

// Computes the same bits as update() if `f.fast` is true and this function returns true (exact_math_cuda.cuh).
__device__ bool update_fast(float g, float& weight, float& moment1, float& moment2, const Factors& f) {
  update_moments(g, moment1, moment2, f);
  const float corrected = exact_quotient(exact_root(moment2), f.scaled_correction, f.inverse_correction);
  const float step = exact_quotient(f.scaled_step * moment1, corrected + f.epsilon);
  weight = fmaf(step, 1.0f / kStepScale, weight * f.keep_weight);
  return fabsf(weight) >= 0x1p-40f;
}

// The same as Rng::words.
__device__ Philox4 random_words(std::uint64_t block, std::uint32_t step, std::uint32_t subject,
                                const std::uint32_t (&first)[Keys::kRounds], const std::uint32_t (&second)[Keys::kRounds]) {
  Philox4 c{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), step, subject};
  for (std::uint32_t round = 0; round < Keys::kRounds; ++round) philox_round(c[0], c[1], c[2], c[3], first[round], second[round]);
  return c;
}

// The values in storage type T: FP32, or BF16 rounded with the half-words of the group's Philox block (stochastic_rounding.h).
template <class T>
__device__ Vector<T> rounded(const float (&values)[kVector], std::uint32_t subject, std::uint64_t block, std::uint32_t step,
                             const std::uint32_t (&first)[Keys::kRounds], const std::uint32_t (&second)[Keys::kRounds]) {
  if constexpr (std::is_same_v<T, float>) {
    return pack<T>(values);
  } else {
    const Philox4 words = random_words(block, step, subject, first, second);
    std::uint32_t pairs[4];
    for (int i = 0; i < 4; ++i) {
      pairs[i] =
          __byte_perm(stochastic_bits(values[2 * i], words, 2 * i), stochastic_bits(values[2 * i + 1], words, 2 * i + 1), 0x7632);
    }
    return {{{pairs[0], pairs[1], pairs[2], pairs[3]}}};
  }
}

// Updates a whole aligned group. Returns false and writes nothing if update_fast is not valid for one of its elements.
template <class G, class W, class M>
__device__ bool update_group(const Operands<G, W, M>& a, const Keys& keys, const Factors& factors, std::int64_t begin,
                             std::uint64_t block, std::uint32_t step) {
  float g[kVector], w[kVector], m[kVector], v[kVector];
  const auto grad = load_vector(a.grad + begin);
  const auto weight = load_vector(a.weight + begin);
  const auto moment1 = load_vector(a.moment1 + begin), moment2 = load_vector(a.moment2 + begin);
  unpack(grad, g);
  unpack(weight, w);
  unpack(moment1, m);
  unpack(moment2, v);
  bool fast = factors.fast;
  for (int i = 0; i < kVector; ++i) fast &= update_fast(g[i], w[i], m[i], v[i], factors);
  if (!fast) return false;
  store_vector_unsplit(a.weight + begin, rounded<W>(w, a.subject, block, step, keys.first, keys.weight));
  store_vector_unsplit(a.moment1 + begin, rounded<M>(m, a.subject, block, step, keys.first, keys.moment1));
  store_vector_unsplit(a.moment2 + begin, rounded<M>(v, a.subject, block, step, keys.first, keys.moment2));
  if (a.value != nullptr) store_packed(a.value + begin, w);
  return true;
}

template <class T>
__device__ void store_rounded(T* to, float value, const Philox4& words, int i) {
  if constexpr (std::is_same_v<T, float>) {
    *to = value;
  } else {
    *to = isnan(value) ? to_bf16(value) : BFloat16::from_bits(static_cast<std::uint16_t>(stochastic_bits(value, words, i) >> 16));
  }
}

// Updates any group, element by element.
template <class G, class W, class M>
__device__ __noinline__ void update_singly(const Operands<G, W, M>& a, const Keys& keys, const Factors& factors,
                                           std::int64_t begin, std::uint64_t block, std::uint32_t step) {
  const auto words = [&](const std::uint32_t(&of)[Keys::kRounds]) {
    return random_words(block, step, a.subject, keys.first, of);
  };
  const Philox4 weight_words = words(keys.weight), words1 = words(keys.moment1), words2 = words(keys.moment2);
#pragma unroll 1
  for (int i = 0; i < kVector; ++i) {
    const std::int64_t at = begin + i;
    if (at < 0 || at >= a.count) continue;
    auto w = static_cast<float>(a.weight[at]), m = static_cast<float>(a.moment1[at]), v = static_cast<float>(a.moment2[at]);
    update(static_cast<float>(a.grad[at]), w, m, v, factors);
    store_rounded(a.weight + at, w, weight_words, i);
    store_rounded(a.moment1 + at, m, words1, i);
    store_rounded(a.moment2 + at, v, words2, i);
    if (a.value != nullptr) a.value[at] = to_bf16(w);
  }
}

// Moments in FP8. The half warp of a moment group has one Philox group in each lane. Lanes behind the last element have none.
constexpr int kMomentLanes = kMomentGroup / kVector;
static_assert(AdamWItem::kChunkGroups % kMomentLanes == 0 && kThreads % 32 == 0 && 32 % kMomentLanes == 0);

// The largest magnitude of the values of the half warp; NaN propagates.
__device__ inline float moment_amax(const float (&values)[kVector]) {
  unsigned largest = 0;
  for (const float value : values) largest = max(largest, __float_as_uint(value) & 0x7FFFFFFFu);
  for (int lane = kMomentLanes / 2; lane > 0; lane /= 2) largest = max(largest, __shfl_xor_sync(kAllLanes, largest, lane));
  return __uint_as_float(largest);
}

// Writes the codes of the lane's values and the scale of the moment group, as store_codes of adamw_cpu.cpp does.
template <bool kRoots>
__device__ void store_codes(const float (&values)[kVector], std::uint8_t* codes, float* scale, int count, bool wide,
                            const Philox4& words) {
  const float factor = device_scale(moment_amax(values), moment_spec());
  if (count == 0) return;
  if (threadIdx.x % kMomentLanes == 0) *scale = 1.0f / factor;
  unsigned packed[2] = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const std::uint32_t bits = words[i / 2] >> (16 * (i % 2)) & 0xFFFFu;
    const float scaled = values[i] * factor;
    const std::uint8_t code = kRoots ? encode_root(scaled, bits, values[i] == 0.0f) : encode_moment(scaled, bits);
    packed[i / 4] |= unsigned{code} << (8 * (i % 4));
  }
  if (wide) {
    *reinterpret_cast<uint2*>(codes) = {packed[0], packed[1]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < count) codes[i] = static_cast<std::uint8_t>(packed[i / 4] >> (8 * (i % 4)));
  }
}

// Updates the lane's Philox group. All lanes of a warp call this together.
template <class G, class W>
__device__ void update_codes(const Operands<G, W, Code>& a, const Keys& keys, const Factors& factors, std::int64_t group,
                             std::uint32_t step) {
  const std::int64_t begin = group * kVector, moment_group = begin / kMomentGroup;
  const int count = static_cast<int>(max(0ll, min(static_cast<long long>(kVector), static_cast<long long>(a.count - begin))));
  const bool wide = a.aligned && count == kVector;
  const float scale1 = count > 0 ? a.moment1_scale[moment_group] : 0.0f,
              scale2 = count > 0 ? a.moment2_scale[moment_group] : 0.0f;
  std::uint8_t* const codes1 = reinterpret_cast<std::uint8_t*>(a.moment1) + begin;
  std::uint8_t* const codes2 = reinterpret_cast<std::uint8_t*>(a.moment2) + begin;
  float g[kVector] = {}, w[kVector] = {}, m[kVector] = {}, v[kVector] = {};
  if (wide) {
    unpack(load_vector(a.grad + begin), g);
    unpack(load_vector(a.weight + begin), w);
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i >= count) continue;
    if (!wide) {
      g[i] = static_cast<float>(a.grad[begin + i]);
      w[i] = static_cast<float>(a.weight[begin + i]);
    }
    m[i] = decode_fp8(Fp8Format::e4m3, codes1[i]) * scale1;
    v[i] = decode_fp8(Fp8Format::e4m3, codes2[i]) * scale2;
    v[i] *= v[i];
    update(g[i], w[i], m[i], v[i], factors);
    v[i] = __fsqrt_rn(v[i]);
  }
  const std::uint64_t block = count > 0 ? a.block(group) : 0;
  const auto words = [&](const std::uint32_t(&of)[Keys::kRounds]) {
    return random_words(block, step, a.subject, keys.first, of);
  };
  store_codes<false>(m, codes1, a.moment1_scale + moment_group, count, wide, words(keys.moment1));
  store_codes<true>(v, codes2, a.moment2_scale + moment_group, count, wide, words(keys.moment2));
  if (count == 0) return;
  Philox4 weight_words = {};
  if constexpr (!std::is_same_v<W, float>) weight_words = words(keys.weight);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i >= count) continue;
    store_rounded(a.weight + begin + i, w[i], weight_words, i);
    if (a.value != nullptr) a.value[begin + i] = to_bf16(w[i]);
  }
}

// Updates groups [first, end) of an item. `shared`: the factors in shared memory.
template <class G, class W, class M>
__device__ void update_groups(const Operands<G, W, M>& a, const Keys& keys, const Factors& factors, const Factors& shared,
                              std::int64_t first, std::int64_t end, std::uint32_t step) {
#pragma unroll 1
  for (std::int64_t group = first + threadIdx.x; group < end; group += kThreads) {
    const std::int64_t begin = group * kVector - a.skip;
    const std::uint64_t block = a.block(group);
    const bool whole = a.aligned && begin + kVector <= a.count;
    if (!whole || !update_group(a, keys, factors, begin, block, step)) update_singly(a, keys, shared, begin, block, step);
  }
}
template <class G, class W>
__device__ void update_groups(const Operands<G, W, Code>& a, const Keys& keys, const Factors& factors, const Factors&,
                              std::int64_t first, std::int64_t end, std::uint32_t step) {
#pragma unroll 1
  for (std::int64_t of_warp = first + threadIdx.x / 32 * 32; of_warp < end; of_warp += kThreads) {
    update_codes(a, keys, factors, of_warp + threadIdx.x % 32, step);
  }
}

template <class G, class W, class M>
__global__ void __launch_bounds__(kThreads, kBlocks<G, W, M>)
    adamw_kernel(const __grid_constant__ Items items, const __grid_constant__ Rule rule) {
  if (rule.scalars->found_inf != 0.0f) return;
  __shared__ Factors shared;
  __shared__ OperandsMemory<G, W, M> memory;
  Operands<G, W, M>& a = memory.operands();
  if (threadIdx.x == 0) shared = factors_of(rule);
  __syncthreads();
  Factors factors = shared;
  const std::uint32_t step = rule.scalars->step;
#pragma unroll 1
  for (std::int64_t c = blockIdx.x; c < items.count; c += gridDim.x) {
    const Chunk chunk = items.chunks ? items.chunks[c] : Chunk{0, static_cast<std::int32_t>(c)};
    __syncthreads();
    if (threadIdx.x == 0) {
      const AdamWItem& item = items.items ? items.items[chunk.item] : items.single;
      a.set(item);
      shared.keep_weight = static_cast<float>(1.0 - rule.scalars->learning_rate * item.weight_decay);
    }
    __syncthreads();
    factors.keep_weight = shared.keep_weight;
    const std::int64_t first = chunk.number * AdamWItem::kChunkGroups;
    const std::int64_t end = min(a.groups, first + AdamWItem::kChunkGroups);
    update_groups(a, rule.keys, factors, shared, first, end, step);
  }
}

// The formulas of adamw_cpu.cpp.
__global__ void prepare_step_kernel(const PrepareStep op) {
  StepScalars& s = *op.scalars;
  s.loss_sum = op.loss_total[0];
  s.token_count = op.loss_total[1];
  const double mean = 1.0 / s.token_count;
  s.grad_norm = sqrt(*op.sum_squares) * mean;
  const bool moves = isfinite(s.loss_sum) && isfinite(s.grad_norm) && s.token_count > 0;
  const double clip = op.max_grad_norm > 0 ? std::min(1.0, op.max_grad_norm / (s.grad_norm + 1e-6)) : 1.0;
  s.found_inf = moves ? 0.0f : 1.0f;
  s.grad_scale = clip * mean;
  s.learning_rate = op.learning_rate;
  const std::int32_t t = *op.updates + 1;
  s.bias_correction1 = 1.0 - pow(op.beta1, static_cast<double>(t));
  s.bias_correction2 = 1.0 - pow(op.beta2, static_cast<double>(t));
  s.step = op.step;
  if (moves) *op.updates = t;
  s.updates = *op.updates;
}

// Calls f.template operator()<T>() with the type T of a gradient, weight or moment that is F32 or BF16.
template <class F>
void visit_state(const char* operand, DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  require(dtype == DType::bf16, "adamw on CUDA: ", operand, " is ", name_of(dtype), ", not F32 or BF16");
  f.template operator()<BFloat16>();
}

void launch(Stream& stream, const AdamW& like, const Items& items) {
  if (items.count == 0) return;
  visit_state("grad", like.grad.dtype, [&]<class G>() {
    visit_state("weight", like.weight.dtype, [&]<class W>() {
      const auto run = [&]<class M>() {
        const auto blocks = static_cast<unsigned>(
            std::min(items.count, std::int64_t{kBlocks<G, W, M>} * octet::cuda::multiprocessors_of(stream)));
        adamw_kernel<G, W, M><<<blocks, kThreads, 0, native_stream(stream)>>>(items, Rule(like));
        check_launch("adamw");
      };
      if (like.moment1.dtype == DType::f8_e4m3) return run.template operator()<Code>();
      visit_state("a moment", like.moment1.dtype, run);
    });
  });
}

}  // namespace

void adamw(Stream& stream, const AdamW& op) {
  const AdamWItem item(op);
  launch(stream, op, {.count = item.chunks(), .single = item});
}

void adamw(Stream& stream, const AdamWList& list) {
  const OpTable<AdamWItem>& table = list.table();
  launch(stream, list.ops().front(),
         {.items = table.items_of_device(), .chunks = table.chunks_of_device(), .count = table.chunks()});
}

void prepare_step(Stream& stream, const PrepareStep& op) {
  prepare_step_kernel<<<1, 1, 0, native_stream(stream)>>>(op);
  check_launch("prepare_step");
}

}  // namespace octet::kernels::cuda

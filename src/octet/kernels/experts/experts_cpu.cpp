#include "octet/kernels/experts/experts_cpu.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "octet/base/math.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/kernels/quantize/cast_rows.h"
#include "octet/kernels/vector_math.h"
#include "octet/numerics/scale.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kTokensPerTask = 16;

void check_rows(const Tensor& rows, std::int64_t count) {
  const std::int32_t* const row = rows.as<std::int32_t>();
  for (std::int64_t i = 0; i < rows.elements(); ++i)
    require(0 <= row[i] && row[i] < count, "experts: row ", row[i], " at ", i, ", of ", count);
}

// Calls body(t) for every token.
template <class Body>
void for_tokens(std::int64_t tokens, Body body) {
  parallel_ranges(tokens, kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) body(t);
  });
}

}  // namespace

void expert_order(const ExpertOrder& op) {
  const std::int64_t experts = op.counts.rows(), assignments = op.experts.elements();
  const std::int32_t* const expert = op.experts.as<std::int32_t>();
  std::int32_t* const counts = op.counts.as<std::int32_t>();
  std::fill(counts, counts + experts, 0);
  for (std::int64_t i = 0; i < assignments; ++i) {
    require(0 <= expert[i] && expert[i] < experts, "expert_order: expert ", expert[i], " at ", i, ", of ", experts);
    ++counts[expert[i]];
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0, begin = 0; e < experts; ++e) {
    next[static_cast<std::size_t>(e)] = begin;
    begin += round_up(std::int64_t{counts[e]}, op.multiple);
  }
  for (std::int64_t i = 0; i < assignments; ++i)
    op.rows.as<std::int32_t>()[i] = static_cast<std::int32_t>(next[static_cast<std::size_t>(expert[i])]++);
}

void group_rows(const GroupRows& op) {
  std::int32_t* const first = op.groups.first.as<std::int32_t>();
  std::int32_t* const tiles = op.groups.tiles.as<std::int32_t>();
  std::int64_t end = 0;
  for (const GroupExtent& part : extents_of(op.groups)) {
    end = part.first + part.padded();
    require(end <= op.groups.rows(), "group_rows: groups of ", end, " rows in ", op.groups.rows());
    first[part.group] = static_cast<std::int32_t>(part.first);
    std::fill(tiles + part.first / kGroupRows, tiles + end / kGroupRows, static_cast<std::int32_t>(part.group));
  }
  first[op.groups.size()] = static_cast<std::int32_t>(end);
  std::fill(tiles + end / kGroupRows, tiles + op.groups.tiles.rows(), -1);
}

void clear_gaps(const ClearGaps& op) {
  const std::size_t row_bytes = static_cast<std::size_t>(op.x.cols()) * size_of(op.x.dtype);
  for (const GroupExtent& part : extents_of(op.groups)) {
    const Tensor gap = op.x.slice_rows(part.first + part.count, part.first + part.padded());
    std::memset(gap.data, 0, static_cast<std::size_t>(gap.rows()) * row_bytes);
  }
}

namespace {

// Multiplies a row.
template <class T>
void weigh(const T* x, Real<T> weight, std::int64_t d, T* y) {
  for (std::int64_t c = 0; c < d; ++c) y[c] = static_cast<T>(weight * static_cast<Real<T>>(x[c]));
}

void copy_rows(const ExpertScatter& op) {
  const std::int64_t k = op.rows.cols();
  const std::size_t row_bytes = static_cast<std::size_t>(op.x.cols()) * size_of(op.x.dtype);
  for_tokens(op.x.rows(), [&](std::int64_t t) {
    const Tensor x = op.x.slice_rows(t, t + 1);
    for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
      const std::int64_t row = op.rows.as<std::int32_t>()[i];
      std::memcpy(op.y.slice_rows(row, row + 1).data, x.data, row_bytes);
    }
  });
}

// The order in which tokens raise an amax does not matter.
void scatter_codes(const ExpertScatter& op) {
  const std::int64_t k = op.rows.cols(), d = op.x.cols();
  const Tensor& codes = op.codes.out.rowwise;
  std::vector<Magnitude> amaxes(static_cast<std::size_t>(op.rows.elements()));
  for_tokens(op.x.rows(), [&](std::int64_t t) {
    const BFloat16* const x = op.x.as<BFloat16>() + t * op.x.row_stride;
    std::vector<BFloat16> weighed(op.weights ? static_cast<std::size_t>(d) : 0);
    for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
      if (op.weights) weigh(x, op.weights.as<float>()[i], d, weighed.data());
      amaxes[static_cast<std::size_t>(i)] =
          cast(op.codes.spec.format, op.weights ? weighed.data() : x, 0, 1, static_cast<std::size_t>(d),
               op.codes.scale[op.experts.as<std::int32_t>()[i] * op.codes.scale_stride],
               codes.as_bytes() + op.rows.as<std::int32_t>()[i] * codes.row_stride, 0);
    }
  });
  if (!op.codes.amax) return;
  for (std::int64_t i = 0; i < op.rows.elements(); ++i) {
    float& amax = op.codes.amax[op.experts.as<std::int32_t>()[i] * op.codes.amax_stride];
    amax = max_magnitude(amax, to_float(amaxes[static_cast<std::size_t>(i)]));
  }
}

}  // namespace

void expert_scatter(const ExpertScatter& op) {
  check_rows(op.rows, op.codes ? op.codes.out.rowwise.rows() : op.y.rows());
  if (op.codes) return scatter_codes(op);
  if (!op.weights) return copy_rows(op);
  visit_float(op.x.dtype, [&]<class T>() {
    const std::int64_t k = op.rows.cols(), d = op.x.cols();
    for_tokens(op.x.rows(), [&](std::int64_t t) {
      const T* const x = op.x.as<T>() + t * op.x.row_stride;
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        weigh(x, op.weights.as<Real<T>>()[i], d, op.y.as<T>() + op.rows.as<std::int32_t>()[i] * op.y.row_stride);
      }
    });
  });
}

void expert_amax(const ExpertAmax& op) {
  std::vector<Magnitude> of_tokens(static_cast<std::size_t>(op.x.rows()));
  for_tokens(op.x.rows(), [&](std::int64_t t) {
    of_tokens[static_cast<std::size_t>(t)] =
        amax(op.x.as<BFloat16>() + t * op.x.row_stride, static_cast<std::size_t>(op.x.cols()));
  });
  float* const amaxes = op.amax.as<float>();
  std::fill(amaxes, amaxes + op.amax.rows(), 0.0f);
  for (std::int64_t i = 0; i < op.experts.elements(); ++i) {
    const float largest = to_float(of_tokens[static_cast<std::size_t>(i / op.experts.cols())]);
    const float product = op.weights ? static_cast<float>(BFloat16(op.weights.as<float>()[i] * largest)) : largest;
    float& to = amaxes[op.experts.as<std::int32_t>()[i]];
    to = max_magnitude(to, product);
  }
}

void expert_combine(const ExpertCombine& op) {
  check_rows(op.rows, op.x.rows());
  visit_float(op.y.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t k = op.rows.cols(), d = op.y.cols();
    for_tokens(op.y.rows(), [&](std::int64_t t) {
      std::vector<R> sums(static_cast<std::size_t>(d));
      if (op.residual) {
        load_row(sums.data(), op.residual.as<T>() + t * op.residual.row_stride, d);
      }
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const T* const x = op.x.as<T>() + op.rows.as<std::int32_t>()[i] * op.x.row_stride;
        const R weight = op.weights ? op.weights.as<R>()[i] : R{1};
        for (std::int64_t c = 0; c < d; ++c) sums[static_cast<std::size_t>(c)] += weight * static_cast<R>(x[c]);
      }
      store_row(op.y.as<T>() + t * op.y.row_stride, sums.data(), d);
    });
  });
}

void expert_dot(const ExpertDot& op) {
  check_rows(op.rows, op.x.rows());
  visit_float(op.gy.dtype, [&]<class T>() {
    using R = Real<T>;
    const std::int64_t k = op.rows.cols(), d = op.gy.cols();
    for_tokens(op.gy.rows(), [&](std::int64_t t) {
      const T* const gy = op.gy.as<T>() + t * op.gy.row_stride;
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const T* const x = op.x.as<T>() + op.rows.as<std::int32_t>()[i] * op.x.row_stride;
        op.gweights.as<R>()[i] = lane_sum<R>(d, [=](std::int64_t c) { return static_cast<R>(gy[c]) * static_cast<R>(x[c]); });
      }
    });
  });
}

}  // namespace octet::kernels::cpu

#include "octet/kernels/grouped_gemm/grouped_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>

#include "octet/base/rng.h"
#include "octet/kernels/experts/experts.h"
#include "octet/kernels/quantize/quantize.h"
#include "octet/kernels/swiglu/swiglu.h"
#include "support/bounds.h"
#include "support/emulated_tiles.h"
#include "support/near.h"

namespace octet {
namespace {

using kernels::GemmOperand;
using testing::values_of;

constexpr std::int64_t kIn = 48, kOut = 32;
const std::vector<std::int32_t> kCounts = {130, 0, 128, 5, 0};

// All operands, in groups, and products of each group's decoded values in F64, which is the oracle.
// BLAS multiplies, or the emulated tiles wherever a processor with tiles would use them.
class GroupedGemm : public ::testing::TestWithParam<const kernels::cpu::TileKernel*> {
 protected:
  GroupedGemm() {
    std::int64_t all = 0;
    for (const std::int32_t count : kCounts) all += count;
    const auto n = static_cast<std::int64_t>(kCounts.size());
    rows_ = grouped_rows(all, n);
    groups_ = {make(DType::i32, {n}), make(DType::i32, {n + 1}), make(DType::i32, {rows_ / kGroupRows}), all};
    std::copy(kCounts.begin(), kCounts.end(), groups_.counts.as<std::int32_t>());
    kernels::group_rows(*stream_, {groups_});
  }

  Tensor make(DType dtype, Shape shape) {
    buffers_.push_back(device_->allocate(bytes_of(dtype, shape), MemoryCategory::workspace));
    return view(buffers_.back(), dtype, shape);
  }
  Tensor random(DType dtype, Shape shape) {
    const Tensor x = make(dtype, shape);
    const Rng rng(7, RngStream::test, ++draws_);
    visit_float(dtype, [&]<class T>() {
      for (std::int64_t i = 0; i < x.elements(); ++i)
        x.as<T>()[i] = static_cast<T>(static_cast<Real<T>>(rng.normal(static_cast<std::uint64_t>(i))));
    });
    return x;
  }
  // Values of all groups, zeros behind each, and NaN behind the last.
  Tensor rows_of_groups(DType dtype, std::int64_t cols) {
    const Tensor x = random(dtype, {rows_, cols});
    kernels::clear_gaps(*stream_, {groups_, x});
    const std::int64_t end = groups_.first.as<std::int32_t>()[kCounts.size()];
    EXPECT_LT(end, rows_);
    std::memset(x.slice_rows(end, rows_).data, 0xFF, x.slice_rows(end, rows_).bytes());
    return x;
  }
  static double at(const Tensor& x, std::int64_t row, std::int64_t col) {
    double value = 0;
    visit_float(x.dtype,
                [&]<class T>() { value = static_cast<double>(static_cast<Real<T>>(x.as<T>()[row * x.row_stride + col])); });
    return value;
  }
  static double code(const Tensor& codes, Fp8Format format, std::int64_t row, std::int64_t col) {
    return decode_fp8(format, codes.as_bytes()[row * codes.row_stride + col]);
  }

  // |actual - expected| within the roundoff of a sum of `terms` in FP32 of terms whose magnitudes add up to `size`, and of the
  // result.
  static void expect_sum(double actual, double expected, double size, std::int64_t terms, DType dtype, const std::string& what) {
    const double result = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f32 ? 0x1p-23 : 0x1p-52;
    const double sum = static_cast<double>(terms + 4) * (dtype == DType::f64 ? 0x1p-52 : 0x1p-23) * size;
    EXPECT_LE(std::abs(actual - expected), sum + result * std::abs(expected)) << what;
  }

  // Checks D[rows of g] = a b_gᵀ, where a(row, k) and b(group, n, k) are the values that the operands stand for.
  template <class A, class B>
  void check_along_m(const kernels::GroupedGemmM& op, A a, B b, const std::string& what) {
    const std::vector<double> before = op.accumulate ? values_of(op.d) : std::vector<double>();
    kernels::grouped_gemm(*stream_, scratch_, op);
    for (const GroupExtent& part : extents_of(groups_)) {
      for (std::int64_t row = part.first; row < part.first + part.padded(); ++row) {
        for (std::int64_t n = 0; n < op.d.cols(); ++n) {
          double sum = op.accumulate ? before[static_cast<std::size_t>(row * op.d.cols() + n)] : 0, size = std::abs(sum);
          for (std::int64_t k = 0; k < op.a.k(); ++k) {
            const double term = static_cast<double>(op.factor) * a(row, k) * b(part.group, n, k);
            sum += term;
            size += std::abs(term);
          }
          expect_sum(at(op.d, row, n), sum, size, op.a.k(), op.d.dtype, what);
        }
      }
    }
  }
  template <class A, class B>
  void check_along_k(kernels::GroupedGemmK op, DType dtype, std::int64_t m_rows, std::int64_t n_rows, A a, B b,
                     const std::string& what) {
    for (const bool accumulate : {false, true}) {
      op.accumulate = accumulate;
      op.d.clear();
      for (std::size_t g = 0; g < kCounts.size(); ++g) op.d.push_back(random(dtype, {m_rows, n_rows}));
      std::vector<std::vector<double>> before;
      for (const Tensor& d : op.d) before.push_back(values_of(d));
      kernels::grouped_gemm(*stream_, scratch_, op);
      for (const GroupExtent& part : extents_of(groups_)) {
        for (std::int64_t m = 0; m < m_rows; ++m) {
          for (std::int64_t n = 0; n < n_rows; ++n) {
            double sum = accumulate ? before[part.group][static_cast<std::size_t>(m * n_rows + n)] : 0, size = std::abs(sum);
            for (std::int64_t row = part.first; row < part.first + part.count; ++row) {
              sum += a(part.group, row, m) * b(part.group, row, n);
              size += std::abs(a(part.group, row, m) * b(part.group, row, n));
            }
            expect_sum(at(op.d[part.group], m, n), sum, size, part.count, dtype, what);
          }
        }
      }
    }
  }

  testing::UseTileKernel kernel_{GetParam()};
  std::unique_ptr<Device> device_ = make_device(DeviceKind::cpu);
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  Arena scratch_{*device_, MemoryCategory::workspace, std::size_t{1} << 26};
  std::int64_t rows_ = 0;
  RowGroups groups_;

 private:
  std::deque<Buffer> buffers_;
  std::uint32_t draws_ = 0;
};

INSTANTIATE_TEST_SUITE_P(, GroupedGemm, ::testing::Values(nullptr, &testing::kEmulatedTiles, &testing::kEmulatedPairs),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST_P(GroupedGemm, GroupsBeginAtMultiples) {
  const std::int32_t* const first = groups_.first.as<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(first, first + 6), (std::vector<std::int32_t>{0, 256, 256, 384, 512, 512}));
  const std::int32_t* const tiles = groups_.tiles.as<std::int32_t>();
  EXPECT_EQ(std::vector<std::int32_t>(tiles, tiles + rows_ / kGroupRows), (std::vector<std::int32_t>{0, 0, 2, 3, -1, -1, -1}));
}

TEST_P(GroupedGemm, MultipliesValues) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    const Tensor x = rows_of_groups(dtype, kIn), g = rows_of_groups(dtype, kOut);
    std::vector<Tensor> w;
    kernels::GroupedGemmM fprop{.groups = groups_, .a = {.values = x}, .d = make(dtype, {rows_, kOut})};
    kernels::GroupedGemmM dgrad{.groups = groups_, .a = {.values = g}, .d = make(dtype, {rows_, kIn})};
    for (std::size_t i = 0; i < kCounts.size(); ++i) {
      w.push_back(random(dtype, {kOut, kIn}));
      fprop.b.push_back({.values = w.back()});
      dgrad.b.push_back(kernels::transposed_values(w.back()));
    }
    const std::string what = std::string(octet::name_of(dtype)) + " ";
    check_along_m(
        fprop, [&](auto r, auto k) { return at(x, r, k); }, [&](auto e, auto n, auto k) { return at(w[e], n, k); },
        what + "fprop");
    check_along_m(
        dgrad, [&](auto r, auto k) { return at(g, r, k); }, [&](auto e, auto n, auto k) { return at(w[e], k, n); },
        what + "dgrad");
    kernels::GroupedGemmM adding = fprop;
    adding.d = rows_of_groups(dtype, kOut);
    adding.accumulate = true;
    adding.factor = 0.75f;
    check_along_m(
        adding, [&](auto r, auto k) { return at(x, r, k); }, [&](auto e, auto n, auto k) { return at(w[e], n, k); },
        what + "added");
    check_along_k(
        {.groups = groups_, .a = kernels::transposed_values(g), .b = kernels::transposed_values(x)},
        dtype == DType::f64 ? DType::f64 : DType::f32, kOut, kIn, [&](auto, auto r, auto m) { return at(g, r, m); },
        [&](auto, auto r, auto n) { return at(x, r, n); }, what + "wgrad");
  }
}

// Codes and scales are read as tensor/quantized.h and tensor/row_groups.h say.
TEST_P(GroupedGemm, MultipliesCodes) {
  const Fp8Format e4m3 = Fp8Format::e4m3;
  const auto groups = static_cast<std::int64_t>(kCounts.size());
  for (const ScaleTile tile : {ScaleTile::tensor, ScaleTile::row, ScaleTile::block_1x128, ScaleTile::mx_1x32}) {
    const QuantSpec spec{.tile = tile}, of_weight{.tile = tile == ScaleTile::block_1x128 ? ScaleTile::block_128x128 : tile};
    const auto quantized = [&](const Tensor& x) {
      Quantized q{.format = e4m3,
                  .tile = tile,
                  .rowwise = make(DType::f8_e4m3, x.shape),
                  .rowwise_scale_inv = make(scale_dtype(tile), rowwise_scale_shape(tile, rows_, x.cols(), groups)),
                  .columnwise = make(DType::f8_e4m3, {x.cols(), rows_}),
                  .columnwise_scale_inv = make(scale_dtype(tile), columnwise_scale_shape(tile, rows_, x.cols(), groups))};
      if (tile == ScaleTile::tensor) q.columnwise_scale_inv = q.rowwise_scale_inv;
      kernels::quantize(*stream_, scratch_, {.x = x, .spec = spec, .out = q, .groups = groups_});
      return q;
    };
    const auto scale_at = [&](const Tensor& scales, std::int64_t index) {
      return scales.dtype == DType::e8m0 ? static_cast<double>(decode_e8m0(scales.as_bytes()[index]))
                                         : static_cast<double>(scales.as<float>()[index]);
    };
    const auto rowwise = [&](const Quantized& q, std::int64_t row, std::int64_t col) {
      const std::int64_t group = groups_.tiles.as<std::int32_t>()[row / kGroupRows];
      const std::int64_t index = tile == ScaleTile::tensor        ? group
                                 : tile == ScaleTile::row         ? row
                                 : tile == ScaleTile::block_1x128 ? col / 128 * rows_ + row
                                                                  : row * ((q.rowwise.cols() + 31) / 32) + col / 32;
      return code(q.rowwise, e4m3, row, col) * scale_at(q.rowwise_scale_inv, index);
    };
    const auto columnwise = [&](const Quantized& q, std::size_t group, std::int64_t row, std::int64_t col) {
      const std::int64_t cols = q.columnwise.rows();
      const std::int64_t index = tile == ScaleTile::tensor        ? static_cast<std::int64_t>(group)
                                 : tile == ScaleTile::row         ? static_cast<std::int64_t>(group) * cols + col
                                 : tile == ScaleTile::block_1x128 ? row / 128 * cols + col
                                                                  : col * (rows_ / 32) + row / 32;
      return code(q.columnwise, e4m3, col, row) * scale_at(q.columnwise_scale_inv, index);
    };
    const Tensor x = rows_of_groups(DType::bf16, kIn), g = rows_of_groups(DType::bf16, kOut);
    const Quantized qx = quantized(x), qg = quantized(g);
    // The codes stand for the values: E4M3 has a relative error of 2^-4, or a sixteenth of the smallest step near zero.
    for (const GroupExtent& part : extents_of(groups_)) {
      for (std::int64_t row = part.first; row < part.first + part.count; ++row) {
        for (std::int64_t col = 0; col < kIn; ++col) {
          EXPECT_NEAR(rowwise(qx, row, col), at(x, row, col), 0x1p-4 * std::abs(at(x, row, col)) + 1e-4);
          EXPECT_NEAR(columnwise(qx, part.group, row, col), at(x, row, col), 0x1p-4 * std::abs(at(x, row, col)) + 1e-4);
        }
      }
    }
    std::vector<Quantized> w;
    kernels::GroupedGemmM fprop{.groups = groups_, .a = kernels::row_operand(qx), .d = make(DType::bf16, {rows_, kOut})};
    for (std::size_t i = 0; i < kCounts.size(); ++i) {
      w.push_back({.format = e4m3,
                   .tile = of_weight.tile,
                   .rowwise = make(DType::f8_e4m3, {kOut, kIn}),
                   .rowwise_scale_inv = make(scale_dtype(of_weight.tile), scale_shape(of_weight.tile, kOut, kIn))});
      kernels::quantize(*stream_, scratch_, {.x = random(DType::bf16, {kOut, kIn}), .spec = of_weight, .out = w.back()});
      fprop.b.push_back(kernels::row_operand(w.back()));
    }
    const auto weight = [&](std::size_t e, std::int64_t n, std::int64_t k) {
      const std::int64_t index = of_weight.tile == ScaleTile::row ? n
                                 : tile == ScaleTile::mx_1x32     ? n * ((kIn + 31) / 32) + k / 32
                                                                  : 0;
      return code(w[e].rowwise, e4m3, n, k) * scale_at(w[e].rowwise_scale_inv, index);
    };
    const std::string what = "tile " + std::to_string(static_cast<int>(tile));
    check_along_m(
        fprop, [&](auto r, auto k) { return rowwise(qx, r, k); }, weight, what + " fprop");
    check_along_k(
        {.groups = groups_, .a = kernels::transposed_operand(qg), .b = kernels::transposed_operand(qx)}, DType::f32, kOut, kIn,
        [&](auto e, auto r, auto m) { return columnwise(qg, e, r, m); },
        [&](auto e, auto r, auto n) { return columnwise(qx, e, r, n); }, what + " wgrad");
    if (tile != ScaleTile::tensor) continue;
    Quantized first_x = qx, first_g = qg;  // with one scale, rowwise codes may serve both directions
    first_x.columnwise = first_g.columnwise = {};
    check_along_k(
        {.groups = groups_, .a = kernels::transposed_operand(first_g), .b = kernels::transposed_operand(first_x)}, DType::f32,
        kOut, kIn, [&](auto e, auto r, auto m) { return columnwise(qg, e, r, m); },
        [&](auto e, auto r, auto n) { return columnwise(qx, e, r, n); }, what + " wgrad of rowwise codes");
  }
}

// A group's scale and amax are its own, and rows behind the last group are neither read nor written.
TEST_P(GroupedGemm, EachGroupHasItsScale) {
  const Tensor gate_up = rows_of_groups(DType::bf16, 2 * kIn);
  const auto n = static_cast<std::int64_t>(kCounts.size());
  const Tensor scale = make(DType::f32, {2 * n}), amax = make(DType::f32, {3 * n}), y = make(DType::bf16, {rows_, kIn});
  for (std::int64_t i = 0; i < 2 * n; ++i) scale.as<float>()[i] = static_cast<float>(i + 1);
  const QuantSpec spec{.tile = ScaleTile::tensor, .source = ScaleSource::history};
  const Tensor codes = make(DType::f8_e4m3, {rows_, kIn}), inverse = make(DType::f32, {n});
  std::memset(codes.data, 0x5A, codes.bytes());
  kernels::QuantizeEpilogue to{.spec = spec,
                               .out = {.rowwise = codes, .rowwise_scale_inv = inverse},
                               .scale = scale.as<float>(),
                               .amax = amax.as<float>(),
                               .groups = groups_,
                               .scale_stride = 2,
                               .amax_stride = 3};
  kernels::swiglu_forward(*stream_, scratch_, {.gate_up = gate_up, .y = y, .codes = to});
  for (const GroupExtent& part : extents_of(groups_)) {
    float largest = 0;
    const float factor = static_cast<float>(2 * part.group + 1);
    for (std::int64_t row = part.first; row < part.first + part.count; ++row) {
      for (std::int64_t col = 0; col < kIn; ++col) {
        const double gate = at(gate_up, row, col), up = at(gate_up, row, kIn + col);
        const auto value = static_cast<float>(y.as<BFloat16>()[row * kIn + col]);
        EXPECT_NEAR(double{value}, gate / (1 + std::exp(-gate)) * up, 0x1p-7 * double{std::abs(value)} + 1e-30);
        EXPECT_EQ(codes.as_bytes()[row * kIn + col], encode_fp8(Fp8Format::e4m3, value * factor));
        largest = std::max(largest, std::abs(value));
      }
    }
    EXPECT_EQ(amax.as<float>()[3 * part.group], largest);
    if (part.count > 0) {
      EXPECT_EQ(inverse.as<float>()[part.group], 1.0f / factor);
    }
  }
  for (std::int64_t i = groups_.first.as<std::int32_t>()[kCounts.size()] * kIn; i < codes.elements(); ++i)
    ASSERT_EQ(codes.as_bytes()[i], 0x5A) << "row " << i / kIn;
}

}  // namespace
}  // namespace octet

#include "octet/kernels/elementwise/elementwise.h"

#include <bit>
#include <cmath>

#include "gpu/twins.h"

namespace octet::kernels {
namespace {

using testing::Twin;

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class CastOnGpu : public testing::TwinTest {
 protected:
  // Random bits, which include every exponent, subnormals and infinities. Casts between types of up to 32 bits keep the bits of
  // NaN. Casts from or to F64 get no NaN, because processors convert it differently. F64 values lie near FP32 values, so that
  // results are rounded.
  Twin bits(DType dtype, Shape shape, bool with_nan) {
    const Twin t = zeros(dtype, shape);
    const Rng rng(23, RngStream::test, ++draws_);
    for (std::int64_t i = 0; i < t.cpu.elements(); ++i) {
      const std::uint64_t word = rng.word64(static_cast<std::uint64_t>(i));
      const auto low = static_cast<std::uint16_t>(word);
      const float narrow = std::bit_cast<float>(static_cast<std::uint32_t>(word));
      if (dtype == DType::f64) {
        const double half = static_cast<double>(static_cast<float>(Float16(narrow)));
        const double value = i % 2 == 0 ? static_cast<double>(narrow) : half + half * 0x1p-11;  // halfway between two FP16
        t.cpu.as<double>()[i] = std::isnan(value) ? 0.0 : value * (1.0 + static_cast<double>(word >> 61) * 0x1p-40);
      } else if (dtype == DType::f32) {
        t.cpu.as<float>()[i] = std::isnan(narrow) && !with_nan ? 0.0f : narrow;
      } else if (dtype == DType::bf16) {
        const BFloat16 value = BFloat16::from_bits(low);
        t.cpu.as<BFloat16>()[i] = std::isnan(static_cast<float>(value)) && !with_nan ? BFloat16(0.0f) : value;
      } else {
        Float16 value;
        value.bits = low;
        t.cpu.as<Float16>()[i] = std::isnan(static_cast<float>(value)) && !with_nan ? Float16(0.0f) : value;
      }
    }
    upload(t);
    return t;
  }
  void run(const Twin& x, const Twin& y) {
    cast(*cpu_stream, {.x = x.cpu, .y = y.cpu});
    cast(*gpu_stream, {.x = x.gpu, .y = y.gpu});
  }

 private:
  std::uint32_t draws_ = 0;
};

TEST_F(CastOnGpu, HasTheBitsOfTheCpu) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      const std::string what = concat(name_of(from), " to ", name_of(to));
      const bool with_nan = from != DType::f64 && to != DType::f64;
      for (const Shape& shape : {Shape{1}, Shape{7}, Shape{300, 1001}, Shape{64, 4096}}) {
        const Twin x = bits(from, shape, with_nan), y = poisoned(to, shape);
        run(x, y);
        expect_same_bytes(y, concat(what, " ", shape));
      }
    }
  }
}

TEST_F(CastOnGpu, TakesRowsWithGapsAndLeavesThemAlone) {
  struct Case {
    std::int64_t rows, cols, offset;
  };
  for (const Case& c : {Case{50, 1000, 8}, Case{50, 1000, 3}, Case{33, 13, 8}, Case{70000, 3, 1}}) {
    for (const DType to : {DType::bf16, DType::f32}) {
      const Twin x = bits(DType::f32, {c.rows, c.cols + 16}, true), y = poisoned(to, {c.rows, c.cols + 24});
      const std::int64_t end = c.offset + c.cols;
      run({x.cpu.slice_cols(c.offset, end), x.gpu.slice_cols(c.offset, end)},
          {y.cpu.slice_cols(c.offset, end), y.gpu.slice_cols(c.offset, end)});
      expect_same_bytes(y, concat(c.rows, " x ", c.cols, " at ", c.offset, " to ", name_of(to)));
    }
  }
}

class AddOnGpu : public CastOnGpu {
 protected:
  void check(const Twin& x, const Twin& y, const std::string& what) {
    add(*cpu_stream, {.x = x.cpu, .y = y.cpu});
    add(*gpu_stream, {.x = x.gpu, .y = y.gpu});
    expect_same_bytes(y, what);
  }
  // Finite terms of similar magnitude, so that their sums are rounded.
  Twin terms(DType dtype, Shape shape) {
    const Rng rng(29, RngStream::test, ++draws_);
    return filled(dtype, shape, [&](std::int64_t i) {
      const auto at = static_cast<std::uint64_t>(i);
      return std::ldexp(rng.normal(at), static_cast<int>(rng.word64(at) % 30) - 15);
    });
  }

 private:
  std::uint32_t draws_ = 0;
};

TEST_F(AddOnGpu, HasTheBitsOfTheCpu) {
  for (const DType from : {DType::f64, DType::f32, DType::bf16}) {
    for (const DType to : {DType::f64, DType::f32, DType::bf16}) {
      for (const Shape& shape : {Shape{1}, Shape{7}, Shape{300, 1001}, Shape{64, 4096}}) {
        check(terms(from, shape), terms(to, shape), concat(name_of(from), " to ", name_of(to), " ", shape));
      }
    }
  }
}

TEST_F(AddOnGpu, TakesRowsWithGapsAndLeavesThemAlone) {
  for (const std::int64_t offset : {3, 8}) {
    const Twin x = terms(DType::bf16, {50, 1016}), y = terms(DType::f32, {50, 1024});
    const std::int64_t end = offset + 1000;
    add(*cpu_stream, {.x = x.cpu.slice_cols(offset, end), .y = y.cpu.slice_cols(offset, end)});
    add(*gpu_stream, {.x = x.gpu.slice_cols(offset, end), .y = y.gpu.slice_cols(offset, end)});
    expect_same_bytes(y, concat("at ", offset));
  }
}

TEST_F(AddOnGpu, AddsOneRowToEveryRow) {
  for (const std::int64_t cols : {7, 1001, 4096}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Twin x = terms(dtype, {1, cols}), y = terms(DType::bf16, {70, cols});
      const auto every = [&](Tensor row) {
        row.shape[0] = 70;
        row.row_stride = 0;
        return row;
      };
      add(*cpu_stream, {.x = every(x.cpu), .y = y.cpu});
      add(*gpu_stream, {.x = every(x.gpu), .y = y.gpu});
      expect_same_bytes(y, concat(cols, " columns"));
    }
  }
}

// Lengths with and without whole vectors, and with addresses that no vector access can use.
TEST_F(AddOnGpu, SumsOfPartsHaveTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::size_t count : {1, 2, 3, 8}) {
      for (const bool has_residual : {false, true}) {
        for (const std::int64_t skipped : {0, 1}) {
          std::vector<Twin> parts;
          for (std::size_t part = 0; part < count; ++part) parts.push_back(terms(dtype, {300 * 1001}));
          const Twin residual = terms(dtype, {300 * 1001}), y = poisoned(dtype, {300 * 1001});
          const auto sum = [&](Stream& stream, Tensor Twin::*side) {
            const auto of = [&](const Twin& x) { return (x.*side).slice_rows(skipped, 300 * 1001); };
            SumParts op{.parts = {}, .residual = has_residual ? of(residual) : Tensor{}, .y = of(y)};
            for (const Twin& part : parts) op.parts.push_back(of(part));
            sum_parts(stream, op);
          };
          sum(*cpu_stream, &Twin::cpu);
          sum(*gpu_stream, &Twin::gpu);
          expect_same_bytes(
              y, concat(count, " parts of ", name_of(dtype), has_residual ? " and a residual" : "", " from ", skipped));
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::kernels

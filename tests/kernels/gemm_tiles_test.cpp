// How products are divided for a processor's tiles.
#include "octet/kernels/gemm/gemm_tiles.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "octet/base/rng.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/gemm/gemm_plan.h"
#include "support/emulated_tiles.h"

namespace octet {
namespace {

using kernels::Gemm;

class TileOrder : public ::testing::TestWithParam<const kernels::cpu::TileKernel*> {};
INSTANTIATE_TEST_SUITE_P(, TileOrder, ::testing::Values(&testing::kEmulatedTiles, &testing::kEmulatedPairs),
                         [](const auto& info) { return info.param == &testing::kEmulatedTiles ? "Amx" : "Avx512Bf16"; });

// A kernel sums in one order of K, however D is divided among threads, whatever the layouts and the place of an element in D.
TEST_P(TileOrder, SameBitsForAnyDivisionAndLayout) {
  const testing::UseTileKernel emulated(GetParam());
  const auto device = make_device(DeviceKind::cpu);
  constexpr std::int64_t kM = 100, kN = 84, kK = 1100;  // K spans three chunks
  std::vector<BFloat16> a(kM * kK), b(kN * kK), a_first(a.size()), b_first(b.size());
  std::vector<float> expected(kM * kN), actual(kM * kN);
  const Rng rng(1, RngStream::test, 40);
  const auto fill = [&](std::vector<BFloat16>& x, std::vector<BFloat16>& k_first, std::int64_t rows, std::uint64_t subject) {
    for (std::int64_t i = 0; i < rows * kK; ++i) {
      x[static_cast<std::size_t>(i)] = BFloat16(static_cast<float>(rng.normal(static_cast<std::uint64_t>(i) + (subject << 32))));
      k_first[static_cast<std::size_t>(i % kK * rows + i / kK)] = x[static_cast<std::size_t>(i)];
    }
  };
  fill(a, a_first, kM, 1);
  fill(b, b_first, kN, 2);
  constexpr std::size_t kMemory = std::size_t{32} << 20;
  const Buffer memory = device->allocate(kMemory, MemoryCategory::workspace);
  bool first = true;
  std::set<std::pair<std::int64_t, std::int64_t>> divisions;
  for (const std::int64_t lanes : {1, 2, 4, 16}) {
    for (const int layouts : {0, 1, 2, 3}) {
      Gemm op{.a = {.values = Tensor(a.data(), DType::bf16, {kM, kK})},
              .b = {.values = Tensor(b.data(), DType::bf16, {kN, kK})},
              .d = Tensor(first ? expected.data() : actual.data(), DType::f32, {kM, kN})};
      if (layouts & 1) op.a = kernels::transposed_values(Tensor(a_first.data(), DType::bf16, {kK, kM}));
      if (layouts & 2) op.b = kernels::transposed_values(Tensor(b_first.data(), DType::bf16, {kK, kN}));
      const kernels::GemmPlan plan = kernels::plan_gemm(op);
      ASSERT_LE(static_cast<std::size_t>(lanes * plan.lane_elements()) * sizeof(float), kMemory);
      const kernels::cpu::TileCut cut = kernels::cpu::cut_for_tiles(op, plan, lanes);
      divisions.emplace(cut.rows, cut.columns);
      kernels::cpu::gemms({&op, 1}, {&plan, 1}, lanes, memory.data());
      EXPECT_TRUE(first || actual == expected) << lanes << " lanes, layouts " << layouts;
      first = false;
    }
  }
  EXPECT_GE(divisions.size(), 3u);
}

TEST(GemmTiles, EveryDivisionFitsIntoTheMemoryOfAThread) {
  const Rng rng(1, RngStream::test, 43);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto size = [&](std::uint64_t which) {
      const std::uint64_t word = rng.word64(4 * i + which);
      return static_cast<std::int64_t>(1 + (word >> 8) % (std::uint64_t{1} << (1 + word % 17)));
    };
    const std::int64_t m = size(0), n = size(1), k = size(2);
    const bool k_first = i % 2 == 1;
    Gemm op{.a = {.values = Tensor(nullptr, DType::bf16, {m, k})},
            .b = {.values = Tensor(nullptr, DType::bf16, {n, k})},
            .d = Tensor(nullptr, DType::bf16, {m, n})};
    if (k_first) op.a = kernels::transposed_values(Tensor(nullptr, DType::bf16, {k, m}));
    const kernels::GemmPlan plan = kernels::plan_gemm(op);
    for (const std::int64_t lanes : {1, 3, 64}) {
      const kernels::cpu::TileCut cut = kernels::cpu::cut_for_tiles(op, plan, lanes);
      ASSERT_TRUE(cut.rows >= 1 && cut.rows <= m && cut.columns >= 1 && cut.columns <= n) << m << " x " << n << " x " << k;
      ASSERT_LE(cut.elements(k), plan.lane_elements()) << m << " x " << n << " x " << k << ", " << lanes << " lanes";
    }
  }
}

}  // namespace
}  // namespace octet

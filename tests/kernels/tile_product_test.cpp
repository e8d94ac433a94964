#include "octet/kernels/tiles/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/kernels/tiles/pack_tiles.h"
#include "octet/kernels/tiles/tile_kernel.h"
#include "octet/numerics/bfloat16.h"
#include "octet/numerics/float8.h"
#include "support/bounds.h"
#include "support/emulated_tiles.h"

namespace octet {
namespace {

using kernels::cpu::TileKernel;
using kernels::cpu::TileOperand;
using testing::kEmulatedPairs;
using testing::kEmulatedTiles;
using Kind = TileOperand::Kind;
using Packer = kernels::cpu::TilePacker<testing::EmulatedTiles>;

constexpr Kind kKinds[] = {Kind::bf16_k_last, Kind::bf16_k_first, Kind::e4m3, Kind::e4m3_k_first, Kind::e5m2, Kind::e5m2_k_first};

bool is_code(Kind kind) { return kind != Kind::bf16_k_last && kind != Kind::bf16_k_first; }
bool is_k_first(Kind kind) { return kind == Kind::bf16_k_first || kind == Kind::e4m3_k_first || kind == Kind::e5m2_k_first; }
bool has_scales(Kind kind) { return kind == Kind::e4m3 || kind == Kind::e5m2; }
Fp8Format format_of(Kind kind) {
  return kind == Kind::e4m3 || kind == Kind::e4m3_k_first ? Fp8Format::e4m3 : Fp8Format::e5m2;
}

// An operand whose memory ends where its last element ends, so that AddressSanitizer sees a read beyond it.
struct Values {
  Kind kind;
  std::int64_t rows, k;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> halves;
  std::vector<float> scales;

  std::int64_t steps() const { return (k + 31) / 32; }
  TileOperand operand() const {
    return {.kind = kind,
            .data = is_code(kind) ? static_cast<const void*>(codes.data()) : halves.data(),
            .stride = is_k_first(kind) ? rows : k,
            .scales = scales.empty() ? nullptr : scales.data()};
  }
  double at(std::int64_t row, std::int64_t i) const {
    const auto index = static_cast<std::size_t>(is_k_first(kind) ? i * rows + row : row * k + i);
    if (!is_code(kind)) return static_cast<float>(BFloat16::from_bits(halves[index]));
    const double scale = scales.empty() ? 1.0 : scales[static_cast<std::size_t>(row * steps() + i / 32)];
    return decode_fp8(format_of(kind), codes[index]) * scale;
  }
};

// BF16 values spread over many binades, or all finite codes, with scales if wanted.
Values random_values(Kind kind, std::int64_t rows, std::int64_t k, std::uint32_t subject, bool scaled = false) {
  Values x{.kind = kind, .rows = rows, .k = k, .codes = {}, .halves = {}, .scales = {}};
  const Rng rng(3, RngStream::test, subject);
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const std::uint64_t word = rng.word64(static_cast<std::uint64_t>(i));
    if (is_code(kind)) {
      x.codes.push_back(static_cast<std::uint8_t>(word % (format_of(kind) == Fp8Format::e4m3 ? 0x7F : 0x7C) | ((word >> 32) & 0x80)));
    } else {
      const double value = (static_cast<double>(word >> 11) * 0x1p-52 - 1) * std::exp2(static_cast<double>(word % 16) - 8);
      x.halves.push_back(BFloat16(static_cast<float>(value)).bits);
    }
  }
  for (std::int64_t i = 0; scaled && i < rows * x.steps(); ++i)
    x.scales.push_back(std::ldexp(1.0f, static_cast<int>(rng.word64(static_cast<std::uint64_t>(i)) % 21) - 10));
  return x;
}

// The sums [m, whole tiles of n] of a kernel, in memory that held NaN. `chunk` is the length of K of each call.
std::vector<float> product(const TileKernel& kernel, const Values& a, const Values& b) {
  namespace cpu = kernels::cpu;
  const std::int64_t stride = cpu::whole_tiles(b.rows, cpu::kTileRows), lines = cpu::whole_tiles(a.rows, cpu::kTileRows);
  std::vector<float> sums(static_cast<std::size_t>(lines * stride), NAN);
  const auto pack = [&](cpu::TileSide side, const Values& x, std::unique_ptr<std::uint16_t, decltype(&std::free)>& memory) {
    memory.reset(
        static_cast<std::uint16_t*>(std::aligned_alloc(64, static_cast<std::size_t>(2 * cpu::packed_elements(x.rows, x.k)))));
    const cpu::TilePanel panel = cpu::TilePanel::packed(memory.get(), x.k);
    kernel.pack(x.operand(), side, x.rows, x.k, memory.get(), panel.next);
    return panel;
  };
  std::unique_ptr<std::uint16_t, decltype(&std::free)> a_memory(nullptr, &std::free), b_memory(nullptr, &std::free);
  const cpu::TileSession session(kernel);
  kernel.multiply({.m = a.rows,
                   .n = b.rows,
                   .k = a.k,
                   .a = pack(cpu::TileSide::a, a, a_memory),
                   .b = pack(cpu::TileSide::b, b, b_memory),
                   .sums = sums.data(),
                   .sums_stride = stride});
  std::vector<float> result;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.rows; ++j) result.push_back(sums[static_cast<std::size_t>(i * stride + j)]);
  }
  return result;
}

// The 32 codes from `first` on.
Packer::Halves decoded(Kind kind, int first) {
  Packer::Bytes codes = {};
  for (int i = 0; i < 32; ++i) codes[i / 8 * 16 + i % 8] = static_cast<std::uint8_t>(first + i);
  Packer::Pairs pairs, rest;
  kind == Kind::e4m3 ? Packer::decode<Kind::e4m3>(codes, pairs, rest) : Packer::decode<Kind::e5m2>(codes, pairs, rest);
  return reinterpret_cast<Packer::Halves>(pairs);
}

TEST(TilePacking, DecodesEveryCodeExactly) {
  for (const Kind kind : {Kind::e4m3, Kind::e5m2}) {
    for (int first = 0; first < 256; first += 32) {
      const Packer::Halves bits = decoded(kind, first);
      for (int i = 0; i < 32; ++i) {
        const float value = static_cast<float>(BFloat16::from_bits(bits[i]));
        const float expected = decode_fp8(format_of(kind), static_cast<std::uint8_t>(first + i));
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(value)
                                         : std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected))
            << "code " << first + i << " of format " << static_cast<int>(kind) << ": " << value << ", not " << expected;
      }
    }
  }
}

// Both ways of applying a scale: all that an E8M0 can be, with every code. A product below 2^-126 may become anything below that.
TEST(TilePacking, AppliesEveryScaleExactly) {
  for (int code = 0; code < 256; ++code) {
    const float scale = decode_e8m0(static_cast<std::uint8_t>(code));
    for (const Kind kind : {Kind::e4m3, Kind::e5m2}) {
      for (int first = 0; first < 256; first += 32) {
        const Packer::Halves bits = decoded(kind, first);
        const auto check = [&](const Packer::Halves& scaled, const char* way) {
          for (int i = 0; i < 32; ++i) {
            const float expected = decode_fp8(format_of(kind), static_cast<std::uint8_t>(first + i)) * scale;
            const float value = static_cast<float>(BFloat16::from_bits(scaled[i]));
            const bool tiny = std::abs(expected) < 0x1p-126f && std::abs(value) < 0x1p-126f;
            ASSERT_TRUE(tiny || value == expected || (std::isnan(value) && std::isnan(expected)))
                << way << ": code " << first + i << " of format " << static_cast<int>(kind) << " times " << scale << " = "
                << value;
          }
        };
        Packer::Halves scaled = bits;
        Packer::times_any(scaled, scale);
        check(scaled, "times_any");
        if (!Packer::moves_exponent(scale)) continue;
        scaled = bits;
        Packer::times(scaled, scale);
        check(scaled, "times");
      }
    }
  }
}

class TileProducts : public ::testing::TestWithParam<const TileKernel*> {};
INSTANTIATE_TEST_SUITE_P(, TileProducts, ::testing::Values(&kEmulatedTiles, &kEmulatedPairs),
                         [](const auto& info) { return info.param == &kEmulatedTiles ? "Amx" : "Avx512Bf16"; });

// Every kind and layout of both operands, whole tiles and edges of M, N and K, with and without scales.
TEST_P(TileProducts, AgreeWithF64) {
  struct Size {
    std::int64_t m, n, k;
  };
  std::uint32_t subject = 0;
  for (const Size size :
       {Size{16, 16, 32}, Size{32, 32, 64}, Size{1, 1, 1}, Size{33, 47, 95}, Size{48, 17, 130}, Size{15, 64, 31}}) {
    for (const Kind kind_a : kKinds) {
      for (const Kind kind_b : kKinds) {
        subject += 2;
        const Values a = random_values(kind_a, size.m, size.k, subject, has_scales(kind_a) && subject % 4 == 0);
        const Values b = random_values(kind_b, size.n, size.k, subject + 1, has_scales(kind_b) && subject % 3 == 0);
        const std::vector<float> sums = product(*GetParam(), a, b);
        for (std::int64_t i = 0; i < size.m; ++i) {
          for (std::int64_t j = 0; j < size.n; ++j) {
            double expected = 0, magnitude = 0;
            for (std::int64_t k = 0; k < size.k; ++k) {
              expected += a.at(i, k) * b.at(j, k);
              magnitude += std::abs(a.at(i, k) * b.at(j, k));
            }
            ASSERT_NEAR(sums[static_cast<std::size_t>(i * size.n + j)], expected, tile_dot_error_bound(size.k, magnitude))
                << "[" << i << ", " << j << "] of " << size.m << " x " << size.n << " x " << size.k << ", kinds "
                << static_cast<int>(kind_a) << " and " << static_cast<int>(kind_b);
          }
        }
      }
    }
  }
}

// 2^-126 is the smallest magnitude that counts, both of operands and of products. The others are kept, next to each other.
TEST_P(TileProducts, TakeTinyNumbersAsZero) {
  Values a{.kind = Kind::bf16_k_last, .rows = 3, .k = 1, .codes = {}, .halves = {}, .scales = {}}, b = a;
  b.rows = 2;
  for (const float x : {0x1p-126f, 0x1p-127f, 0x1p-64f}) a.halves.push_back(BFloat16(x).bits);
  for (const float x : {1.0f, 0x1p-63f}) b.halves.push_back(BFloat16(x).bits);
  EXPECT_EQ(product(*GetParam(), a, b), (std::vector<float>{0x1p-126f, 0, 0, 0, 0x1p-64f, 0}));
}

// 2^24 + 1 is rounded to 2^24, so the order of sums shows in what is left when 2^24 is taken away.
TEST(TileProduct, SumsInTheOrderOfTheKernel) {
  const auto sum = [](const TileKernel& kernel, std::initializer_list<float> terms) {
    Values a{.kind = Kind::bf16_k_last, .rows = 1, .k = 4, .codes = {}, .halves = {}, .scales = {}}, b = a;
    for (const float x : terms) a.halves.push_back(BFloat16(x).bits);
    b.halves.assign(4, BFloat16(1.0f).bits);
    return product(kernel, a, b).front();
  };
  // The tiles of AMX add the even k and the odd k apart, the others the odd k of each pair before the even k.
  EXPECT_EQ(sum(kEmulatedTiles, {0x1p24f, 0, -0x1p24f, 1}), 1.0f);
  EXPECT_EQ(sum(kEmulatedTiles, {0x1p24f, 0, 1, -0x1p24f}), 0.0f);
  EXPECT_EQ(sum(kEmulatedPairs, {0x1p24f, 0, -0x1p24f, 1}), 0.0f);
  EXPECT_EQ(sum(kEmulatedPairs, {0x1p24f, 0, 1, -0x1p24f}), 1.0f);
}

// The instructions themselves, bit for bit, with numbers of all sizes, infinities, NaN and subnormals. NaN may have any bits.
void expect_the_bits_of(const TileKernel& hardware, const TileKernel& emulated) {
  std::uint32_t subject = 1000;
  const auto compare = [&](const Values& a, const Values& b) {
    const std::vector<float> actual = product(hardware, a, b), expected = product(emulated, a, b);
    int different = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
      if (std::bit_cast<std::uint32_t>(actual[i]) == std::bit_cast<std::uint32_t>(expected[i])) continue;
      if (++different <= 3) {
        ADD_FAILURE() << "element " << i << " of " << a.rows << " x " << b.rows << " x " << a.k << ", kinds "
                      << static_cast<int>(a.kind) << " and " << static_cast<int>(b.kind) << ": " << std::hexfloat << actual[i]
                      << ", emulated " << expected[i];
      }
    }
    EXPECT_EQ(different, 0);
  };
  for (const Kind kind_a : kKinds) {
    for (const Kind kind_b : kKinds) {
      for (const std::int64_t k : {1, 32, 77, 512}) {
        subject += 2;
        compare(random_values(kind_a, 50, k, subject, has_scales(kind_a)), random_values(kind_b, 37, k, subject + 1));
      }
    }
  }
  // Any bits at all, and numbers whose products are near 2^-126.
  for (const std::uint16_t mask : {std::uint16_t{0xFFFF}, std::uint16_t{0x83FF}}) {
    for (int round = 0; round < 20; ++round) {
      subject += 2;
      Values a = random_values(Kind::bf16_k_last, 32, 64, subject), b = random_values(Kind::bf16_k_last, 32, 64, subject + 1);
      const Rng rng(4, RngStream::test, subject);
      for (std::size_t i = 0; i < a.halves.size(); ++i) {
        a.halves[i] = static_cast<std::uint16_t>(rng.word64(2 * i)) & mask;
        b.halves[i] = mask == 0xFFFF ? static_cast<std::uint16_t>(rng.word64(2 * i + 1))
                                     : BFloat16(std::ldexp(1.0f + static_cast<float>(i % 7), static_cast<int>(i % 5) - 2)).bits;
      }
      compare(a, b);
    }
  }
}

TEST(TileProduct, AmxEqualsEmulation) {
  const TileKernel* const hardware = kernels::cpu::find_amx();
  if (hardware == nullptr) GTEST_SKIP() << "this processor has no AMX with BF16, or its system does not allow it";
  expect_the_bits_of(*hardware, kEmulatedTiles);
}

TEST(TileProduct, Avx512Bf16EqualsEmulation) {
  const TileKernel* const hardware = kernels::cpu::find_avx512_bf16();
  if (hardware == nullptr) GTEST_SKIP() << "this processor has no AVX-512 with BF16";
  expect_the_bits_of(*hardware, kEmulatedPairs);
}

}  // namespace
}  // namespace octet

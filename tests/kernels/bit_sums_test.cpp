#include "octet/kernels/bit_sums/bit_sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/op_fixture.h"

namespace octet::kernels {
namespace {

constexpr DType kAllSizes[] = {DType::f64, DType::i64, DType::f32, DType::i32, DType::bf16, DType::f8_e4m3, DType::u8};

struct BitSumsTest : testing::OpTest {
  // A tensor of random bytes.
  Tensor random_bits(DType dtype, std::int64_t count) {
    const Tensor x = zeros(dtype, {count});
    const Rng rng(5, RngStream::test, subject_++);
    for (std::size_t i = 0; i < x.bytes(); ++i) x.as_bytes()[i] = static_cast<std::uint8_t>(rng.word64(i));
    return x;
  }
  std::vector<std::uint64_t> sums_of(const std::vector<Tensor>& tensors) {
    std::vector<std::uint64_t> sums(tensors.size(), 99);
    bit_sums(*stream, {.x = {*device, tensors}, .sums = sums.data()});
    return sums;
  }
  // The formula of the header, byte by byte.
  static std::uint64_t expected(const Tensor& x) {
    std::uint64_t sum = 0;
    const std::size_t size = size_of(x.dtype);
    for (std::size_t i = 0; i < static_cast<std::size_t>(x.elements()); ++i) {
      std::uint64_t bits = 0;
      for (std::size_t b = size; b-- > 0;) bits = bits << 8 | x.as_bytes()[i * size + b];
      sum += bits * (2 * i + 1);
    }
    return sum;
  }

 private:
  std::uint32_t subject_ = 0;
};

TEST_F(BitSumsTest, FollowsTheFormula) {
  std::vector<Tensor> all{zeros(DType::f32, {0})};
  for (const DType dtype : kAllSizes) {
    for (const std::int64_t count : {1, 7, 32768, 100001}) all.push_back(random_bits(dtype, count));
  }
  all.push_back(random_bits(DType::bf16, 1000).slice_rows(3, 990));  // begins between vectors
  const std::vector<std::uint64_t> sums = sums_of(all);
  for (std::size_t t = 0; t < all.size(); ++t)
    EXPECT_EQ(sums[t], expected(all[t])) << name_of(all[t].dtype) << " of " << all[t].elements();
  EXPECT_TRUE(sums_of({}).empty());
}

TEST_F(BitSumsTest, AFlippedBitShows) {
  for (const DType dtype : kAllSizes) {
    const Tensor x = random_bits(dtype, 40000);
    const std::uint64_t before = sums_of({x})[0];
    const std::size_t bits = 8 * x.bytes();
    const auto flip = [&](std::size_t bit) { x.as_bytes()[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8); };
    for (const std::size_t bit : {std::size_t{0}, std::size_t{7}, bits / 2 + 3, bits - 1}) {
      flip(bit);
      EXPECT_NE(sums_of({x})[0], before) << name_of(dtype) << ", bit " << bit;
      flip((bit + bits / 3) % bits);
      EXPECT_NE(sums_of({x})[0], before) << name_of(dtype) << ", bit " << bit << " and another";
      flip((bit + bits / 3) % bits);
      flip(bit);
    }
    EXPECT_EQ(sums_of({x})[0], before);
  }
}

TEST_F(BitSumsTest, ExchangedElementsShow) {
  const Tensor x = random_bits(DType::f32, 1000);
  const std::uint64_t before = sums_of({x})[0];
  std::swap(x.as<float>()[17], x.as<float>()[801]);
  EXPECT_NE(sums_of({x})[0], before);
}

TEST_F(BitSumsTest, SumsDoNotDependOnThreads) {
  const std::vector<Tensor> all = {random_bits(DType::f32, 300000), random_bits(DType::bf16, 70001)};
  expect_same_for_any_threads([&] {
    const Tensor sums = zeros(DType::i64, {2});
    bit_sums(*stream, {.x = {*device, all}, .sums = static_cast<std::uint64_t*>(sums.data)});
    return std::vector<Tensor>{sums};
  });
}

TEST_F(BitSumsTest, MetaCountsTheBytes) {
  meta_stream->reset_work();
  bit_sums(*meta_stream, {.x = {*device, {random_bits(DType::f32, 100), random_bits(DType::u8, 3)}}});
  EXPECT_EQ(meta_stream->work().bytes, 403 + 16);
}

}  // namespace
}  // namespace octet::kernels

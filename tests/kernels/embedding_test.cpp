#include "octet/kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/op_fixture.h"
#include "support/bounds.h"

namespace octet::kernels {
namespace {

using testing::near;
using testing::storage_roundoff;
using testing::values_of;

struct EmbeddingTest : testing::OpTest {
  Tensor tokens(std::int64_t count, std::int64_t vocabulary) {
    const Rng rng(3, RngStream::test, 99);
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < count; ++t) {
      const double u = rng.uniform(static_cast<std::uint64_t>(t));
      ids.push_back(static_cast<std::int32_t>(u * u * static_cast<double>(vocabulary)));  // small ids occur often, some never
    }
    return integers(ids);
  }
};

TEST_F(EmbeddingTest, ForwardCopiesRows) {
  for (const DType dtype : testing::kFloatTypes) {
    const Tensor table = random(dtype, {17, 40}), ids = tokens(200, 17), y = zeros(dtype, {200, 40});
    embedding_forward(*stream, {.tokens = ids, .table = table, .y = y});
    for (std::int64_t t = 0; t < 200; ++t) {
      const std::int64_t id = ids.as<std::int32_t>()[t];
      EXPECT_TRUE(testing::same_bytes(y.slice_rows(t, t + 1), table.slice_rows(id, id + 1))) << "token " << t;
    }
  }
}

TEST_F(EmbeddingTest, BackwardSumsRowsInTheOrderOfTokens) {
  for (const DType dtype : testing::kFloatTypes) {
    for (const DType grad : testing::kFloatTypes) {
      const std::int64_t count = 300, vocabulary = 29, d = 150;
      const Tensor ids = tokens(count, vocabulary), gy = random(dtype, {count, d}), gtable = random(grad, {vocabulary, d});
      std::vector<double> expected = values_of(gtable), size = expected;
      for (double& s : size) s = std::abs(s);
      const auto g = values_of(gy);
      const auto width = static_cast<std::size_t>(d);
      for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t) {
        const auto row = static_cast<std::size_t>(ids.as<std::int32_t>()[t]) * width;
        for (std::size_t i = 0; i < width; ++i) {
          expected[row + i] += g[t * width + i];
          size[row + i] += std::abs(g[t * width + i]);
        }
      }
      const std::vector<double> before = values_of(gtable);
      embedding_backward(*stream, scratch, {.tokens = ids, .gy = gy, .gtable = gtable});
      const double sum_roundoff = dtype == DType::f64 || grad == DType::f64 ? kUnitRoundoffF64 : kUnitRoundoffF32;
      EXPECT_TRUE(near(
          values_of(gtable), expected,
          [&](std::size_t i) {
            return gamma(static_cast<double>(count), sum_roundoff) * size[i] + storage_roundoff(grad) * std::abs(expected[i]);
          },
          d))
          << name_of(dtype) << " gradient " << name_of(grad);
      // The FP32 gradient of one row is summed token by token and then added to the old value, in this order.
      if (dtype == DType::f32 && grad == DType::f32) {
        const std::int64_t id = ids.as<std::int32_t>()[0];
        for (std::int64_t i = 0; i < d; ++i) {
          float sum = 0;
          for (std::int64_t t = 0; t < count; ++t) {
            if (ids.as<std::int32_t>()[t] == id) sum += gy.as<float>()[t * d + i];
          }
          const float start = static_cast<float>(before[static_cast<std::size_t>(id * d + i)]);
          EXPECT_EQ(gtable.as<float>()[id * d + i], start + sum) << "column " << i;
        }
      }
    }
  }
}

TEST_F(EmbeddingTest, BitsDoNotDependOnThreads) {
  const Tensor ids = tokens(500, 40), gy = random(DType::bf16, {500, 200}), start = random(DType::f32, {40, 200});
  expect_same_for_any_threads([&] {
    const Tensor gtable = copy(start);
    embedding_backward(*stream, scratch, {.tokens = ids, .gy = gy, .gtable = gtable});
    return std::vector<Tensor>{gtable};
  });
}

TEST_F(EmbeddingTest, NanStaysInItsRow) {
  const Tensor ids = integers({1, 2, 1}), gtable = zeros(DType::f32, {4, 3});
  const Tensor gy = filled(DType::f32, {3, 3}, [](std::int64_t i) { return i == 4 ? std::nan("") : 1.0; });
  embedding_backward(*stream, scratch, {.tokens = ids, .gy = gy, .gtable = gtable});
  const double nan = std::nan("");
  EXPECT_TRUE(near(gtable, {0, 0, 0, 2, 2, 2, 1, nan, 1, 0, 0, 0}, {}));
}

TEST_F(EmbeddingTest, RefusesTokensOutsideTheVocabulary) {
  const Tensor table = random(DType::f32, {8, 4}), y = zeros(DType::f32, {2, 4});
  expect_refusal([&] { embedding_forward(*stream, {.tokens = integers({7, 8}), .table = table, .y = y}); }, "token 8 at 1");
  expect_refusal(
      [&] {
        embedding_backward(*stream, scratch, {.tokens = integers({-1, 0}), .gy = y, .gtable = table});
      },
      "token -1");
  expect_refusal([&] { embedding_forward(*stream, {.tokens = integers({7}), .table = table, .y = y}); }, "y must be [1, 4]");
}

TEST_F(EmbeddingTest, MetaAllocatesWhatCpuDoes) {
  const Tensor ids = tokens(100, 8), gy = random(DType::f32, {100, 4}), gtable = zeros(DType::f32, {8, 4});
  embedding_backward(*stream, scratch, {.tokens = ids, .gy = gy, .gtable = gtable});
  embedding_backward(*meta_stream, meta_scratch, {.tokens = ids, .gy = gy, .gtable = gtable});
  EXPECT_GE(meta_scratch.high_water(), 800u);
  EXPECT_EQ(meta_scratch.high_water(), scratch.high_water());
}

// Tokens whose rows belong to another part give zeros and no gradient. The sum of all parts equals the whole bit for bit.
TEST_F(EmbeddingTest, PartsOfATableAreTheWhole) {
  for (const DType dtype : testing::kFloatTypes) {
    const Tensor table = random(dtype, {24, 10}), ids = tokens(300, 24), gy = random(dtype, {300, 10});
    const Tensor y = zeros(dtype, {300, 10}), gtable = random(dtype, {24, 10}), cut = copy(gtable);
    embedding_forward(*stream, {.tokens = ids, .table = table, .y = y});
    embedding_backward(*stream, scratch, {.tokens = ids, .gy = gy, .gtable = gtable});
    std::vector<double> sum(3000, 0.0);
    for (std::int64_t first = 0; first < 24; first += 8) {
      const Tensor part = random(dtype, {300, 10});
      embedding_forward(
          *stream, {.tokens = ids, .table = table.slice_rows(first, first + 8), .y = part, .first = first, .vocabulary = 24});
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values_of(part)[i];
      embedding_backward(*stream, scratch,
                         {.tokens = ids, .gy = gy, .gtable = cut.slice_rows(first, first + 8), .first = first, .vocabulary = 24});
    }
    EXPECT_EQ(sum, values_of(y));
    EXPECT_TRUE(testing::same_bytes(cut, gtable));
  }
  const Tensor table = random(DType::f32, {8, 4}), y = zeros(DType::f32, {1, 4});
  expect_refusal(
      [&] { embedding_forward(*stream, {.tokens = integers({24}), .table = table, .y = y, .first = 8, .vocabulary = 24}); },
      "token 24 at 0");
  expect_refusal(
      [&] { embedding_forward(*stream, {.tokens = integers({1}), .table = table, .y = y, .first = 17, .vocabulary = 24}); },
      "rows [17, 25) of a vocabulary of 24");
}

}  // namespace
}  // namespace octet::kernels

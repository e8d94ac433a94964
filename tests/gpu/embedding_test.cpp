#include "octet/kernels/embedding/embedding.h"

#include <cmath>

#include "gpu/twins.h"

namespace octet::kernels {
namespace {

using testing::Twin;

class EmbeddingOnGpu : public testing::TwinTest {
 protected:
  static Twin columns(const Twin& t, std::int64_t begin, std::int64_t end) {
    return {t.cpu.slice_cols(begin, end), t.gpu.slice_cols(begin, end)};
  }
  void forward(const Twin& ids, const Twin& table, const Twin& y) {
    embedding_forward(*cpu_stream, {.tokens = ids.cpu, .table = table.cpu, .y = y.cpu});
    embedding_forward(*gpu_stream, {.tokens = ids.gpu, .table = table.gpu, .y = y.gpu});
  }
  void backward(const Twin& ids, const Twin& gy, const Twin& gtable) {
    embedding_backward(*cpu_stream, cpu_scratch, {.tokens = ids.cpu, .gy = gy.cpu, .gtable = gtable.cpu});
    embedding_backward(*gpu_stream, gpu_scratch, {.tokens = ids.gpu, .gy = gy.gpu, .gtable = gtable.gpu});
  }
};

TEST_F(EmbeddingOnGpu, ForwardCopiesRows) {
  for (const std::int64_t d : {1, 100, 136, 4096}) {
    const Twin ids = tokens(300, 50), table = random(DType::bf16, {50, d});
    const Twin y = poisoned(DType::bf16, {300, d}), wide = poisoned(DType::bf16, {300, d + 16});
    forward(ids, table, y);
    expect_same_bytes(y, concat("D ", d));
    for (const std::int64_t offset : {3, 8}) {
      forward(ids, table, columns(wide, offset, offset + d));
      expect_same_bytes(wide, concat("D ", d, " offset ", offset));
    }
  }
}

TEST_F(EmbeddingOnGpu, ATokenOutsideTheVocabularyGivesNan) {
  const Twin ids = tokens(3, 4), table = random(DType::bf16, {4, 64}), y = poisoned(DType::bf16, {3, 64});
  ids.cpu.as<std::int32_t>()[0] = 4;
  ids.cpu.as<std::int32_t>()[2] = -1;
  upload(ids);
  embedding_forward(*gpu_stream, {.tokens = ids.gpu, .table = table.gpu, .y = y.gpu});
  const auto values = testing::values_of(fetch(y.gpu).view());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i / 64 != 1) << i;
}

// Both sides sum each row in FP32 in the order of t and round once, so they have the same bits for any tokens.
TEST_F(EmbeddingOnGpu, BackwardHasTheBitsOfTheCpu) {
  struct Case {
    std::int64_t tokens, vocabulary, width;
  };
  for (const Case& c : {Case{1, 1, 1}, Case{31, 2, 33}, Case{500, 40, 64}, Case{3000, 256, 200}, Case{2000, 1, 72},
                        Case{2048, 2000, 1032}, Case{4096, 128256, 64}, Case{20000, 7, 24}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Twin ids = tokens(c.tokens, c.vocabulary), gy = random(DType::bf16, {c.tokens, c.width});
      const Twin gtable = zeros(dtype, {c.vocabulary, c.width});
      const std::string what = concat(c.tokens, " tokens of ", c.vocabulary, " width ", c.width, " ", name_of(dtype));
      backward(ids, gy, gtable);
      backward(ids, gy, gtable);
      expect_same_bytes(gtable, what);
    }
  }
}

TEST_F(EmbeddingOnGpu, BackwardTakesRowsWithGaps) {
  const Twin ids = tokens(700, 30), gy = random(DType::bf16, {700, 80}), gtable = random(DType::f32, {30, 80});
  for (const std::int64_t offset : {8, 3}) {
    backward(ids, columns(gy, offset, offset + 64), columns(gtable, offset, offset + 64));
    expect_same_bytes(gtable, concat("offset ", offset));
  }
}

TEST_F(EmbeddingOnGpu, NanStaysInItsRow) {
  const Twin ids = tokens(100, 10), gtable = zeros(DType::f32, {10, 40});
  const Twin gy = filled(DType::bf16, {100, 40}, [](std::int64_t i) { return i == 1234 ? std::nan("") : 1.0; });
  backward(ids, gy, gtable);
  expect_near(gtable, {}, "gtable");
}

TEST_F(EmbeddingOnGpu, PartsHaveTheBitsOfTheCpu) {
  for (const std::int64_t rows : {8, 13, 64}) {
    for (const std::int64_t first : {std::int64_t{0}, rows, 3 * rows}) {
      const std::int64_t vocabulary = 4 * rows;
      const Twin ids = tokens(3000, vocabulary), table = random(DType::bf16, {rows, 72}), y = poisoned(DType::bf16, {3000, 72});
      const Twin gy = random(DType::bf16, {3000, 72}), gtable = zeros(DType::f32, {rows, 72});
      const auto both = [&](Stream& stream, Arena& scratch, Tensor Twin::*side) {
        embedding_forward(stream,
                          {.tokens = ids.*side, .table = table.*side, .y = y.*side, .first = first, .vocabulary = vocabulary});
        embedding_backward(
            stream, scratch,
            {.tokens = ids.*side, .gy = gy.*side, .gtable = gtable.*side, .first = first, .vocabulary = vocabulary});
      };
      both(*cpu_stream, cpu_scratch, &Twin::cpu);
      both(*gpu_stream, gpu_scratch, &Twin::gpu);
      expect_same_bytes(y, concat(rows, " rows from ", first));
      expect_same_bytes(gtable, concat(rows, " rows from ", first));
    }
  }
}

}  // namespace
}  // namespace octet::kernels

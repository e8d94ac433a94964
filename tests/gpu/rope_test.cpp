#include "octet/kernels/rope/rope.h"

#include <vector>

#include "gpu/fused.h"

namespace octet::kernels {
namespace {

using testing::Twin;

struct RopeGpuTest : testing::FusedTest {
  Twin table(std::int64_t head_dim, std::int64_t count) {
    const std::vector<float> values = rope_table(head_dim, 10000.0, {}, count);
    return filled(DType::f32, {count, head_dim}, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  }
};

struct Shape3 {
  std::int64_t rows, head_dim, heads, kept, rotary_dim = 0;
};
constexpr Shape3 kShapes[] = {{1, 16, 1, 0},      {5, 2, 3, 1},       {37, 10, 3, 2},       {33, 24, 2, 1},    {130, 64, 4, 2},
                              {67, 80, 5, 1},     {129, 96, 3, 2},    {200, 128, 6, 2},     {70, 256, 2, 1},   {300, 128, 10, 2},
                              {90, 64, 3, 2},     {40, 16, 3, 3},     {140, 32, 7, 0},      {150, 128, 11, 4}, {67, 64, 4, 2, 16},
                              {40, 80, 3, 1, 20}, {33, 20, 4, 2, 16}, {129, 128, 3, 2, 32}, {5, 10, 3, 1, 2}};

// The code fixes every rounding of products and sums, so both sides have the same bits.
TEST_F(RopeGpuTest, RotatesToTheSameBytes) {
  for (const Shape3& s : kShapes) {
    for (const auto direction : {Rope::Direction::forward, Rope::Direction::backward}) {
      for (const std::int64_t gap : {0, 3, 8}) {
        const Twin x = random(DType::bf16, {s.rows, (s.heads + s.kept) * s.head_dim + gap});
        const Twin cos_sin = table(s.rotary_dim > 0 ? s.rotary_dim : s.head_dim, 512), positions = tokens(s.rows, 512);
        const std::int64_t cols = (s.heads + s.kept) * s.head_dim;
        const auto run = [&](Stream& stream, Arena& scratch, auto side) {
          rope(stream, scratch,
               {.x = side(x).slice_cols(0, cols),
                .rotated = s.heads * s.head_dim,
                .head_dim = s.head_dim,
                .rotary_dim = s.rotary_dim,
                .table = side(cos_sin),
                .positions = side(positions),
                .direction = direction});
        };
        run(*cpu_stream, cpu_scratch, [](const Twin& t) { return t.cpu; });
        run(*gpu_stream, gpu_scratch, [](const Twin& t) { return t.gpu; });
        expect_same_bytes(x, concat("head_dim ", s.head_dim, " rotary ", s.rotary_dim, " gap ", gap));
      }
    }
  }
}

TEST_F(RopeGpuTest, WritesTheCodesOfItsResult) {
  for (const Shape3& s : kShapes) {
    const std::int64_t cols = (s.heads + s.kept) * s.head_dim;
    const Twin x = random(DType::bf16, {s.rows, cols}, 20.0);
    const Twin cos_sin = table(s.rotary_dim > 0 ? s.rotary_dim : s.head_dim, 512), positions = tokens(s.rows, 512);
    const auto run = [&](const Tensor& tensor, const QuantizeEpilogue& codes) {
      rope(*gpu_stream, gpu_scratch,
           {.x = tensor,
            .rotated = s.heads * s.head_dim,
            .head_dim = s.head_dim,
            .rotary_dim = s.rotary_dim,
            .table = cos_sin.gpu,
            .positions = positions.gpu,
            .direction = Rope::Direction::backward,
            .codes = codes});
    };
    expect_same_codes(
        s.rows, cols,
        [&](const Tensor& y) {
          gpu_stream->copy(y.data, x.gpu.data, x.gpu.bytes());
          run(y, {});
        },
        [&](const QuantizeEpilogue& codes) { run(x.gpu, codes); }, concat("head_dim ", s.head_dim, " rotary ", s.rotary_dim));
    expect_same_bytes(x, "x is only read");
  }
}

}  // namespace
}  // namespace octet::kernels

#include "octet/kernels/attention/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/attention_fixture.h"

namespace octet {
namespace {

using Sizes = AttentionSizes;

TEST_P(AttentionTest, MetaTakesTheSameScratchAndCountsUnmaskedWork) {
  const auto meta = make_device(DeviceKind::meta);
  const auto meta_stream = meta->make_stream();
  for (const DType dtype : {DType::bf16, DType::f64}) {
    for (const Sizes& sizes :
         {Sizes{2, 130, 130, 4, 2, 24}, Sizes{1, 20, 300, 8, 1, 16}, Sizes{2, 130, 130, 4, 2, 24, 50},
          Sizes{1, 20, 300, 8, 1, 16, 290}, Sizes{1, 20, 300, 8, 1, 16, 50}, Sizes{1, 70, 30, 8, 1, 16, 0, Visible::all}}) {
      Operands x = operands(dtype, sizes);
      Arena here(*device, MemoryCategory::workspace, std::size_t{64} << 20), there(*meta, MemoryCategory::workspace, 0);
      stream->reset_work();
      attention_forward(*stream, here, x.forward());
      EXPECT_EQ(here.used(), 0u);
      const std::size_t forward_bytes = here.high_water();
      attention_backward(*stream, here, x.backward());
      // Checks that attention writes nothing beyond the scratch memory that it asked for.
      Arena marked(*device, MemoryCategory::workspace, std::size_t{16} << 20);
      auto* memory = static_cast<std::uint8_t*>(marked.allocate(marked.capacity()));
      const auto untouched_from = [&](std::size_t first) {
        return std::all_of(memory + first, memory + marked.capacity(), [](std::uint8_t byte) { return byte == 0xAB; });
      };
      std::memset(memory, 0xAB, marked.capacity());
      marked.release_to(0);
      attention_forward(*stream, marked, x.forward());
      EXPECT_TRUE(untouched_from(forward_bytes));
      attention_backward(*stream, marked, x.backward());
      EXPECT_TRUE(untouched_from(here.high_water()));
      const Buffer nowhere = meta->allocate(std::size_t{1} << 20, MemoryCategory::workspace);
      for (Tensor* t : {&x.q, &x.k, &x.v, &x.o, &x.lse, &x.go, &x.gq, &x.gk, &x.gv}) t->data = nowhere.data();
      meta_stream->reset_work();
      attention_forward(*meta_stream, there, x.forward());
      EXPECT_EQ(there.high_water(), forward_bytes);
      double pairs = 0;
      for (std::int64_t i = 0; i < sizes.sq; ++i) {
        const std::int64_t seen = sizes.visible == Visible::all ? sizes.sk : i + 1 + sizes.sk - sizes.sq;
        pairs += static_cast<double>(sizes.window > 0 ? std::min(seen, sizes.window) : seen);
      }
      const double products = pairs * static_cast<double>(sizes.batch * sizes.heads * sizes.dim);
      EXPECT_EQ(meta_stream->work().flops, 4 * products);
      attention_backward(*meta_stream, there, x.backward());
      EXPECT_EQ(there.high_water(), here.high_water());
      EXPECT_EQ(meta_stream->work().flops, 14 * products);
      EXPECT_EQ(2 * meta_stream->work().bytes, stream->work().bytes);  // the CPU has run every operation twice
    }
  }
}

// Doubling the sequence at most doubles the scratch memory.
TEST_P(AttentionTest, MemoryIsLinearInTheSequence) {
  const auto meta = make_device(DeviceKind::meta);
  const auto meta_stream = meta->make_stream();
  const Buffer nowhere = meta->allocate(1, MemoryCategory::workspace);
  const auto bytes = [&](std::int64_t tokens) {
    const auto on_meta = [&](DType dtype, Shape shape) { return Tensor(nowhere.data(), dtype, shape); };
    const Tensor q = on_meta(DType::bf16, {tokens, 8 * 64}), k = on_meta(DType::bf16, {tokens, 2 * 64});
    const Tensor lse = on_meta(DType::f32, {8, tokens});
    Arena arena(*meta, MemoryCategory::workspace, 0);
    kernels::attention_backward(*meta_stream, arena,
                                {.shape = {.batch = 1, .heads = 8, .kv_heads = 2, .head_dim = 64, .scale = 0.125},
                                 .q = q,
                                 .k = k,
                                 .v = k,
                                 .o = q,
                                 .lse = lse,
                                 .go = q,
                                 .gq = q,
                                 .gk = k,
                                 .gv = k});
    return arena.high_water();
  };
  EXPECT_LE(bytes(1 << 16), 2 * bytes(1 << 15));
}

}  // namespace
}  // namespace octet

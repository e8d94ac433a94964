// A fixture for the tests of attention on the CPU, with operands.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/op_fixture.h"
#include "octet/kernels/attention/attention.h"
#include "support/emulated_tiles.h"

namespace octet {

using kernels::AttentionBackward;
using kernels::AttentionForward;
using kernels::AttentionShape;
using kernels::Visible;

struct AttentionSizes {
  std::int64_t batch, sq, sk, heads, kv_heads, dim, window = 0;
  Visible visible = Visible::causal;
  std::string text() const {
    return concat("batch ", batch, " tokens ", sq, "/", sk, " heads ", heads, "/", kv_heads, " dim ", dim, " window ", window,
                  visible == Visible::all ? " all" : "");
  }
};

class AttentionOps : public testing::OpTest {
 protected:
  struct Operands {
    AttentionShape shape;
    Tensor q, k, v, first_keys, o, lse, go, gq, gk, gv;
    AttentionForward forward() const {
      return {.shape = shape, .q = q, .k = k, .v = v, .first_keys = first_keys, .o = o, .lse = lse};
    }
    AttentionBackward backward() const {
      return {.shape = shape,
              .q = q,
              .k = k,
              .v = v,
              .first_keys = first_keys,
              .o = o,
              .lse = lse,
              .go = go,
              .gq = gq,
              .gk = gk,
              .gv = gv};
    }
  };

  Operands operands(DType dtype, const AttentionSizes& s) {
    Operands x;
    x.shape = {.batch = s.batch,
               .heads = s.heads,
               .kv_heads = s.kv_heads,
               .head_dim = s.dim,
               .scale = 1 / std::sqrt(static_cast<double>(s.dim)),
               .window = s.window,
               .visible = s.visible};
    const Shape q{s.batch * s.sq, s.heads * s.dim}, k{s.batch * s.sk, s.kv_heads * s.dim};
    x.q = random(dtype, q);
    x.k = random(dtype, k);
    x.v = random(dtype, k);
    x.go = random(dtype, q);
    x.o = zeros(dtype, q);
    x.lse = zeros(dtype == DType::f64 ? DType::f64 : DType::f32, {s.batch * s.heads, s.sq});
    x.gq = zeros(dtype, q);
    x.gk = zeros(dtype, k);
    x.gv = zeros(dtype, k);
    return x;
  }

  // Makes documents that begin at random keys. Some begin after the query's own key, so that the query sees nothing.
  Tensor random_documents(const AttentionSizes& s) {
    const Tensor first_keys = zeros(DType::i32, {s.batch * s.sq});
    const Tensor choices = random(DType::f64, {s.batch * s.sq});
    for (std::int64_t b = 0; b < s.batch; ++b) {
      std::int32_t first = 0;
      for (std::int64_t i = 0; i < s.sq; ++i) {
        const double choice = choices.as<double>()[b * s.sq + i];
        const auto own = static_cast<std::int32_t>(std::max<std::int64_t>(i + s.sk - s.sq, 0));
        if (choice > 1.3) first = own;                  // a document begins here
        if (choice < -1.5 && own > 0) first = own / 2;  // some other, earlier beginning
        first_keys.as<std::int32_t>()[b * s.sq + i] = choice > 2 ? own + 1 : first;
      }
    }
    return first_keys;
  }

  void run(const Operands& x) {
    attention_forward(*stream, scratch, x.forward());
    attention_backward(*stream, scratch, x.backward());
  }
};

// BLAS multiplies, or for BF16 the emulated tiles as on a processor with tiles.
class AttentionTest : public AttentionOps, public ::testing::WithParamInterface<const kernels::cpu::TileKernel*> {
 private:
  testing::UseTileKernel kernel_{GetParam()};
};

}  // namespace octet

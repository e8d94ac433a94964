// A low-rank adapter (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021) of a linear whose weight is frozen:
//   y += s (x Aᵀ) Bᵀ,   A [r, in], B [out, r]
// A fused linear has an A and a B for each of its modules that is adapted. All n of its A lie in one parameter [n r, in], so that
// one GEMM reads x for all of them, and all of its B in another one, in the order of the modules. A starts as a normal
// distribution with the variance of PEFT's uniform one, B at zero.
//
// GEMMs read values: BF16 with FP32 accumulation, or the activations' dtype if the recipe computes in another one. On the
// tensor axis, A is cut like the columns of the weight and B like its rows. The output of an adapter, added to a partial sum
// (nn/sequence.h), is itself a partial sum, so nothing more is exchanged. The gradient of a factor that all ranks of the axis
// hold is summed once a step.
//
// In training, each element of x is dropped with probability p, and the remaining ones are multiplied by 1 / (1 - p):
//   y += s / (1 - p) ((m x) Aᵀ) Bᵀ,   m[t, f] in {0, 1}
// Backward makes the masks again instead of reading stored ones. They are the same on every mesh (kernels/dropout).
//
// Every expert of a mixture has its own adapters. The adapters of a linear of all experts compute together, in grouped products
// of the rows of scope.groups (nn/product.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/rng.h"
#include "octet/kernels/dropout/dropout.h"
#include "octet/nn/quantizer.h"
#include "octet/nn/scope.h"
#include "octet/parallel/parameter.h"

namespace octet::nn {

// Which elements of an adapter's input are dropped in training.
struct InputDropout {
  double rate = 0;         // p, in [0, 1)
  std::uint64_t seed = 0;  // of the masks
};

class Adapter {
 public:
  struct Options {
    std::vector<std::size_t> parts;  // the numbers of the adapted modules, ascending
    std::int64_t rank = 0;
    double scale = 1.0;  // s
    InputDropout dropout = {};
  };
  // `linear` is the name of the linear with this weight [out, in], in which `part_count` modules are fused.
  Adapter(const std::string& linear, const parallel::Parameter& weight, std::size_t part_count, const Options& options,
          parallel::ParameterStore& store);

  const Options& options() const { return options_; }
  parallel::Parameter& a() const { return *a_; }
  parallel::Parameter& b() const { return *b_; }
  // Where an adapted module lies: its rows [begin, end) of the whole weight, and the first row of the whole B for them; its first
  // column in the reduced input [T, n r], and its `count` rows, which begin at row `rows` of this rank's W and at row
  // `rows_of_b` of this rank's B.
  struct Part {
    std::int64_t begin = 0, end = 0, begin_of_b = 0;
    std::int64_t columns = 0, rows = 0, rows_of_b = 0, count = 0;
  };
  const std::vector<Part>& parts() const { return parts_; }
  // The number, within the whole weight, of the first column that this rank has.
  std::int64_t first_feature() const { return first_feature_; }

 private:
  Options options_;
  std::vector<Part> parts_;
  std::int64_t first_feature_ = 0;
  parallel::Parameter *a_, *b_;
};

// The products of a linear's adapter, or of the adapters of a linear of many experts.
class AdapterProducts {
 public:
  // The adapters must outlive this object. Adapters of experts are in the order of scope.groups, starting with expert
  // `first_expert`, and adapt the same parts. `name` is the name of the linear, or of the linear of the first expert of all
  // ranks. It keys the masks.
  AdapterProducts(std::vector<const Adapter*> adapters, const std::string& name, std::int64_t first_expert = 0)
      : adapters_(std::move(adapters)), subject_(name_id(name)), first_expert_(first_expert) {}

  // Below, s is multiplied by 1 / (1 - p), and x by the mask, if scope.token_numbers says that inputs are dropped.
  //
  // Returns s x Aᵀ [T, n r], in `arena`.
  Tensor reduce(const Scope& scope, Arena& arena, const Tensor& x) const;
  // y += reduced Bᵀ.
  void fprop(const Scope& scope, const Tensor& reduced, const Tensor& y) const;

  // Returns s g B [T, n r], in `arena`.
  Tensor reduce_gradient(const Scope& scope, Arena& arena, const Tensor& g) const;
  // gx += reduced A, times the mask of x.
  void dgrad(const Scope& scope, const Tensor& reduced, const Tensor& gx) const;
  // Overwrites the gradients of A and B if scope.overwrites says so, otherwise adds to them. `low_rank` of G and X are the
  // results of reduce_gradient() and reduce() on their values.
  void wgrad(const Scope& scope, const Operand& g, const Operand& x) const;

 private:
  const Adapter& first() const { return *adapters_.front(); }
  bool drops(const Scope& scope) const { return scope.token_numbers && first().options().dropout.rate > 0; }
  float scale(const Scope& scope) const;
  kernels::Dropout dropout(const Scope& scope) const;
  // Returns x times its mask, in the scratch, or x itself if nothing is dropped.
  Tensor masked(const Scope& scope, const Tensor& x) const;
  Tensor columns_of(const Adapter::Part& part, const Tensor& reduced) const;

  // Returns a list with the result of `of` for each adapter.
  template <class Of>
  auto each(Of of) const {
    std::vector<decltype(of(first()))> result;
    for (const Adapter* adapter : adapters_) result.push_back(of(*adapter));
    return result;
  }

  std::vector<const Adapter*> adapters_;
  std::uint32_t subject_;  // of random numbers
  std::int64_t first_expert_;
};

}  // namespace octet::nn

#include "octet/nn/adapter.h"

#include <cmath>

#include "octet/nn/product.h"

namespace octet::nn {

using kernels::GemmOperand;
using kernels::transposed_values;
using parallel::Cut;
using parallel::CutRule;

Adapter::Adapter(const std::string& linear, const parallel::Parameter& weight, std::size_t part_count, const Options& o,
                 parallel::ParameterStore& store)
    : options_(o) {
  const CutRule& of_weight = weight.spec.cut;
  const Shape& whole = weight.cut.global();
  const bool is_fused = part_count > 1;
  CutRule cut_of_part = of_weight.along == Cut::rows ? of_weight : CutRule{};
  if (is_fused) cut_of_part.part_rows.clear();
  CutRule cut_of_b = cut_of_part;
  Part next;
  for (std::size_t i = 0; i < part_count; ++i) {
    const std::int64_t rows = is_fused ? of_weight.part_rows[i] : whole[0];
    next.count = parallel::TensorCut({rows, o.rank}, cut_of_part, store.place()).local()[0];
    next.end = next.begin + rows;
    if (parts_.size() < o.parts.size() && o.parts[parts_.size()] == i) {
      parts_.push_back(next);
      next.begin_of_b += rows;
      next.columns += o.rank;
      next.rows_of_b += next.count;
      if (is_fused && of_weight.along == Cut::rows) cut_of_b.part_rows.push_back(rows);
    }
    next.begin = next.end;
    next.rows += next.count;
  }
  a_ = &store.add({.name = linear + ".lora_A.weight",
                   .shape = {static_cast<std::int64_t>(o.parts.size()) * o.rank, whole[1]},
                   .cut = {.along = of_weight.along == Cut::columns ? Cut::columns : Cut::none},
                   .expert = weight.spec.expert,
                   .init_std = 1.0 / std::sqrt(3.0 * static_cast<double>(whole[1])),
                   .grad_from_product = true});
  b_ = &store.add({.name = linear + ".lora_B.weight",
                   .shape = {next.begin_of_b, o.rank},
                   .cut = cut_of_b,
                   .expert = weight.spec.expert,
                   .init_std = 0.0,
                   .grad_from_product = true});
  if (of_weight.along == Cut::columns) first_feature_ = store.place().rank * a_->cut.local()[1];
}

namespace {

Tensor rows_of(const Adapter::Part& part, const Tensor& b) { return b.slice_rows(part.rows_of_b, part.rows_of_b + part.count); }
Tensor columns_of_module(const Adapter::Part& part, const Tensor& y) { return y.slice_cols(part.rows, part.rows + part.count); }

}  // namespace

Tensor AdapterProducts::columns_of(const Adapter::Part& part, const Tensor& reduced) const {
  return reduced.slice_cols(part.columns, part.columns + first().options().rank);
}

// The products multiply by 1 / (1 - p), so that masked values need no rounding.
float AdapterProducts::scale(const Scope& scope) const {
  const Adapter::Options& options = first().options();
  return static_cast<float>(drops(scope) ? options.scale / (1.0 - options.dropout.rate) : options.scale);
}

kernels::Dropout AdapterProducts::dropout(const Scope& scope) const {
  const InputDropout& options = first().options().dropout;
  return {.rate = options.rate,
          .seed = options.seed,
          .subject = subject_,
          .step = scope.step,
          .tokens = scope.token_numbers,
          .first_feature = first().first_feature(),
          .groups = scope.groups ? *scope.groups : RowGroups{},
          .first_expert = first_expert_};
}

Tensor AdapterProducts::masked(const Scope& scope, const Tensor& x) const {
  if (!drops(scope)) return x;
  kernels::Dropout op = dropout(scope);
  op.x = x;
  op.y = allocate(scope.scratch, x.dtype, x.shape);
  kernels::dropout(scope.stream, op);
  return op.y;
}

Tensor AdapterProducts::reduce(const Scope& scope, Arena& arena, const Tensor& x) const {
  const Tensor reduced = allocate(arena, x.dtype, {x.rows(), first().a().value.rows()});
  const ArenaScope temporaries(scope.scratch);
  multiply(scope, AlongRows{.a = {.values = masked(scope, x)},
                            .b = each([](const Adapter& adapter) -> GemmOperand { return {.values = adapter.a().value}; }),
                            .d = reduced,
                            .factor = scale(scope)});
  return reduced;
}

void AdapterProducts::fprop(const Scope& scope, const Tensor& reduced, const Tensor& y) const {
  for (const Adapter::Part& part : first().parts()) {
    const Tensor rows = columns_of_module(part, y);
    multiply(
        scope,
        AlongRows{.a = {.values = columns_of(part, reduced)},
                  .b = each([&](const Adapter& adapter) -> GemmOperand { return {.values = rows_of(part, adapter.b().value)}; }),
                  .c = rows,
                  .d = rows});
  }
}

Tensor AdapterProducts::reduce_gradient(const Scope& scope, Arena& arena, const Tensor& g) const {
  const Tensor reduced = allocate(arena, g.dtype, {g.rows(), first().a().value.rows()});
  for (const Adapter::Part& part : first().parts()) {
    multiply(scope,
             AlongRows{.a = {.values = columns_of_module(part, g)},
                       .b = each([&](const Adapter& adapter) { return transposed_values(rows_of(part, adapter.b().value)); }),
                       .d = columns_of(part, reduced),
                       .factor = scale(scope)});
  }
  return reduced;
}

void AdapterProducts::dgrad(const Scope& scope, const Tensor& reduced, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  const bool drops_input = drops(scope);
  const Tensor product = drops_input ? allocate(scope.scratch, gx.dtype, gx.shape) : gx;
  multiply(scope, AlongRows{.a = {.values = reduced},
                            .b = each([](const Adapter& adapter) { return transposed_values(adapter.a().value); }),
                            .c = drops_input ? Tensor{} : gx,
                            .d = product});
  if (!drops_input) return;
  kernels::Dropout op = dropout(scope);
  op.x = product;
  op.y = gx;
  op.adds = true;
  kernels::dropout(scope.stream, op);
}

void AdapterProducts::wgrad(const Scope& scope, const Operand& g, const Operand& x) const {
  {
    const ArenaScope temporaries(scope.scratch);
    multiply(scope, AlongTokens{.a = transposed_values(g.low_rank),
                                .b = transposed_values(masked(scope, x.values)),
                                .d = each([](const Adapter& adapter) { return adapter.a().grad; }),
                                .accumulate = !first().a().overwrites_grad(scope.overwrites)});
  }
  for (const Adapter::Part& part : first().parts()) {
    multiply(scope, AlongTokens{.a = transposed_values(columns_of_module(part, g.values)),
                                .b = transposed_values(columns_of(part, x.low_rank)),
                                .d = each([&](const Adapter& adapter) { return rows_of(part, adapter.b().grad); }),
                                .accumulate = !first().b().overwrites_grad(scope.overwrites)});
  }
}

}  // namespace octet::nn

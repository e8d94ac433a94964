#include "octet/nn/adapter.h"

#include <cmath>

#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::nn {

using kernels::transposed_values;
using parallel::Cut;
using parallel::CutRule;

namespace {

// The numbers of rows of a linear's modules, of the whole weight.
std::vector<std::int64_t> rows_of_parts(const Adapter::Options& o) {
  return o.part_count > 1 ? o.weight->spec.cut.part_rows : std::vector<std::int64_t>{o.weight->cut.global()[0]};
}

CutRule cut_of_b(const Adapter::Options& o) {
  const CutRule& of_weight = o.weight->spec.cut;
  if (of_weight.along != Cut::rows) return {};
  CutRule cut = of_weight;
  if (o.part_count == 1) return cut;
  cut.part_rows.clear();
  for (const std::size_t part : o.parts) cut.part_rows.push_back(of_weight.part_rows[part]);
  return cut;
}

std::int64_t rows_of_b(const Adapter::Options& o) {
  std::int64_t rows = 0;
  for (const std::size_t part : o.parts) rows += rows_of_parts(o)[part];
  return rows;
}

}  // namespace

Adapter::Adapter(const Options& o, parallel::ParameterStore& store)
    : options_(o),
      a_(&store.add({.name = o.linear + ".lora_A.weight",
                     .shape = {static_cast<std::int64_t>(o.parts.size()) * o.rank, o.weight->cut.global()[1]},
                     .cut = {.along = o.weight->spec.cut.along == Cut::columns ? Cut::columns : Cut::none},
                     .expert = o.weight->spec.expert,
                     .init_std = 1.0 / std::sqrt(3.0 * static_cast<double>(o.weight->cut.global()[1])),
                     .grad_from_product = true})),
      b_(&store.add({.name = o.linear + ".lora_B.weight",
                     .shape = {rows_of_b(o), o.rank},
                     .cut = cut_of_b(o),
                     .expert = o.weight->spec.expert,
                     .init_std = 0.0,
                     .grad_from_product = true})) {
  const CutRule& of_weight = o.weight->spec.cut;
  if (of_weight.along == Cut::columns) first_feature_ = store.place().rank * a_->cut.local()[1];
  const std::vector<std::int64_t> all = rows_of_parts(o);
  Part next;
  std::size_t adapted = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    CutRule cut = of_weight;
    if (o.part_count > 1) cut.part_rows.clear();
    if (cut.along == Cut::columns) cut = {};
    next.count = parallel::TensorCut({all[i], o.rank}, cut, store.place()).local()[0];
    if (adapted < o.parts.size() && o.parts[adapted] == i) {
      ++adapted;
      parts_.push_back(next);
      next.columns += o.rank;
      next.rows_of_b += next.count;
    }
    next.rows += next.count;
  }
}

Adapter::Rows Adapter::rows(std::size_t adapted) const {
  const std::vector<std::int64_t> all = rows_of_parts(options_);
  Rows result;
  for (std::size_t i = 0; i < options_.parts[adapted]; ++i) result.begin += all[i];
  result.end = result.begin + all[options_.parts[adapted]];
  for (std::size_t i = 0; i < adapted; ++i) result.of_b += all[options_.parts[i]];
  return result;
}

namespace {

Tensor rows_of(const Adapter::Part& part, const Tensor& b) { return b.slice_rows(part.rows_of_b, part.rows_of_b + part.count); }
Tensor columns_of_module(const Adapter::Part& part, const Tensor& y) { return y.slice_cols(part.rows, part.rows + part.count); }

}  // namespace

Tensor AdapterProducts::columns_of(const Adapter::Part& part, const Tensor& reduced) const {
  return reduced.slice_cols(part.columns, part.columns + first().options().rank);
}

void AdapterProducts::multiply(const Scope& scope, const AlongRows& op) const {
  const auto factor = static_cast<float>(op.factor);
  if (!scope.groups) {
    return kernels::gemm(
        scope.stream, scope.scratch,
        {.a = {.values = op.x}, .b = op.matrix(first()), .c = op.adds ? op.d : Tensor{}, .d = op.d, .factor = factor});
  }
  kernels::GroupedGemmM product{
      .groups = *scope.groups, .a = {.values = op.x}, .d = op.d, .accumulate = op.adds, .factor = factor};
  for (const Adapter* adapter : adapters_) product.b.push_back(op.matrix(*adapter));
  kernels::grouped_gemm(scope.stream, scope.scratch, product);
}

void AdapterProducts::multiply(const Scope& scope, const Tensor& left, const Tensor& right, const GradientOf& gradient_of,
                               bool adds) const {
  const kernels::GemmOperand a = transposed_values(left), b = transposed_values(right);
  if (!scope.groups) {
    const Tensor d = gradient_of(first());
    return kernels::gemm(scope.stream, scope.scratch, {.a = a, .b = b, .c = adds ? d : Tensor{}, .d = d});
  }
  kernels::GroupedGemmK product{.groups = *scope.groups, .a = a, .b = b, .accumulate = adds};
  for (const Adapter* adapter : adapters_) product.d.push_back(gradient_of(*adapter));
  kernels::grouped_gemm(scope.stream, scope.scratch, product);
}

// The products multiply by 1 / (1 - p), so that masked values need no rounding.
double AdapterProducts::scale(const Scope& scope) const {
  const Adapter::Options& options = first().options();
  return drops(scope) ? options.scale / (1.0 - options.dropout.rate) : options.scale;
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
  multiply(scope, {.x = masked(scope, x),
                   .matrix = [](const Adapter& adapter) -> kernels::GemmOperand { return {.values = adapter.a().value}; },
                   .d = reduced,
                   .factor = scale(scope)});
  return reduced;
}

void AdapterProducts::fprop(const Scope& scope, const Tensor& reduced, const Tensor& y) const {
  for (const Adapter::Part& part : first().parts()) {
    multiply(scope, {.x = columns_of(part, reduced),
                     .matrix = [&](const Adapter& adapter) -> kernels::GemmOperand {
                       return {.values = rows_of(part, adapter.b().value)};
                     },
                     .d = columns_of_module(part, y),
                     .adds = true});
  }
}

Tensor AdapterProducts::reduce_gradient(const Scope& scope, Arena& arena, const Tensor& g) const {
  const Tensor reduced = allocate(arena, g.dtype, {g.rows(), first().a().value.rows()});
  for (const Adapter::Part& part : first().parts()) {
    multiply(scope, {.x = columns_of_module(part, g),
                     .matrix = [&](const Adapter& adapter) { return transposed_values(rows_of(part, adapter.b().value)); },
                     .d = columns_of(part, reduced),
                     .factor = scale(scope)});
  }
  return reduced;
}

void AdapterProducts::dgrad(const Scope& scope, const Tensor& reduced, const Tensor& gx) const {
  const ArenaScope temporaries(scope.scratch);
  const bool drops_input = drops(scope);
  const Tensor product = drops_input ? allocate(scope.scratch, gx.dtype, gx.shape) : gx;
  multiply(scope, {.x = reduced,
                   .matrix = [](const Adapter& adapter) { return transposed_values(adapter.a().value); },
                   .d = product,
                   .adds = !drops_input});
  if (!drops_input) return;
  kernels::Dropout op = dropout(scope);
  op.x = product;
  op.y = gx;
  op.adds = true;
  kernels::dropout(scope.stream, op);
}

void AdapterProducts::wgrad(const Scope& scope, const Operand& g, const Operand& x) const {
  const bool adds_to_a = !first().a().grad_begins(scope.begins), adds_to_b = !first().b().grad_begins(scope.begins);
  {
    const ArenaScope temporaries(scope.scratch);
    multiply(
        scope, g.low_rank, masked(scope, x.values), [](const Adapter& adapter) { return adapter.a().grad; }, adds_to_a);
  }
  for (const Adapter::Part& part : first().parts()) {
    multiply(
        scope, columns_of_module(part, g.values), columns_of(part, x.low_rank),
        [&](const Adapter& adapter) { return rows_of(part, adapter.b().grad); }, adds_to_b);
  }
}

}  // namespace octet::nn

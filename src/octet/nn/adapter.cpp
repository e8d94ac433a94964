#include "octet/nn/adapter.h"

#include <cmath>

#include "octet/kernels/gemm/gemm.h"

namespace octet::nn {

using kernels::transposed_values;
using parallel::Cut;
using parallel::CutRule;

namespace {

// The numbers of rows of a linear's modules, of the whole weight.
std::vector<std::int64_t> rows_of_parts(const Adapter::Options& o) {
  return o.part_count > 1 ? o.cut.part_rows : std::vector<std::int64_t>{o.weight->cut.global()[0]};
}

CutRule cut_of_b(const Adapter::Options& o) {
  if (o.cut.along != Cut::rows) return {};
  CutRule cut = o.cut;
  if (o.part_count == 1) return cut;
  cut.part_rows.clear();
  for (const std::size_t part : o.parts) cut.part_rows.push_back(o.cut.part_rows[part]);
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
                     .cut = {.along = o.cut.along == Cut::columns ? Cut::columns : Cut::none},
                     .init_std = 1.0 / std::sqrt(3.0 * static_cast<double>(o.weight->cut.global()[1])),
                     .grad_from_product = true})),
      b_(&store.add({.name = o.linear + ".lora_B.weight",
                     .shape = {rows_of_b(o), o.rank},
                     .cut = cut_of_b(o),
                     .init_std = 0.0,
                     .grad_from_product = true})) {
  const std::vector<std::int64_t> all = rows_of_parts(o);
  Part next;
  std::size_t adapted = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    CutRule cut = o.cut;
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

Tensor Adapter::columns_of(const Part& part, const Tensor& reduced) const {
  return reduced.slice_cols(part.columns, part.columns + options_.rank);
}

Tensor Adapter::b_of(const Part& part, const Tensor& b) const {
  return b.slice_rows(part.rows_of_b, part.rows_of_b + part.count);
}

Tensor Adapter::reduce(const Scope& scope, Arena& arena, const Tensor& x) const {
  const Tensor reduced = allocate(arena, x.dtype, {x.rows(), a_->value.rows()});
  kernels::gemm(scope.stream, scope.scratch,
                {.a = {.values = x}, .b = {.values = a_->value}, .d = reduced, .factor = static_cast<float>(options_.scale)});
  return reduced;
}

void Adapter::fprop(const Scope& scope, const Tensor& reduced, const Tensor& y) const {
  for (const Part& part : parts_) {
    const Tensor rows = y.slice_cols(part.rows, part.rows + part.count);
    kernels::gemm(scope.stream, scope.scratch,
                  {.a = {.values = columns_of(part, reduced)}, .b = {.values = b_of(part, b_->value)}, .c = rows, .d = rows});
  }
}

Tensor Adapter::reduce_gradient(const Scope& scope, Arena& arena, const Tensor& g) const {
  const Tensor reduced = allocate(arena, g.dtype, {g.rows(), a_->value.rows()});
  for (const Part& part : parts_) {
    kernels::gemm(scope.stream, scope.scratch,
                  {.a = {.values = g.slice_cols(part.rows, part.rows + part.count)},
                   .b = transposed_values(b_of(part, b_->value)),
                   .d = columns_of(part, reduced),
                   .factor = static_cast<float>(options_.scale)});
  }
  return reduced;
}

void Adapter::dgrad(const Scope& scope, const Tensor& reduced, const Tensor& gx) const {
  kernels::gemm(scope.stream, scope.scratch, {.a = {.values = reduced}, .b = transposed_values(a_->value), .c = gx, .d = gx});
}

void Adapter::wgrad(const Scope& scope, const Wgrad& op) const {
  const auto product = [&](const parallel::Parameter& p, const Tensor& left, const Tensor& right, const Tensor& gradient) {
    kernels::gemm(scope.stream, scope.scratch,
                  {.a = transposed_values(left),
                   .b = transposed_values(right),
                   .c = p.grad_begins(scope.begins) ? Tensor{} : gradient,
                   .d = gradient});
  };
  product(*a_, op.reduced_g, op.x, a_->grad);
  for (const Part& part : parts_) {
    product(*b_, op.g.slice_cols(part.rows, part.rows + part.count), columns_of(part, op.reduced_x), b_of(part, b_->grad));
  }
}

}  // namespace octet::nn

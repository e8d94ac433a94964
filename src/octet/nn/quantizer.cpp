#include "octet/nn/quantizer.h"

#include "octet/kernels/quantize/shard.h"
#include "octet/nn/sequence.h"

namespace octet::nn {

Reads forward_reads(const Scope& scope) {
  return scope.checkpointing == Checkpointing::selective ? Reads::fprop : Reads::fprop_and_wgrad;
}

Quantizer::Quantizer(const Options& options, const Recipe& recipe, const recipes::ScaleState& scales)
    : options_(options), recipe_(recipe), scales_(&scales) {}

// How the operand is scaled in this pass.
QuantSpec Quantizer::spec(const Scope& scope) const {
  QuantSpec spec = recipe_.spec(options_.role);
  if (spec.source == ScaleSource::history) {
    if (scope.pass == Pass::calibration) spec.source = ScaleSource::tensor;
  } else if (scope.pass == Pass::evaluation && spec.tile == ScaleTile::tensor && recipe_.token_scales) {
    spec.tile = ScaleTile::row;
  }
  return spec;
}

kernels::QuantizeEpilogue Quantizer::epilogue(const Scope& scope, const Quantized& out) const {
  const ScaleSlot slot = scales_->slot(options_.slot);
  const QuantSpec how = spec(scope);
  return {.spec = how,
          .out = out,
          .scale = how.source == ScaleSource::history ? slot.scale : nullptr,
          .amax = scope.record == Record::amax ? slot.amax : nullptr};
}

// One scale per tensor serves both directions. It lives as long as the direction that was added first.
void Quantizer::add_rowwise(const Scope& scope, std::int64_t rows, Quantized& q) const {
  q.rowwise = octet::allocate(scope.scratch, dtype_of(q.format), {rows, options_.cols});
  q.rowwise_scale_inv = q.columnwise && q.tile == ScaleTile::tensor
                            ? q.columnwise_scale_inv
                            : octet::allocate(scope.scratch, scale_dtype(q.tile), scale_shape(q.tile, rows, options_.cols));
}

// The rows are the K of this direction's GEMM, so they are padded (tensor/quantized.h).
void Quantizer::add_columnwise(Arena& arena, std::int64_t rows, Quantized& q) const {
  const std::int64_t padded = padded_k(rows, q.tile);
  q.columnwise = octet::allocate(arena, dtype_of(q.format), {options_.cols, padded});
  q.columnwise_scale_inv = q.rowwise && q.tile == ScaleTile::tensor
                               ? q.rowwise_scale_inv
                               : octet::allocate(arena, scale_dtype(q.tile), scale_shape(q.tile, options_.cols, padded));
}

Quantized Quantizer::empty(const Scope& scope) const {
  const QuantSpec how = spec(scope);
  return {.format = how.format,
          .tile = how.tile,
          .rowwise = {},
          .rowwise_scale_inv = {},
          .columnwise = {},
          .columnwise_scale_inv = {}};
}

// `kept` first: it may be scope.scratch itself, where what is kept must not lie above what is released.
Quantized Quantizer::allocate_codes(const Scope& scope, Arena& kept, std::int64_t rows, Reads reads) const {
  Quantized q = empty(scope);
  if (reads != Reads::fprop && !keeps_values()) add_columnwise(kept, rows, q);
  if (reads != Reads::wgrad) add_rowwise(scope, rows, q);
  return q;
}

Quantized Quantizer::allocate_gradient_codes(const Scope& scope, std::int64_t rows) const {
  Quantized q = empty(scope);
  add_rowwise(scope, rows, q);
  if (!keeps_values()) add_columnwise(scope.scratch, rows, q);
  return q;
}

// A watch sees values, and so does a wgrad in BF16.
bool Quantizer::gathers_codes(const Scope& scope) const {
  return !keeps_values() && spec(scope).tile == ScaleTile::tensor && !scope.watch;
}

bool Quantizer::producer_casts_share(const Scope& scope) const {
  return gathers_codes(scope) && spec(scope).source == ScaleSource::history;
}

Quantized Quantizer::own_rows(const Scope& scope, const Quantized& whole) const {
  const std::int64_t share = share_of_tokens(scope, whole.rowwise.rows());
  Quantized own = whole;
  own.rowwise = whole.rowwise.slice_rows(scope.tensor.rank() * share, (scope.tensor.rank() + 1) * share);
  own.columnwise = own.columnwise_scale_inv = {};
  return own;
}

Operand Quantizer::allocate(const Scope& scope, Arena& kept, std::int64_t rows, Reads reads) const {
  if (gathers(scope)) {
    if (!producer_casts_share(scope)) return {.values = octet::allocate(scope.scratch, scope.dtype, {rows, options_.cols})};
    Operand x{.values = {}, .codes = allocate_codes(scope, kept, scope.tensor.size() * rows, reads)};
    if (!x.codes.rowwise) add_rowwise(scope, scope.tensor.size() * rows, x.codes);  // in which ranks gather
    x.epilogue = epilogue(scope, own_rows(scope, x.codes));
    return x;
  }
  Operand x;
  const bool kept_values = reads != Reads::fprop && keeps_values();
  if (kept_values || !options_.fp8 || scope.watch) {
    x.values = octet::allocate(kept_values || reads == Reads::wgrad ? kept : scope.scratch, scope.dtype, {rows, options_.cols});
  }
  if (options_.fp8) x.codes = allocate_codes(scope, kept, rows, reads);
  if (!x.values) x.epilogue = epilogue(scope, x.codes);
  return x;
}

Operand Quantizer::gradient(const Scope& scope, const Tensor& values, const Quantized* memory) const {
  if (gathers(scope) && !producer_casts_share(scope)) return {.values = values};
  Operand g{.values = values};
  if (!options_.fp8) return g;
  g.codes = memory ? *memory : allocate_gradient_codes(scope, (gathers(scope) ? scope.tensor.size() : 1) * values.rows());
  if (gathers(scope)) {
    g.epilogue = epilogue(scope, own_rows(scope, g.codes));
  } else if (!keeps_values() && !scope.watch && !options_.sums_values) {
    g.epilogue = epilogue(scope, g.codes);
  }
  return g;
}

Operand Quantizer::complete(const Scope& scope, const Operand& operand, Arena& kept, Reads reads) const {
  Operand x = operand;
  if (gathers(scope)) {
    const std::int64_t rows = scope.tensor.size() * operand.values.rows();
    if (reads == Reads::wgrad && keeps_values()) return {.values = gather_tokens(scope, kept, operand.values)};
    if (options_.fp8 && !x.codes.rowwise) x.codes = allocate_codes(scope, kept, rows, reads);
    // Only wgrad's columnwise codes outlive this call if X is made again.
    const std::size_t used = scope.scratch.used();
    if (gathers_codes(scope) && !x.codes.rowwise) add_rowwise(scope, rows, x.codes);
    x = gather(scope, operand, x.codes, reads != Reads::fprop && keeps_values() ? kept : scope.scratch);
    if (reads == Reads::wgrad) {
      quantize(scope, x);
      show(scope, x);
      scope.scratch.release_to(used);
      return for_wgrad(*this, x);
    }
  }
  if (!options_.fp8 || (reads == Reads::wgrad && keeps_values())) return x;
  if (!x.codes.rowwise && !x.codes.columnwise) x.codes = allocate_codes(scope, kept, x.values.rows(), reads);
  quantize(scope, x);
  show(scope, x);
  return x;
}

Operand Quantizer::complete_gradient(const Scope& scope, const Operand& operand) const {
  Operand g = operand;
  if (gathers(scope)) {
    if (options_.fp8 && !g.codes.rowwise) g.codes = allocate_gradient_codes(scope, scope.tensor.size() * g.values.rows());
    g = gather(scope, g, g.codes, scope.scratch);
  }
  if (!options_.fp8) return g;
  if (!g.codes.rowwise) g.codes = allocate_gradient_codes(scope, g.values.rows());
  quantize(scope, g);
  show(scope, g);
  return g;
}

// Does what the producer has left to do.
void Quantizer::quantize(const Scope& scope, const Operand& operand) const {
  if (!operand.epilogue) kernels::quantize(scope.stream, scope.scratch, epilogue(scope, operand.codes).of(operand.values));
}

void Quantizer::show(const Scope& scope, const Operand& operand) const {
  if (scope.watch) scope.watch->operand(scope, options_.linear, options_.role, operand.values, operand.codes);
}

// A scale that is made of this very tensor is made of the shares of all ranks.
void Quantizer::quantize_share(const Scope& scope, const kernels::QuantizeEpilogue& to, const Tensor& values) const {
  if (to.spec.source == ScaleSource::history) return kernels::quantize(scope.stream, scope.scratch, to.of(values));
  const ArenaScope temporaries(scope.scratch);
  const Tensor scale = octet::allocate(scope.scratch, DType::f32, {1});
  kernels::amax(scope.stream, scope.scratch, {.x = values, .amax = static_cast<float*>(scale.data)});
  scope.tensor.all_reduce(scope.stream, scope.scratch, {.x = scale, .reduction = comm::Reduction::max});
  kernels::scales_from_amax(
      scope.stream,
      {.amax = scale, .spec = to.spec, .whole = values.shape, .multipliers = scale, .scale_inv = to.out.rowwise_scale_inv});
  kernels::Quantize cast = to.of(values);
  cast.spec.source = ScaleSource::history;
  cast.scale = static_cast<const float*>(scale.data);
  kernels::quantize(scope.stream, scope.scratch, cast);
}

// Returns the codes of all tokens in `whole`, or their values in `arena`, to be quantized to `whole`.
Operand Quantizer::gather(const Scope& scope, const Operand& share, const Quantized& whole, Arena& arena) const {
  if (!gathers_codes(scope)) return {.values = gather_tokens(scope, arena, share.values), .codes = whole};
  const kernels::QuantizeEpilogue own = epilogue(scope, own_rows(scope, whole));
  if (!share.epilogue) quantize_share(scope, own, share.values);
  scope.tensor.all_gather(scope.stream, scope.scratch, {.x = own.out.rowwise, .y = whole.rowwise});
  if (whole.columnwise) kernels::transpose_codes(scope.stream, whole);
  return {.values = {}, .codes = whole, .epilogue = own};
}

std::int64_t tokens_of(const Operand& x) { return x.values ? x.values.rows() : x.codes.rowwise.rows(); }

Operand for_wgrad(const Quantizer& quantizer, const Operand& x) {
  if (quantizer.keeps_values()) return {.values = x.values};
  Operand kept{.values = {}, .codes = x.codes};
  kept.codes.rowwise = kept.codes.rowwise_scale_inv = {};
  return kept;
}

}  // namespace octet::nn

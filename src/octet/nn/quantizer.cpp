#include "octet/nn/quantizer.h"

#include "octet/kernels/quantize/shard.h"
#include "octet/nn/sequence.h"

namespace octet::nn {
namespace {

// Returns how a cast continues with known scales [groups], if there are any.
kernels::QuantizeEpilogue with_scales(kernels::QuantizeEpilogue to, const Tensor& scales) {
  if (!scales) return to;
  to.spec.source = ScaleSource::history;
  to.scale = scales.as<float>();
  to.scale_stride = 1;
  return to;
}

void await(const Scope& scope, const Operand& x) {
  if (x.arrival) scope.stream.wait_for_ranks(*x.arrival->received.back());
}

}  // namespace

Reads forward_reads(const Scope& scope) {
  if (scope.rebuilds) return Reads::wgrad;
  return scope.checkpointing == Checkpointing::selective ? Reads::fprop : Reads::fprop_and_wgrad;
}

Quantizer::Quantizer(const Options& options, const Recipe& recipe, const recipes::ScaleState& scales)
    : options_(options), recipe_(recipe), scales_(&scales) {}

QuantSpec Quantizer::spec(const Scope& scope) const {
  QuantSpec spec = recipe_.spec(options_.role);
  if (spec.source == ScaleSource::history) {
    if (scope.pass == Pass::calibration) spec.source = ScaleSource::tensor;
  } else if (scope.pass == Pass::evaluation && spec.tile == ScaleTile::tensor && recipe_.token_scales) {
    spec.tile = ScaleTile::row;
  }
  return spec;
}

kernels::QuantizeEpilogue Quantizer::epilogue(const Scope& scope, const Quantized& out, const std::vector<int>& slots) const {
  const ScaleSlot slot = slots.empty() ? ScaleSlot{} : scales_->slot(slots.front());
  const QuantSpec how = spec(scope);
  kernels::QuantizeEpilogue to{.spec = how,
                               .out = out,
                               .scale = how.source == ScaleSource::history ? slot.scale : nullptr,
                               .amax = scope.record == Record::amax ? slot.amax : nullptr};
  if (slots.size() > 1) {  // experts register their slots one after another, so these lie at equal distances
    const ScaleSlot next = scales_->slot(slots[1]);
    to.scale_stride = next.scale - slot.scale;
    to.amax_stride = next.amax - slot.amax;
  }
  return to;
}

kernels::QuantizeEpilogue Quantizer::cast_to(const Scope& scope, const Quantized& out) const {
  kernels::QuantizeEpilogue to = epilogue(scope, out, options_.slots);
  if (grouped()) to.groups = *scope.groups;
  return to;
}

bool Quantizer::wgrad_reads_rowwise(const Scope& scope) const {
  return !keeps_values() && spec(scope).tile == ScaleTile::tensor && kernels::reads_codes_k_first(scope.stream.target());
}

// One scale per tensor serves both directions, and is kept with the columnwise codes if there are any.
void Quantizer::add_rowwise(Arena& arena, std::int64_t rows, Quantized& q, const Tensor& memory) const {
  q.rowwise = memory ? memory : octet::allocate(arena, dtype_of(q.format), {rows, options_.cols});
  q.rowwise_scale_inv =
      q.columnwise && q.tile == ScaleTile::tensor
          ? q.columnwise_scale_inv
          : octet::allocate(arena, scale_dtype(q.tile), rowwise_scale_shape(q.tile, rows, options_.cols, group_count()));
}

// Allocates the columnwise codes first. Both may lie in scope.scratch. The rowwise codes are released earlier, so they must lie
// above the columnwise ones.
Quantized Quantizer::allocate_codes(const Scope& scope, std::int64_t rows, Reads reads, const Tensor& arrived) const {
  const QuantSpec how = spec(scope);
  Quantized q{.format = how.format, .tile = how.tile};
  if (reads != Reads::fprop && wgrad_reads_rowwise(scope)) {
    add_rowwise(kept(scope), rows, q);
    q.columnwise_scale_inv = q.rowwise_scale_inv;
    return q;
  }
  if (reads != Reads::fprop && !keeps_values()) {
    // The rows are the K of wgrad, so they are padded (tensor/quantized.h).
    const std::int64_t padded = padded_k(rows, q.tile);
    q.columnwise = octet::allocate(kept(scope), dtype_of(q.format), {options_.cols, padded});
    q.columnwise_scale_inv =
        octet::allocate(kept(scope), scale_dtype(q.tile), columnwise_scale_shape(q.tile, padded, options_.cols, group_count()));
  }
  if (reads != Reads::wgrad || arrived) add_rowwise(scope.scratch, rows, q, arrived);
  return q;
}

// A watch sees values, and so does a wgrad in BF16.
bool Quantizer::gathers_codes(const Scope& scope) const {
  return !keeps_values() && spec(scope).tile == ScaleTile::tensor && !scope.watch;
}

bool Quantizer::producer_casts_share(const Scope& scope) const {
  return gathers_codes(scope) && spec(scope).source == ScaleSource::history;
}

// Rows are sent as codes under the conditions under which ranks gather codes, except to an adapter, which reads values even if
// the weight is frozen. Calibration needs the amax of each rank's rows, so it sends values.
DType Quantizer::dtype_sent(const Scope& scope, bool whole) const {
  const bool known = producer_casts_share(scope) || (whole && scales_rows_sent());
  const bool codes = options_.fp8 && !options_.reads_values && gathers_codes(scope) && known;
  return codes ? dtype_of(spec(scope).format) : scope.dtype;
}

kernels::QuantizeEpilogue Quantizer::sent(const Scope& scope, const Tensor& out, const Tensor& scales) const {
  const QuantSpec how = spec(scope);
  return with_scales(epilogue(scope, {.format = how.format, .tile = how.tile, .rowwise = out}, options_.sent), scales);
}

Quantized Quantizer::own_rows(const Scope& scope, const Quantized& whole) const {
  Quantized own = whole;
  own.rowwise = own_share(scope, whole.rowwise);
  own.columnwise = own.columnwise_scale_inv = {};
  return own;
}

Operand Quantizer::allocate(const Scope& scope, std::int64_t rows, Reads asked, const Tensor& values,
                            const Quantized* codes) const {
  const Reads reads = needed(asked);
  const bool shared = gathers(scope), keeps = reads != Reads::fprop && keeps_values();
  const bool writes_values =
      shared ? !producer_casts_share(scope) : keeps || !options_.fp8 || options_.reads_values || scope.watch != nullptr;
  Operand x{.values = values};
  if (grouped()) x.epilogue.groups = *scope.groups;
  if (writes_values && !values) {
    x.values = octet::allocate(keeps && !shared ? kept(scope) : scope.scratch, scope.dtype, {rows, options_.cols});
  }
  if (!options_.fp8 || (shared && writes_values)) return x;
  const std::int64_t all = shared ? scope.tensor.size() * rows : rows;
  x.codes = codes ? *codes : allocate_codes(scope, all, reads);
  if (shared && !x.codes.rowwise) add_rowwise(scope.scratch, all, x.codes);  // in which ranks gather
  // If producers make shares of G, G is the gradient of the residual stream, whose values exist in any case. An adapter reads
  // those, so the producer may write codes as well.
  const bool of_residual = options_.shared && options_.role == Role::gradient;
  const bool writes_codes = !writes_values || (of_residual && options_.reads_values);
  if (writes_codes) x.epilogue = cast_to(scope, shared ? own_rows(scope, x.codes) : x.codes);
  return x;
}

Operand Quantizer::complete(const Scope& scope, const Operand& operand, Reads reads) const {
  Operand x = start(scope, operand, reads);
  finish(scope, x);
  release(scope, x);
  return x;
}

Operand Quantizer::start(const Scope& scope, const Operand& operand, Reads asked) const {
  const Reads reads = needed(asked);
  Operand x = operand;
  const bool shared = gathers(scope);
  const auto gather_values = [&] {
    fetch_tokens(scope, reads != Reads::fprop && keeps_values() ? kept(scope) : scope.scratch, x);
  };
  if (!options_.fp8 || (reads == Reads::wgrad && keeps_values())) {
    if (shared) gather_values();
    return x;
  }
  const std::int64_t all = tokens(scope, x);
  const bool arrived = !x.values && !x.epilogue;
  if (arrived || (!x.codes.rowwise && !x.codes.columnwise)) {
    const Tensor sent = x.codes.rowwise;
    x.codes = allocate_codes(scope, all, reads, sent);
    if (sent && x.codes.rowwise.data != sent.data) scope.stream.copy(x.codes.rowwise.data, sent.data, sent.bytes());
  }
  // Only wgrad's columnwise codes outlive this call if X is made again.
  const std::size_t used = scope.scratch.used();
  if (shared && gathers_codes(scope)) {
    if (!x.codes.rowwise) add_rowwise(scope.scratch, all, x.codes);
    gather_codes(scope, x);
  } else {
    if (shared) {
      gather_values();
      await(scope, x);  // the codes are made of all tokens
    }
    if (arrived) {
      kernels::complete_codes(scope.stream, with_scales(cast_to(scope, x.codes), x.scales));
    } else if (!x.epilogue) {
      kernels::quantize(scope.stream, scope.scratch, cast_to(scope, x.codes).of(x.values));
    }
    release(scope, x);
  }
  if (scope.watch) watch(scope, x);
  if (reads != Reads::wgrad) return x;
  finish(scope, x);
  release(scope, x);
  scope.scratch.release_to(used);
  return for_wgrad(x);
}

void Quantizer::finish(const Scope& scope, const Operand& x) const {
  await(scope, x);
  if (x.arrival && x.codes.rowwise && x.codes.columnwise) kernels::transpose_codes(scope.stream, x.codes);
}

void Quantizer::release(const Scope& scope, Operand& x) {
  if (x.arrival) scope.stream.wait_for_ranks(*x.arrival->sent);
  x.arrival = nullptr;
}

void Quantizer::watch(const Scope& scope, const Operand& x) const {
  if (!grouped()) return scope.watch->operand(scope, options_.linears.front(), options_.role, x.values, x.codes);
  for (const GroupExtent& part : watched_groups(scope)) {
    const ArenaScope temporaries(scope.scratch);
    scope.watch->operand(scope, options_.linears[part.group], options_.role,
                         x.values.slice_rows(part.first, part.first + part.padded()), watched_codes(scope, x.codes, part));
  }
}

// A scale that is computed from this tensor is computed from the shares of all ranks.
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

// Makes the codes of all tokens from each rank's codes or values of its share.
void Quantizer::gather_codes(const Scope& scope, Operand& x) const {
  const kernels::QuantizeEpilogue own = cast_to(scope, own_rows(scope, x.codes));
  if (!x.epilogue) quantize_share(scope, own, x.values);
  if (scope.tensor.reaches(x.codes.rowwise)) {
    x.arrival = fetch_shares(scope, x.codes.rowwise);
    return;  // finish() does the rest
  }
  scope.tensor.all_gather(scope.stream, scope.scratch, {.x = own.out.rowwise, .y = x.codes.rowwise});
  if (x.codes.columnwise) kernels::transpose_codes(scope.stream, x.codes);
}

std::int64_t Quantizer::tokens(const Scope& scope, const Operand& operand) const {
  if (operand.codes.rowwise) return operand.codes.rowwise.rows();
  return (gathers(scope) ? scope.tensor.size() : 1) * operand.values.rows();
}

Operand Quantizer::for_wgrad(const Operand& x) const {
  if (!is_kept()) return {};
  if (keeps_values()) return {.values = x.values, .low_rank = x.low_rank};
  Operand kept{.codes = x.codes};
  if (kept.codes.columnwise) kept.codes.rowwise = kept.codes.rowwise_scale_inv = {};
  return kept;
}

}  // namespace octet::nn

#include "octet/kernels/attention/attention.h"

#include <algorithm>
#include <initializer_list>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/attention/attention_cuda.h"
#include "octet/kernels/attention/attention_plan.h"
#include "octet/kernels/attention/attention_workspace.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/gemm/lanes.h"
#include "octet/kernels/tiles/tile_kernel.h"

namespace octet::kernels {
namespace {

void check_shape(const AttentionShape& s) {
  require(s.batch > 0 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0, "attention: batch ", s.batch, ", heads ", s.heads,
          ", kv_heads ", s.kv_heads, ", head_dim ", s.head_dim, " must be positive");
  require(s.window >= 0, "attention: a window of ", s.window, " keys");
  require(s.visible == Visible::causal || s.window == 0, "attention: a window where all keys are visible");
  require(s.heads % s.kv_heads == 0, "attention: ", s.heads, " query heads on ", s.kv_heads, " key/value heads");
}

void check_rows(const char* name, const Tensor& x, const Tensor& like, std::int64_t rows, std::int64_t cols) {
  require(x.shape == Shape({rows, cols}), "attention: ", name, " has shape ", x.shape, ", not ", Shape({rows, cols}));
  require(x.dtype == like.dtype, "attention: ", name, " is ", name_of(x.dtype), ", q ", name_of(like.dtype));
}

AttentionPlan check_and_plan(const Stream& stream, const AttentionShape& s, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& first_keys, std::int64_t documents, const Tensor& o, const Tensor& lse) {
  check_shape(s);
  require(q.shape.rank() == 2 && k.shape.rank() == 2, "attention: q ", q.shape, " and k ", k.shape, " must have two dims");
  require(q.rows() % s.batch == 0 && k.rows() % s.batch == 0, "attention: q ", q.shape, " and k ", k.shape, " are not of ",
          s.batch, " sequences");
  require(q.dtype == DType::bf16 || q.dtype == DType::f32 || q.dtype == DType::f64 || q.dtype == DType::f8_e4m3,
          "attention: q is ", name_of(q.dtype));
  check_rows("q", q, q, q.rows(), s.heads * s.head_dim);
  check_rows("k", k, q, k.rows(), s.kv_heads * s.head_dim);
  check_rows("v", v, q, k.rows(), s.kv_heads * s.head_dim);
  check_rows("o", o, q, q.rows(), s.heads * s.head_dim);
  const Shape statistics{s.batch * s.heads, q.rows() / s.batch};
  require(lse.shape == statistics, "attention: lse has shape ", lse.shape, ", not ", statistics);
  require(lse.dtype == (q.dtype == DType::f64 ? DType::f64 : DType::f32), "attention: lse is ", name_of(lse.dtype));
  if (first_keys) {
    require(s.visible == Visible::causal, "attention: first_keys where all keys are visible");
    require(first_keys.shape == Shape({q.rows()}) && first_keys.dtype == DType::i32, "attention: first_keys is ",
            name_of(first_keys.dtype), " ", first_keys.shape, ", not I32 ", Shape({q.rows()}));
    require(documents > 0 || stream.target() != DeviceKind::cuda, "attention on CUDA: first_keys without a number of documents");
  }

  // High tiles waste work above the diagonal; small tiles need more BLAS calls. Measured for head dims 32 to 128.
  constexpr std::int64_t kQueryBlock = 64, kKeyBlock = 256;
  AttentionPlan plan{};
  plan.batch = s.batch;
  plan.heads = s.heads;
  plan.kv_heads = s.kv_heads;
  plan.head_dim = s.head_dim;
  plan.sq = q.rows() / s.batch;
  plan.sk = k.rows() / s.batch;
  plan.window = s.window;
  plan.visible = s.visible;
  plan.q_block = std::min(kQueryBlock, plan.sq);
  plan.k_block = std::min(kKeyBlock, plan.sk);
  plan.converts = q.dtype == DType::bf16 || q.dtype == DType::f8_e4m3;
  // Backward needs several tasks to use several cores. If there are few key/value heads, the query heads are divided into parts.
  constexpr std::int64_t kTasks = 8;
  const std::int64_t group = s.heads / s.kv_heads;
  plan.parts = 1;
  while (plan.parts < group && (s.batch * s.kv_heads * plan.parts < kTasks || group % plan.parts != 0)) ++plan.parts;
  return plan;
}

// The number of pairs of a query and a key that it sees, for one sequence and head.
double visible_pairs(const AttentionPlan& plan) {
  const auto sq = static_cast<double>(plan.sq), sk = static_cast<double>(plan.sk);
  if (plan.visible == Visible::all) return sq * sk;
  const double causal = sq <= sk ? sq * (sk - sq) + sq * (sq + 1) / 2 : sk * (sk + 1) / 2;
  if (plan.window == 0) return causal;
  // The last query has the most keys before its window; each query before it has one fewer.
  const double most = std::max(0.0, sk - static_cast<double>(plan.window)), queries = std::min({most, sq, sk});
  return causal - (queries * most - queries * (queries - 1) / 2);
}

double bytes_of(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* tensor : tensors) bytes += static_cast<double>(tensor->bytes());
  return bytes;
}

double forward_flops(const AttentionPlan& plan) {
  return 4 * visible_pairs(plan) * static_cast<double>(plan.batch * plan.heads * plan.head_dim);
}

void check_codes(std::initializer_list<const Quantized*> operands) {
  for (const Quantized* q : operands) {
    require(q->tile == ScaleTile::tensor && q->rowwise.dtype == dtype_of(q->format) && q->rowwise.contiguous() &&
                q->rowwise_scale_inv.shape == Shape({1}),
            "attention: an operand is not of contiguous codes with one scale");
  }
}

void check_result(const QuantizeEpilogue& to) {
  require(to.spec.tile == ScaleTile::tensor && to.scale && to.out.rowwise && to.out.rowwise.contiguous() &&
              to.out.rowwise.dtype == dtype_of(to.spec.format) && !to.out.columnwise &&
              to.out.rowwise_scale_inv.shape == Shape({1}),
          "attention in FP8: a result needs rowwise codes with the scale of a history");
}

// What cuDNN's attention in FP8 does not do. The meta device reports it before the first step.
template <class Op>
void check_fp8_on_cuda(const Op& op, const AttentionPlan& plan) {
  constexpr const char *kWhere = "attention in FP8 on CUDA: ", *kRemedy = "; use precision.attention = \"bf16\"";
  demand(plan.head_dim % 16 == 0 && plan.head_dim <= 256, ExitCode::config, kWhere, "head_dim = ", plan.head_dim,
         " is not a multiple of 16 up to 256", kRemedy);
  demand(!attention_hides_keys(op.shape, plan.sk), ExitCode::config, kWhere, "a window of ", op.shape.window,
         " tokens hides keys of sequences of ", plan.sk, ", which Octet cannot do there in FP8", kRemedy);
  demand(!op.first_keys, ExitCode::config, kWhere,
         "data.document_mask = true, or data.packing = \"documents\", is not possible there in FP8", kRemedy);
}

void check_fp8_backward_on_cuda(const AttentionBackwardFp8& op, const AttentionPlan& plan) {
  check_fp8_on_cuda(op, plan);
  constexpr const char *kWhere = "precision.attention = \"fp8\" on CUDA: ", *kRemedy = "; use \"fp8_forward\" or \"bf16\"";
  demand(plan.head_dim == 128, ExitCode::config, kWhere, "head_dim = ", plan.head_dim, ", and backward in FP8 needs 128",
         kRemedy);
  demand(!op.shape.deterministic, ExitCode::config, kWhere, "run.deterministic = true, which backward in FP8 is not", kRemedy);
}

double scale_inv_of(const Quantized& x) { return static_cast<double>(*x.rowwise_scale_inv.as<float>()); }

AttentionScratch take_scratch(Arena& arena, const AttentionPlan& plan, DType dtype, std::int64_t tasks,
                              std::int64_t lane_elements, std::int64_t partials, std::int64_t packed) {
  const std::int64_t size = dtype == DType::f64 ? 8 : 4;
  AttentionScratch scratch;
  scratch.lanes = cpu::lanes_for(tasks);
  scratch.lane = arena.allocate(static_cast<std::size_t>(scratch.lanes * lane_elements * size));
  if (partials > 0) scratch.partials = arena.allocate(static_cast<std::size_t>(partials * size));
  if (dtype == DType::bf16)
    scratch.packed = arena.allocate(static_cast<std::size_t>(packed * plan.batch * plan.kv_heads * plan.packed_head() * 2));
  return scratch;
}

}  // namespace

std::int64_t AttentionPlan::q_blocks() const { return q_block > 0 ? ceil_div(sq, q_block) : 0; }

std::int64_t AttentionPlan::row_length() const { return round_up(k_block, cpu::kTileK); }
std::int64_t AttentionPlan::q_rows() const { return converts ? cpu::whole_tiles(q_block, cpu::kTileRows) : q_block; }
std::int64_t AttentionPlan::sums_stride() const { return converts ? cpu::whole_tiles(head_dim, cpu::kTileRows) : head_dim; }
std::int64_t AttentionPlan::kv_sums() const { return (converts ? cpu::whole_tiles(sk, cpu::kTileRows) : sk) * sums_stride(); }
std::int64_t AttentionPlan::packed_head() const { return round_up(sk, cpu::kTileK) * round_up(head_dim, cpu::kTileK); }
std::int64_t AttentionPlan::tile_elements(std::int64_t panels) const {
  const std::int64_t q_panel = round_up(q_block, cpu::kTileK) * round_up(head_dim, cpu::kTileK);
  return q_rows() * (sums_stride() + 3 * row_length() + 2) + panels * q_panel / 2 + cpu::packed_elements(k_block, q_block) / 2 +
         2 * head_dim;
}
std::int64_t AttentionPlan::forward_lane() const {
  const std::int64_t sums = q_block * (sums_stride() + row_length() + 2);
  if (!converts) return sums;
  return round_up(std::max(sums + (q_block + 2 * k_block) * head_dim, tile_elements(1)), cpu::kTileRows);
}
std::int64_t AttentionPlan::backward_lane() const {
  const std::int64_t accumulated = parts == 1 ? 2 * kv_sums() : 0, sums = q_block * (sums_stride() + 2 * row_length() + 1);
  if (!converts) return accumulated + sums;
  return accumulated + round_up(std::max(sums + (2 * q_block + 2 * sk) * head_dim, tile_elements(4)), cpu::kTileRows);
}
std::int64_t AttentionPlan::backward_partials() const { return parts == 1 ? 0 : backward_tasks() * 2 * kv_sums(); }

// Two GEMMs with head_dim multiply-adds for each visible pair.
void attention_forward(Stream& stream, Arena& scratch, const AttentionForward& op) {
  const AttentionPlan plan = check_and_plan(stream, op.shape, op.q, op.k, op.v, op.first_keys, op.documents, op.o, op.lse);
  stream.count("attention_forward", {.flops = forward_flops(plan), .bytes = bytes_of({&op.q, &op.k, &op.v, &op.o, &op.lse})});
  if (plan.sq == 0) return;
  const ArenaScope scope(scratch);
  if constexpr (kCudaBackend) {
    if (stream.target() == DeviceKind::cuda) {
      void* const memory = scratch.allocate(cuda::attention_forward_bytes(op));
      if (stream.kind() == DeviceKind::cuda) cuda::attention_forward(stream, op, memory);
      return;
    }
  } else if (stream.target() == DeviceKind::cuda) {
    scratch.allocate(attention_forward_scratch(op));
    return;
  }
  const AttentionScratch memory =
      take_scratch(scratch, plan, op.q.dtype, plan.forward_tasks(), plan.forward_lane(), 0, AttentionPlan::kForwardPacked);
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::attention_forward(op, plan, memory); });
}

void attention_forward_fp8(Stream& stream, Arena& scratch, const AttentionForwardFp8& op) {
  check_codes({&op.q, &op.k, &op.v});
  check_result(op.o);
  require(op.q.format == Fp8Format::e4m3 && op.shape.visible == Visible::causal,
          "attention in FP8 reads E4M3 codes, and is causal");
  const Tensor &q = op.q.rowwise, &k = op.k.rowwise, &v = op.v.rowwise, &o = op.o.out.rowwise;
  const AttentionPlan plan = check_and_plan(stream, op.shape, q, k, v, op.first_keys, op.documents, o, op.lse);
  require(plan.sq == plan.sk, "attention in FP8: ", plan.sq, " queries on ", plan.sk, " keys");
  if (stream.target() == DeviceKind::cuda) check_fp8_on_cuda(op, plan);
  const double flops = forward_flops(plan);
  stream.count("attention_forward_fp8", {.flops = flops, .fp8_flops = flops, .bytes = bytes_of({&q, &k, &v, &o, &op.lse})});
  if (plan.sq == 0) return;
  const ArenaScope scope(scratch);
  if (stream.target() == DeviceKind::cuda) {
    void* const memory = scratch.allocate(attention_forward_fp8_scratch());
    if constexpr (kCudaBackend) {
      if (stream.kind() == DeviceKind::cuda) cuda::attention_forward_fp8(stream, op, memory);
    }
    return;
  }
  const Tensor values = allocate(scratch, DType::bf16, o.shape);
  const AttentionScratch memory = take_scratch(scratch, plan, q.dtype, plan.forward_tasks(), plan.forward_lane(), 0, 0);
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([=] {
      cpu::attention_forward_fp8(
          {.shape = op.shape, .q = q, .k = k, .v = v, .first_keys = op.first_keys, .o = values, .lse = op.lse},
          op.shape.scale * scale_inv_of(op.q) * scale_inv_of(op.k), scale_inv_of(op.v) / static_cast<double>(kProbabilityScale),
          plan, memory);
    });
  }
  quantize(stream, scratch, op.o.of(values));
}

namespace {

double backward_flops(const AttentionPlan& plan) { return 2.5 * forward_flops(plan); }

// Five GEMMs for each visible pair, including the recomputation of S.
void run_backward(Stream& stream, Arena& scratch, const AttentionBackward& op) {
  const AttentionPlan plan = check_and_plan(stream, op.shape, op.q, op.k, op.v, op.first_keys, op.documents, op.o, op.lse);
  check_rows("go", op.go, op.q, op.q.rows(), op.q.cols());
  check_rows("gq", op.gq, op.q, op.q.rows(), op.q.cols());
  check_rows("gk", op.gk, op.q, op.k.rows(), op.k.cols());
  check_rows("gv", op.gv, op.q, op.k.rows(), op.k.cols());
  stream.count("attention_backward", {.flops = backward_flops(plan),
                                      .bytes = bytes_of({&op.q, &op.k, &op.v, &op.o, &op.lse, &op.go, &op.gq, &op.gk, &op.gv})});
  if (plan.sq == 0 && plan.sk == 0) return;
  const ArenaScope scope(scratch);
  if constexpr (kCudaBackend) {
    if (stream.target() == DeviceKind::cuda) {
      void* const memory = scratch.allocate(cuda::attention_backward_bytes(op));
      if (stream.kind() == DeviceKind::cuda) cuda::attention_backward(stream, op, memory);
      return;
    }
  } else if (stream.target() == DeviceKind::cuda) {
    scratch.allocate(attention_backward_scratch(op));
    return;
  }
  const AttentionScratch memory = take_scratch(scratch, plan, op.q.dtype, plan.backward_tasks(), plan.backward_lane(),
                                               plan.backward_partials(), AttentionPlan::kBackwardPacked);
  if (stream.kind() == DeviceKind::cpu) stream.call([=] { cpu::attention_backward(op, plan, memory); });
}

// cuDNN's backward on documents needs a workspace that grows with the strides of gK and gV, so it gets packed tensors here. It
// does not write the gradients of keys outside all documents, so these are zeroed first.
void run_backward_on_documents(Stream& stream, Arena& scratch, const AttentionBackward& op) {
  const ArenaScope scope(scratch);
  AttentionBackward part = op;
  part.gk = allocate(scratch, op.gk.dtype, op.gk.shape);
  part.gv = allocate(scratch, op.gv.dtype, op.gv.shape);
  if (op.k.rows() > op.q.rows()) {
    for (const Tensor& gradient : {part.gk, part.gv}) stream.zero(gradient.data, gradient.bytes());
  }
  run_backward(stream, scratch, part);
  cast(stream, {.x = part.gk, .y = op.gk});
  cast(stream, {.x = part.gv, .y = op.gv});
}

}  // namespace

bool attention_hides_keys(const AttentionShape& shape, std::int64_t sk) { return shape.window > 0 && shape.window < sk; }

std::int64_t attention_unseen_keys(const AttentionShape& shape, std::int64_t sq, std::int64_t sk) {
  return shape.window > 0 ? std::clamp<std::int64_t>(sk - sq + 1 - shape.window, 0, sk) : 0;
}

void attention_backward(Stream& stream, Arena& scratch, const AttentionBackward& op) {
  if (stream.target() == DeviceKind::cuda && op.first_keys) return run_backward_on_documents(stream, scratch, op);
  run_backward(stream, scratch, op);
}

void attention_backward_fp8(Stream& stream, Arena& scratch, const AttentionBackwardFp8& op) {
  check_codes({&op.q, &op.k, &op.v, &op.o, &op.go});
  for (const QuantizeEpilogue* result : {&op.gq, &op.gk, &op.gv}) check_result(*result);
  require(op.q.format == Fp8Format::e4m3 && op.shape.visible == Visible::causal,
          "attention in FP8 reads E4M3 codes, and is causal");
  require(op.ds.scale && op.ds.spec.format == op.go.format, "attention in FP8: dS needs the scale of a history and gO's format");
  const Tensor &q = op.q.rowwise, &k = op.k.rowwise, &v = op.v.rowwise, &o = op.o.rowwise, &go = op.go.rowwise;
  const AttentionPlan plan = check_and_plan(stream, op.shape, q, k, v, op.first_keys, op.documents, o, op.lse);
  require(plan.sq == plan.sk, "attention in FP8: ", plan.sq, " queries on ", plan.sk, " keys");
  check_rows("go", go, go, q.rows(), q.cols());
  check_rows("gq", op.gq.out.rowwise, go, q.rows(), q.cols());
  check_rows("gk", op.gk.out.rowwise, go, k.rows(), k.cols());
  check_rows("gv", op.gv.out.rowwise, go, k.rows(), k.cols());
  if (stream.target() == DeviceKind::cuda) check_fp8_backward_on_cuda(op, plan);
  const double flops = backward_flops(plan);
  stream.count("attention_backward_fp8",
               {.flops = flops,
                .fp8_flops = flops,
                .bytes = bytes_of({&q, &k, &v, &o, &op.lse, &go, &op.gq.out.rowwise, &op.gk.out.rowwise, &op.gv.out.rowwise})});
  if (plan.sq == 0) return;
  const ArenaScope scope(scratch);
  if (stream.target() == DeviceKind::cuda) {
    void* const memory = scratch.allocate(attention_backward_fp8_scratch(op.shape, plan.sq));
    if constexpr (kCudaBackend) {
      if (stream.kind() == DeviceKind::cuda) cuda::attention_backward_fp8(stream, op, memory);
    }
    return;
  }
  const Tensor gq = allocate(scratch, DType::bf16, q.shape), gk = allocate(scratch, DType::bf16, k.shape),
               gv = allocate(scratch, DType::bf16, v.shape);
  const AttentionScratch memory =
      take_scratch(scratch, plan, q.dtype, plan.backward_tasks(), plan.backward_lane(), plan.backward_partials(), 0);
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([=] {
      const double go_inv = scale_inv_of(op.go), ds_inv = static_cast<double>(1 / *op.ds.scale);
      cpu::attention_backward_fp8({.shape = op.shape,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .first_keys = op.first_keys,
                                   .o = o,
                                   .lse = op.lse,
                                   .go = go,
                                   .gq = gq,
                                   .gk = gk,
                                   .gv = gv},
                                  {.scores = static_cast<float>(op.shape.scale * scale_inv_of(op.q) * scale_inv_of(op.k)),
                                   .gradients = static_cast<float>(go_inv * scale_inv_of(op.v)),
                                   .delta = static_cast<float>(go_inv * scale_inv_of(op.o)),
                                   .gq = static_cast<float>(ds_inv * scale_inv_of(op.k)),
                                   .gk = static_cast<float>(ds_inv * scale_inv_of(op.q)),
                                   .gv = static_cast<float>(go_inv / static_cast<double>(kProbabilityScale)),
                                   .ds = static_cast<float>(op.shape.scale),
                                   .ds_scale = *op.ds.scale,
                                   .ds_amax = op.ds.amax},
                                  plan, memory);
    });
  }
  quantize(stream, scratch, op.gq.of(gq));
  quantize(stream, scratch, op.gk.of(gk));
  quantize(stream, scratch, op.gv.of(gv));
}

std::string attention_library_version() {
  if constexpr (kCudaBackend) return cuda::attention_library_version();
  return {};
}

}  // namespace octet::kernels

#include "octet/kernels/attention/attention_cuda.h"

#include <cudnn.h>
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "octet/base/math.h"
#include "octet/device/cuda/cuda.h"
#include "octet/kernels/attention/attention_documents.h"
#include "octet/kernels/attention/attention_fp8_cuda.h"
#include "octet/kernels/attention/attention_workspace.h"

namespace octet::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Description = fe::graph::Tensor_attributes;

// cuDNN identifies a tensor by a number (uid). These are the uids of the operands; pointers are passed in this order.
enum Operand : std::int64_t { kQ, kK, kV, kO, kLse, kGo, kGq, kGk, kGv };
static_assert(kAttentionOperands == kGv + 1);
// uids for documents: the number of queries and keys of each, and the offsets at which they begin in each operand.
constexpr std::int64_t kQueries = kGv + 1, kKeys = kQueries + 1, kOffsets = kKeys + 1;
// uids in FP8, behind those of the operands of a forward or a backward pass.
constexpr std::int64_t uid_of(Fp8Scalar scalar) { return kLse + 1 + static_cast<std::int64_t>(scalar); }
constexpr std::int64_t uid_of(Fp8BackwardScalar scalar) { return kGv + 1 + static_cast<std::int64_t>(scalar); }
using Operands = std::span<const Tensor>;  // up to kLse in the forward pass, up to kGv in the backward pass

const Tensor& of(Operands x, Operand operand) { return x[static_cast<std::size_t>(operand)]; }
bool is_backward(Operands x) { return x.size() > kGo; }
bool is_fp8(Operands x) { return of(x, kQ).dtype == DType::f8_e4m3; }
const char* name_of(Operands x) {
  if (is_fp8(x)) return is_backward(x) ? "attention backward in FP8" : "attention forward in FP8";
  return is_backward(x) ? "attention backward" : "attention forward";
}

struct Problem {
  AttentionShape shape;
  std::int64_t sq, sk;   // tokens of a sequence in q; in k and v
  std::int64_t window;   // 0: no window that hides a key
  std::int64_t entries;  // number of entries for documents; 0 without documents

  template <class Op>
  explicit Problem(const Op& op)
      : shape(op.shape),
        sq(op.q.rows() / shape.batch),
        sk(op.k.rows() / shape.batch),
        window(shape.window < sk ? shape.window : 0),
        entries(op.first_keys ? document_entries(op.documents, op.q.rows()) : 0) {}
};
std::ostream& operator<<(std::ostream& out, const Problem& p) {
  const AttentionShape& s = p.shape;
  return out << "batch " << s.batch << ", heads " << s.heads << "/" << s.kv_heads << ", head_dim " << s.head_dim << ", tokens "
             << p.sq << "/" << p.sk << (s.visible == Visible::all ? ", all seen" : "")
             << (p.window > 0 ? concat(", window ", p.window) : "")
             << (p.entries > 0 ? concat(", up to ", p.entries, " documents") : "") << (s.deterministic ? ", deterministic" : "");
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::internal, call, ": ", cudnnGetErrorString(status));
}
void check(fe::error_t result, const Problem& p, Operands x) {
  if (result.is_good()) return;
  const std::string message = result.get_message();  // the further lines give the message of each engine
  fail(ExitCode::internal, "cuDNN ", cudnnGetVersion(), ": ", name_of(x), " of ", p, ": ", message.substr(0, message.find('\n')));
}

// Checks what is known without a GPU, so that the meta device reports it before the first step.
void check_supported(const Problem& p, DType dtype) {
  require(dtype == DType::bf16, "attention on CUDA reads bf16, not ", octet::name_of(dtype));
  require(0 < p.sq && (p.sq <= p.sk || p.shape.visible == Visible::all), "attention on CUDA: ", p, ": a query sees no key");
  demand(p.shape.head_dim % 8 == 0 && p.shape.head_dim <= 256, ExitCode::config,
         "attention on CUDA: head_dim = ", p.shape.head_dim, " is not a multiple of 8 up to 256");
  if (p.entries == 0) return;
  demand(p.shape.head_dim % 16 == 0, ExitCode::config, "attention on CUDA with a document mask: head_dim = ", p.shape.head_dim,
         " is not a multiple of 16");
  demand(!p.shape.deterministic, ExitCode::config, "attention on CUDA with a document mask is not deterministic");
}

bool has_keys(std::int64_t operand) { return operand == kK || operand == kV || operand == kGk || operand == kGv; }

// Elements between rows of an operand. With documents, the log-sum-exp is stored by token.
std::int64_t row_stride(Operands x, std::int64_t operand) {
  const Tensor& rows = x[static_cast<std::size_t>(operand)];
  return operand == kLse ? rows.elements() / of(x, kQ).rows() : rows.row_stride;
}

// The first operand with the same offsets as this one.
std::int64_t offsets_of(Operands x, std::int64_t operand) {
  std::int64_t same = 0;
  while (has_keys(same) != has_keys(operand) || row_stride(x, same) != row_stride(x, operand)) ++same;
  return same;
}

// Builds a cuDNN graph. It creates each tensor that describes the documents once.
class Builder {
 public:
  Builder(fe::graph::Graph& graph, const Problem& p, Operands x) : graph_(graph), problem_(p), operands_(x) {}

  // Rows that contain several heads, in cuDNN's order of dims: [B, heads, tokens, head_dim]. With documents, B counts documents.
  Description& describe_rows(Description& to, Operand operand) {
    const Tensor& rows = of(operands_, operand);
    const std::int64_t tokens = rows.rows() / problem_.shape.batch, dim = problem_.shape.head_dim;
    to.set_uid(operand)
        .set_dim({batch(), rows.cols() / dim, tokens, dim})
        .set_stride({tokens * rows.row_stride, dim, rows.row_stride, 1});
    if (rows.dtype == DType::f8_e5m2) to.set_data_type(fe::DataType_t::FP8_E5M2);  // gradients; the others have that of the graph
    return with_offsets(to, operand);
  }
  // Before version 9.26, some backward kernels of cuDNN ignore the strides
  // and read lse as [B, H, Sq]. If there are offsets, they read [tokens, H].
  Description& describe_lse(Description& to) {
    const std::int64_t heads = problem_.shape.heads, sq = problem_.sq;
    to.set_uid(kLse).set_dim({batch(), heads, sq, 1}).set_data_type(fe::DataType_t::FLOAT);
    if (problem_.entries == 0) return to.set_stride({heads * sq, sq, 1, 1});
    return with_offsets(to.set_stride({heads * sq, 1, heads, 1}), kLse);
  }
  std::shared_ptr<Description> input(Operand operand) {
    Description rows;
    return graph_.tensor(describe_rows(rows, operand));
  }
  std::shared_ptr<Description> lse() {
    Description statistics;
    return graph_.tensor(describe_lse(statistics));
  }
  // One of Fp8Scalar or Fp8BackwardScalar.
  template <class Scalar>
  static Description& describe_scalar(Description& to, Scalar which) {
    return to.set_uid(uid_of(which)).set_dim({1, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(fe::DataType_t::FLOAT);
  }
  template <class Scalar>
  std::shared_ptr<Description> scalar(Scalar which) {
    Description one;
    return graph_.tensor(describe_scalar(one, which));
  }
  template <class Attributes>
  void add_documents(Attributes& to) {
    if (problem_.entries == 0) return;
    to.set_padding_mask(true).set_seq_len_q(array(kQueries, problem_.entries)).set_seq_len_kv(array(kKeys, problem_.entries));
  }

 private:
  std::int64_t batch() const { return problem_.entries > 0 ? problem_.entries : problem_.shape.batch; }

  std::shared_ptr<Description> array(std::int64_t uid, std::int64_t length) {
    std::shared_ptr<Description>& made = arrays_[uid];
    if (!made) {
      made = graph_.tensor(Description()
                               .set_uid(uid)
                               .set_dim({length, 1, 1, 1})
                               .set_stride({1, 1, 1, 1})
                               .set_data_type(uid >= kOffsets ? fe::DataType_t::INT64 : fe::DataType_t::INT32));
    }
    return made;
  }
  Description& with_offsets(Description& to, Operand operand) {
    if (problem_.entries > 0) to.set_ragged_offset(array(kOffsets + offsets_of(operands_, operand), problem_.entries + 1));
    return to;
  }

  fe::graph::Graph& graph_;
  const Problem& problem_;
  Operands operands_;
  std::map<std::int64_t, std::shared_ptr<Description>> arrays_;
};

// For equal lengths, both alignments give the same mask; the top-left one is used because it is common. A left bound of n lets a
// query see the n keys up to the diagonal.
template <class Attributes>
Attributes masked(const Problem& p) {
  Attributes attributes;
  attributes.set_attn_scale(static_cast<float>(p.shape.scale));
  if (p.shape.visible == Visible::all) return attributes;
  attributes.set_diagonal_alignment(p.sq == p.sk ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
  if (p.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(p.window));
  return attributes;
}

void add_forward(fe::graph::Graph& graph, const Problem& p, Operands x) {
  Builder builder(graph, p, x);
  auto attributes = masked<fe::graph::SDPA_attributes>(p).set_generate_stats(true);
  builder.add_documents(attributes);
  const auto [o, lse] = graph.sdpa(builder.input(kQ), builder.input(kK), builder.input(kV), attributes);
  builder.describe_rows(*o, kO).set_output(true);
  builder.describe_lse(*lse).set_output(true);
}

// cuDNN casts exp(S - m) as S and O with the scales that it is given.
void add_forward_fp8(fe::graph::Graph& graph, const Problem& p, Operands x) {
  Builder builder(graph, p, x);
  using enum Fp8Scalar;
  const auto attributes = masked<fe::graph::SDPA_fp8_attributes>(p).set_generate_stats(true);
  const auto [o, lse, amax_s, amax_o] = graph.sdpa_fp8(
      builder.input(kQ), builder.input(kK), builder.input(kV), builder.scalar(q_scale_inv), builder.scalar(k_scale_inv),
      builder.scalar(v_scale_inv), builder.scalar(p_scale_inv), builder.scalar(p_scale), builder.scalar(o_scale), attributes);
  builder.describe_rows(*o, kO).set_output(true);
  builder.describe_lse(*lse).set_output(true);
  Builder::describe_scalar(*amax_s, p_amax).set_output(true);
  Builder::describe_scalar(*amax_o, o_amax).set_output(true);
}

// cuDNN's dP is dS, with the scale of the scores, and it casts dP in the format of gO.
void add_backward_fp8(fe::graph::Graph& graph, const Problem& p, Operands x) {
  Builder builder(graph, p, x);
  using enum Fp8BackwardScalar;
  const auto [gq, gk, gv, amax_gq, amax_gk, amax_gv, amax_ds] = graph.sdpa_fp8_backward(
      builder.input(kQ), builder.input(kK), builder.input(kV), builder.input(kO), builder.input(kGo), builder.lse(),
      builder.scalar(q_scale_inv), builder.scalar(k_scale_inv), builder.scalar(v_scale_inv), builder.scalar(o_scale_inv),
      builder.scalar(go_scale_inv), builder.scalar(p_scale_inv), builder.scalar(ds_scale_inv), builder.scalar(p_scale),
      builder.scalar(gq_scale), builder.scalar(gk_scale), builder.scalar(gv_scale), builder.scalar(ds_scale),
      masked<fe::graph::SDPA_fp8_backward_attributes>(p));
  builder.describe_rows(*gq, kGq).set_output(true);
  builder.describe_rows(*gk, kGk).set_output(true);
  builder.describe_rows(*gv, kGv).set_output(true);
  Builder::describe_scalar(*amax_gq, gq_amax).set_output(true);
  Builder::describe_scalar(*amax_gk, gk_amax).set_output(true);
  Builder::describe_scalar(*amax_gv, gv_amax).set_output(true);
  Builder::describe_scalar(*amax_ds, ds_amax).set_output(true);
}

void add_backward(fe::graph::Graph& graph, const Problem& p, Operands x) {
  Builder builder(graph, p, x);
  auto attributes = masked<fe::graph::SDPA_backward_attributes>(p).set_deterministic_algorithm(p.shape.deterministic);
  builder.add_documents(attributes);
  // Without these, cuDNN's workspace has room for as many full sequences as there are documents.
  if (p.entries > 0) attributes.set_max_total_seq_len_q(of(x, kQ).rows()).set_max_total_seq_len_kv(of(x, kK).rows());
  const auto [gq, gk, gv] = graph.sdpa_backward(builder.input(kQ), builder.input(kK), builder.input(kV), builder.input(kO),
                                                builder.input(kGo), builder.lse(), attributes);
  builder.describe_rows(*gq, kGq).set_output(true);
  builder.describe_rows(*gk, kGk).set_output(true);
  builder.describe_rows(*gv, kGv).set_output(true);
}

// cuDNN's handle and the plans made so far: one for each shape and placement of rows.
class AttentionLibrary final : public octet::cuda::Extension {
 public:
  explicit AttentionLibrary(Device&) {
    cudnnHandle_t handle = nullptr;
    check(cudnnCreate(&handle), "cudnnCreate");
    handle_.reset(handle);
  }

  // `scratch` has `bytes` bytes. `documents` is nullptr without documents; `scalars` are those of Fp8Scalar or Fp8BackwardScalar.
  void run(Stream& stream, const Problem& p, Operands x, const DocumentArrays* documents, std::span<void* const> scalars,
           void* scratch, std::size_t bytes) {
    std::unique_ptr<fe::graph::Graph>& plan = plans_[key_of(p, x)];
    if (!plan) plan = make_plan(p, x, bytes);
    check(cudnnSetStream(handle_.get(), octet::cuda::native_stream(stream)), "cudnnSetStream");
    std::vector<void*> pointers;  // indexed by uid
    for (const Tensor& operand : x) pointers.push_back(operand.data);
    pointers.insert(pointers.end(), scalars.begin(), scalars.end());
    if (documents) {
      pointers.insert(pointers.end(), {documents->queries, documents->keys});
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (offsets_of(x, static_cast<std::int64_t>(i)) == static_cast<std::int64_t>(i))
          pointers.push_back(documents->offsets_of(i));
      }
    }
    check(plan->execute(handle_.get(), pointers.data(), static_cast<int>(pointers.size()), scratch), p, x);
  }

 private:
  using Key = std::vector<std::int64_t>;

  static Key key_of(const Problem& p, Operands x) {
    const AttentionShape& s = p.shape;
    Key key{s.batch,
            s.heads,
            s.kv_heads,
            s.head_dim,
            std::bit_cast<std::int64_t>(s.scale),
            s.deterministic,
            p.sq,
            p.sk,
            p.shape.visible == Visible::all,
            p.window,
            p.entries,
            is_fp8(x)};
    for (const Tensor& operand : x) key.insert(key.end(), {operand.row_stride, static_cast<std::int64_t>(operand.dtype)});
    return key;
  }

  std::unique_ptr<fe::graph::Graph> make_plan(const Problem& p, Operands x, std::size_t bytes) const {
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(is_fp8(x) ? fe::DataType_t::FP8_E4M3 : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (is_fp8(x)) {
      is_backward(x) ? add_backward_fp8(*graph, p, x) : add_forward_fp8(*graph, p, x);
    } else {
      is_backward(x) ? add_backward(*graph, p, x) : add_forward(*graph, p, x);
    }
    check(graph->build(handle_.get(), {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}), p, x);
    std::int64_t wanted = 0;
    check(graph->get_workspace_size(wanted), p, x);
    require(static_cast<std::size_t>(wanted) <= bytes, "cuDNN ", cudnnGetVersion(), " wants ", wanted, " bytes of scratch for ",
            name_of(x), " of ", p, "; ", bytes, " were planned");
    return graph;
  }

  struct Destroy {
    void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
  };
  std::unique_ptr<cudnnContext, Destroy> handle_;
  std::map<Key, std::unique_ptr<fe::graph::Graph>> plans_;
};

// cuDNN reads 16 bytes at a time.
void check_rows(Operands x) {
  for (const Tensor& operand : x) {
    if (&operand == &of(x, kLse)) {
      require(operand.contiguous(), "attention on CUDA: lse has gaps between its rows");
      continue;
    }
    const std::int64_t row_bytes = operand.row_stride * static_cast<std::int64_t>(size_of(operand.dtype));
    require(std::bit_cast<std::uintptr_t>(operand.data) % 16 == 0 && row_bytes % 16 == 0, "attention on CUDA: rows at ",
            operand.data, " with stride ", operand.row_stride, " are not aligned to 16 bytes");
  }
}

template <class Op>
void run(Stream& stream, const Problem& p, const Op& op, Operands x, void* scratch, std::size_t bytes) {
  check_rows(x);
  auto& library = octet::cuda::extension<AttentionLibrary>(stream);
  if (p.entries == 0) return library.run(stream, p, x, nullptr, {}, scratch, bytes);
  FindDocuments find{.first_keys = op.first_keys,
                     .keys_before = op.keys_before,
                     .batch = p.shape.batch,
                     .sq = p.sq,
                     .sk = p.sk,
                     .entries = p.entries};
  for (std::size_t i = 0; i < x.size(); ++i) find.strides[i] = row_stride(x, static_cast<std::int64_t>(i));
  const DocumentArrays documents(scratch, p.entries);
  find_documents(stream, find, documents);
  const std::size_t arrays = document_arrays_bytes(op.q.rows());
  library.run(stream, p, x, &documents, {}, static_cast<std::byte*>(scratch) + arrays, bytes - arrays);
}

// The scratch begins with the scalars.
template <class Op>
void run_fp8(Stream& stream, const Op& op, const Problem& p, Operands x, void* scratch, std::size_t bytes) {
  check_rows(x);
  auto* const memory = static_cast<float*>(scratch);
  prepare_fp8_scalars(stream, op, memory);
  octet::cuda::extension<AttentionLibrary>(stream).run(stream, p, x, nullptr, fp8_scalars(op, memory),
                                                       static_cast<std::byte*>(scratch) + kFp8ScalarBytes,
                                                       bytes - kFp8ScalarBytes);
  take_fp8_scalars(stream, op, memory);
}

}  // namespace

std::size_t attention_forward_bytes(const AttentionForward& op) {
  check_supported(Problem(op), op.q.dtype);
  return attention_forward_scratch(op);
}

std::size_t attention_backward_bytes(const AttentionBackward& op) {
  const Problem problem(op);
  check_supported(problem, op.q.dtype);
  require(op.shape.visible != Visible::all || attention_is_safe_without_mask(problem.sk), "attention backward", " of ", problem,
          ": cuDNN may return NaN for so many keys without a mask");
  return attention_backward_scratch(op);
}

void attention_forward(Stream& stream, const AttentionForward& op, void* scratch) {
  run(stream, Problem(op), op, std::array{op.q, op.k, op.v, op.o, op.lse}, scratch, attention_forward_bytes(op));
}

void attention_forward_fp8(Stream& stream, const AttentionForwardFp8& op, void* scratch) {
  const AttentionForward codes{.shape = op.shape,
                               .q = op.q.rowwise,
                               .k = op.k.rowwise,
                               .v = op.v.rowwise,
                               .first_keys = {},
                               .o = op.o.out.rowwise,
                               .lse = op.lse};
  const Problem problem(codes);
  const std::array operands{codes.q, codes.k, codes.v, codes.o, codes.lse};
  run_fp8(stream, op, problem, operands, scratch, attention_forward_fp8_scratch());
}

// cuDNN 9.19's backward pass in FP8 is slower for two sequences at once than for one after the other
// (docs/measurements/h200-ceilings.md).
void attention_backward_fp8(Stream& stream, const AttentionBackwardFp8& op, void* scratch) {
  AttentionShape shape = op.shape;
  shape.batch = 1;
  const std::int64_t length = op.q.rowwise.rows() / op.shape.batch;
  for (std::int64_t i = 0; i < op.shape.batch; ++i) {
    const auto tokens = [&](const Tensor& x) { return x.slice_rows(i * length, (i + 1) * length); };
    const AttentionBackward codes{.shape = shape,
                                  .q = tokens(op.q.rowwise),
                                  .k = tokens(op.k.rowwise),
                                  .v = tokens(op.v.rowwise),
                                  .first_keys = {},
                                  .o = tokens(op.o.rowwise),
                                  .lse = op.lse.slice_rows(i * shape.heads, (i + 1) * shape.heads),
                                  .go = tokens(op.go.rowwise),
                                  .gq = tokens(op.gq.out.rowwise),
                                  .gk = tokens(op.gk.out.rowwise),
                                  .gv = tokens(op.gv.out.rowwise)};
    run_fp8(stream, op, Problem(codes),
            std::array{codes.q, codes.k, codes.v, codes.o, codes.lse, codes.go, codes.gq, codes.gk, codes.gv}, scratch,
            attention_backward_fp8_scratch(shape, length));
  }
}

void attention_backward(Stream& stream, const AttentionBackward& op, void* scratch) {
  run(stream, Problem(op), op, std::array{op.q, op.k, op.v, op.o, op.lse, op.go, op.gq, op.gk, op.gv}, scratch,
      attention_backward_bytes(op));
}

std::string attention_library_version() {
  const std::size_t version = cudnnGetVersion();  // 91900 is version 9.19.0
  return concat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace octet::kernels::cuda

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
#include "octet/kernels/attention/attention_workspace.h"

namespace octet::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Description = fe::graph::Tensor_attributes;

// cuDNN knows a tensor by the number of its operand, and takes their pointers in this order.
enum Operand : std::int64_t { kQ, kK, kV, kO, kLse, kGo, kGq, kGk, kGv };
using Operands = std::span<const Tensor>;  // up to kLse forward, up to kGv backward

bool is_backward(Operands x) { return x.size() > kGo; }
const char* name_of(Operands x) { return is_backward(x) ? "attention backward" : "attention forward"; }
const Tensor& of(Operands x, Operand operand) { return x[static_cast<std::size_t>(operand)]; }

struct Problem {
  AttentionShape shape;
  std::int64_t sq, sk;  // tokens of a sequence in q, in k and v
  Visible visible;
  std::int64_t window;  // 0: none that hides a key

  Problem(const AttentionShape& s, const Tensor& q, const Tensor& k, Visible keys = Visible::causal)
      : shape(s), sq(q.rows() / s.batch), sk(k.rows() / s.batch), visible(keys), window(s.window < sk ? s.window : 0) {}
};
std::ostream& operator<<(std::ostream& out, const Problem& p) {
  const AttentionShape& s = p.shape;
  return out << "batch " << s.batch << ", heads " << s.heads << "/" << s.kv_heads << ", head_dim " << s.head_dim << ", tokens "
             << p.sq << "/" << p.sk << (p.visible == Visible::all ? ", all seen" : "")
             << (p.window > 0 ? concat(", window ", p.window) : "") << (s.deterministic ? ", deterministic" : "");
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ExitCode::internal, call, ": ", cudnnGetErrorString(status));
}
void check(fe::error_t result, const Problem& p, Operands x) {
  if (result.is_good()) return;
  const std::string message = result.get_message();  // below its first line stands what each engine said
  fail(ExitCode::internal, "cuDNN ", cudnnGetVersion(), ": ", name_of(x), " of ", p, ": ", message.substr(0, message.find('\n')));
}

// What can be known without a GPU, so that the meta device says it before any step.
void check_supported(const Problem& p, DType dtype) {
  require(dtype == DType::bf16, "attention on CUDA reads bf16, not ", octet::name_of(dtype));
  require(0 < p.sq && (p.sq <= p.sk || p.visible == Visible::all), "attention on CUDA: ", p, ": a query sees no key");
  demand(p.shape.head_dim % 8 == 0 && p.shape.head_dim <= 256, ExitCode::config,
         "attention on CUDA: head_dim = ", p.shape.head_dim, " is not a multiple of 8 up to 256");
}

// Rows of heads side by side as cuDNN numbers them: [B, heads, tokens, head_dim].
Description& describe_rows(Description& to, Operand operand, Operands x, const Problem& p) {
  const Tensor& rows = of(x, operand);
  const std::int64_t tokens = rows.rows() / p.shape.batch, dim = p.shape.head_dim;
  return to.set_uid(operand)
      .set_dim({p.shape.batch, rows.cols() / dim, tokens, dim})
      .set_stride({tokens * rows.row_stride, dim, rows.row_stride, 1});
}

// Before version 9.26 some of cuDNN's backward kernels read it as [B, H, Sq] whatever strides are declared.
Description& describe_lse(Description& to, const Problem& p) {
  return to.set_uid(kLse)
      .set_dim({p.shape.batch, p.shape.heads, p.sq, 1})
      .set_stride({p.shape.heads * p.sq, p.sq, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

// With equal lengths both alignments are the same mask; the first is the common one. A left bound of n shows the n keys that end
// with the diagonal.
template <class Attributes>
Attributes masked(const Problem& p) {
  Attributes attributes;
  attributes.set_attn_scale(static_cast<float>(p.shape.scale));
  if (p.visible == Visible::all) return attributes;
  attributes.set_diagonal_alignment(p.sq == p.sk ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
  if (p.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(p.window));
  return attributes;
}

void add_forward(fe::graph::Graph& graph, const Problem& p, Operands x) {
  const auto input = [&](Operand operand) {
    Description rows;
    return graph.tensor(describe_rows(rows, operand, x, p));
  };
  const auto [o, lse] =
      graph.sdpa(input(kQ), input(kK), input(kV), masked<fe::graph::SDPA_attributes>(p).set_generate_stats(true));
  describe_rows(*o, kO, x, p).set_output(true);
  describe_lse(*lse, p).set_output(true);
}

void add_backward(fe::graph::Graph& graph, const Problem& p, Operands x) {
  const auto input = [&](Operand operand) {
    Description rows;
    return graph.tensor(describe_rows(rows, operand, x, p));
  };
  Description statistics;
  const auto lse = graph.tensor(describe_lse(statistics, p));
  const auto [gq, gk, gv] =
      graph.sdpa_backward(input(kQ), input(kK), input(kV), input(kO), input(kGo), lse,
                          masked<fe::graph::SDPA_backward_attributes>(p).set_deterministic_algorithm(p.shape.deterministic));
  describe_rows(*gq, kGq, x, p).set_output(true);
  describe_rows(*gk, kGk, x, p).set_output(true);
  describe_rows(*gv, kGv, x, p).set_output(true);
}

// cuDNN's handle and the plans made so far, one for each shape and placement of rows.
class AttentionLibrary final : public octet::cuda::Extension {
 public:
  explicit AttentionLibrary(Device&) {
    cudnnHandle_t handle = nullptr;
    check(cudnnCreate(&handle), "cudnnCreate");
    handle_.reset(handle);
  }

  // `scratch` has room for `bytes`.
  void run(Queue& queue, const Problem& p, Operands x, void* scratch, std::size_t bytes) {
    std::unique_ptr<fe::graph::Graph>& plan = plans_[key_of(p, x)];
    if (!plan) plan = make_plan(p, x, bytes);
    check(cudnnSetStream(handle_.get(), octet::cuda::stream_of(queue)), "cudnnSetStream");
    std::array<void*, kGv + 1> pointers{};
    for (std::size_t i = 0; i < x.size(); ++i) pointers[i] = x[i].data;
    check(plan->execute(handle_.get(), pointers.data(), static_cast<int>(x.size()), scratch), p, x);
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
            p.visible == Visible::all,
            p.window};
    for (const Tensor& operand : x) key.push_back(operand.row_stride);
    return key;
  }

  std::unique_ptr<fe::graph::Graph> make_plan(const Problem& p, Operands x, std::size_t bytes) const {
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (is_backward(x)) {
      add_backward(*graph, p, x);
    } else {
      add_forward(*graph, p, x);
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
    require(std::bit_cast<std::uintptr_t>(operand.data) % 16 == 0 && operand.row_stride % 8 == 0, "attention on CUDA: rows at ",
            operand.data, " with stride ", operand.row_stride, " are not aligned to 16 bytes");
  }
}

void run(Queue& queue, const Problem& p, Operands x, void* scratch, std::size_t scratch_bytes) {
  check_rows(x);
  octet::cuda::extension<AttentionLibrary>(queue).run(queue, p, x, scratch, scratch_bytes);
}

}  // namespace

std::size_t attention_forward_bytes(const AttentionForward& op) {
  check_supported(Problem(op.shape, op.q, op.k), op.q.dtype);
  return attention_forward_workspace();
}

std::size_t attention_backward_bytes(const AttentionBackward& op, Visible visible) {
  const Problem p(op.shape, op.q, op.k, visible);
  check_supported(p, op.q.dtype);
  return attention_backward_workspace(op.shape, p.sq, p.sk);
}

void attention_forward(Queue& queue, const AttentionForward& op, void* scratch) {
  run(queue, Problem(op.shape, op.q, op.k), std::array{op.q, op.k, op.v, op.o, op.lse}, scratch, attention_forward_bytes(op));
}

void attention_backward(Queue& queue, const AttentionBackward& op, Visible visible, void* scratch) {
  run(queue, Problem(op.shape, op.q, op.k, visible), std::array{op.q, op.k, op.v, op.o, op.lse, op.go, op.gq, op.gk, op.gv},
      scratch, attention_backward_bytes(op, visible));
}

std::string attention_library_version() {
  const std::size_t version = cudnnGetVersion();  // 91900: 9.19.0
  return concat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace octet::kernels::cuda

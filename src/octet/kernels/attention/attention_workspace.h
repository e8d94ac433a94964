// The workspace that cuDNN needs for attention on a Hopper GPU, in addition to the operands. The meta device and the GPU
// allocate the same size, and a call checks that cuDNN asks for no more. The sizes in the table are measured. For other shapes,
// a formula that gives every row of the table is used as an estimate.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

struct AttentionWorkspaceRow {
  std::string_view version;  // of cuDNN
  std::int64_t batch, heads, kv_heads, head_dim, sq, sk;
  bool deterministic;
  std::int64_t backward_mib;
  bool fp8 = false;  // backward in FP8
};
std::span<const AttentionWorkspaceRow> attention_workspace_table();

// The table's row for B sequences of sq queries on sk keys; nullptr if this shape was not measured.
const AttentionWorkspaceRow* find_attention_workspace(const AttentionShape& shape, std::int64_t sq, std::int64_t sk,
                                                      bool fp8 = false);

// Bytes for one call.
std::size_t attention_forward_workspace();
std::size_t attention_backward_workspace(const AttentionShape& shape, std::int64_t sq, std::int64_t sk);
// Backward in FP8 gets one sequence in each call, so this has no batch.
std::size_t attention_backward_fp8_workspace(const AttentionShape& shape, std::int64_t length);

// Bytes for a call on documents, for any number of documents. The arguments are the rows and row strides of op.q, op.k and op.gq.
// These sizes are estimates that were not measured.
std::size_t document_forward_workspace(std::int64_t queries);
std::size_t document_backward_workspace(const AttentionShape& shape, std::int64_t queries, std::int64_t keys,
                                        std::int64_t gq_stride);

// All scratch of a call on CUDA: cuDNN's workspace, preceded by the arrays of attention_documents.h if there are documents, or, in
// FP8, by the scales and amaxes that cuDNN reads and writes.
inline constexpr std::size_t kFp8ScalarBytes = 256;
std::size_t attention_forward_scratch(const AttentionForward& op);
std::size_t attention_forward_fp8_scratch();
std::size_t attention_backward_fp8_scratch(const AttentionShape& shape, std::int64_t length);
std::size_t attention_backward_scratch(const AttentionBackward& op);

}  // namespace octet::kernels

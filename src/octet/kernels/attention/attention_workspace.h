// What cuDNN takes beside the operands of attention on a Hopper GPU. The meta device and the GPU give out the same; that cuDNN
// does not ask for more is checked when it is called. Where a row of the table holds the shape it is measured, elsewhere the
// formula that gives every row is an estimate.
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
};
std::span<const AttentionWorkspaceRow> attention_workspace_table();

// The row of these B sequences of sq queries on sk keys; nullptr where nobody has measured them.
const AttentionWorkspaceRow* find_attention_workspace(const AttentionShape& shape, std::int64_t sq, std::int64_t sk);

// Of one call.
std::size_t attention_forward_workspace();
std::size_t attention_backward_workspace(const AttentionShape& shape, std::int64_t sq, std::int64_t sk);

// On documents, however many they are; rows and row stride of op.q, op.k and op.gq. Nobody has measured them.
std::size_t document_forward_workspace(std::int64_t queries);
std::size_t document_backward_workspace(const AttentionShape& shape, std::int64_t queries, std::int64_t keys,
                                        std::int64_t gq_stride);

// All scratch of a call on CUDA: cuDNN's, and on documents their arrays (attention_documents.h) before it.
std::size_t attention_forward_scratch(const AttentionForward& op);
std::size_t attention_backward_scratch(const AttentionBackward& op);

}  // namespace octet::kernels

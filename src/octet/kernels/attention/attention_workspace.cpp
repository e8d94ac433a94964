#include "octet/kernels/attention/attention_workspace.h"

#include <algorithm>
#include <iterator>

#include "octet/base/math.h"
#include "octet/kernels/attention/attention_documents.h"

namespace octet::kernels {
namespace {

constexpr std::int64_t kSlack = std::int64_t{1} << 20;  // cuDNN needs a few hundred bytes more than the formulas below

// Measured on an H200 (2026-11-20).
constexpr AttentionWorkspaceRow kTable[] = {
    {"9.19", 1, 32, 8, 128, 8192, 8192, false, 257},         {"9.19", 2, 32, 8, 128, 8192, 8192, false, 514},
    {"9.19", 1, 32, 8, 128, 16384, 16384, false, 514},       {"9.19", 2, 32, 8, 128, 16384, 16384, false, 1028},
    {"9.19", 2, 32, 8, 128, 4096, 16384, false, 641},        {"9.19", 1, 32, 8, 128, 8192, 8192, true, 4225},
    {"9.19", 1, 32, 8, 128, 16384, 16384, true, 16642},      {"9.19", 1, 32, 8, 128, 8192, 8192, false, 385, true},
    {"9.19", 1, 32, 8, 128, 16384, 16384, false, 770, true},
};

}  // namespace

std::span<const AttentionWorkspaceRow> attention_workspace_table() { return kTable; }

const AttentionWorkspaceRow* find_attention_workspace(const AttentionShape& s, std::int64_t sq, std::int64_t sk, bool fp8) {
  const auto found = std::find_if(std::begin(kTable), std::end(kTable), [&](const AttentionWorkspaceRow& row) {
    return row.batch == s.batch && row.heads == s.heads && row.kv_heads == s.kv_heads && row.head_dim == s.head_dim &&
           row.sq == sq && row.sk == sk && row.deterministic == s.deterministic && row.fp8 == fp8 && !attention_hides_keys(s, sk);
  });
  return found == std::end(kTable) ? nullptr : found;
}

std::size_t attention_forward_workspace() { return kSlack; }

// For each query head: rowsum(gO O), and either gQ in FP32, to which blocks of keys add in
// any order, or, for a fixed order, all of dS in BF16 in whole tiles. With fewer key/value
// heads than query heads, also gK and gV of each query head before they are summed.
std::size_t attention_backward_workspace(const AttentionShape& s, std::int64_t sq, std::int64_t sk) {
  std::int64_t bytes = sq * 4;
  bytes += s.deterministic ? round_up(sq, 64) * round_up(sk, 128) * 2 : sq * s.head_dim * 4;
  if (s.kv_heads < s.heads) bytes += 2 * sk * s.head_dim * 2;
  return static_cast<std::size_t>(s.batch * s.heads * bytes + kSlack);
}

// Assumes 1 KiB for each possible entry; this is a guess of what the kernels store per entry.
std::size_t document_forward_workspace(std::int64_t queries) {
  return static_cast<std::size_t>(kSlack + document_entries(queries, queries) * 1024);
}

// rowsum(gO O); gQ in FP32 with the row stride of gQ; and with fewer key/value heads than query heads gK and gV of each query
// head, for which cuDNN Frontend needs 4 bytes per element.
std::size_t document_backward_workspace(const AttentionShape& s, std::int64_t queries, std::int64_t keys,
                                        std::int64_t gq_stride) {
  std::int64_t bytes = queries * (s.heads + gq_stride) * 4;
  if (s.kv_heads < s.heads) bytes += 2 * keys * s.heads * s.head_dim * 4;
  return static_cast<std::size_t>(bytes) + document_forward_workspace(queries);
}

std::size_t attention_forward_scratch(const AttentionForward& op) {
  if (!op.first_keys) return attention_forward_workspace();
  return document_arrays_bytes(op.q.rows()) + document_forward_workspace(op.q.rows());
}

std::size_t attention_forward_fp8_scratch() { return kFp8ScalarBytes + attention_forward_workspace(); }

// For each query head of whole tiles of tokens: rowsum(gO O), gQ in FP32, and gK and gV in FP32 before the heads are summed.
// Whether cuDNN rounds lengths to whole tiles, and needs less without groups of heads, was not measured.
std::size_t attention_backward_fp8_workspace(const AttentionShape& s, std::int64_t length) {
  return static_cast<std::size_t>(s.heads * round_up(length, 128) * (4 + 3 * 4 * s.head_dim) + kSlack);
}

std::size_t attention_backward_fp8_scratch(const AttentionShape& s, std::int64_t length) {
  return kFp8ScalarBytes + attention_backward_fp8_workspace(s, length);
}

std::size_t attention_backward_scratch(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  if (!op.first_keys) return attention_backward_workspace(s, op.q.rows() / s.batch, op.k.rows() / s.batch);
  return document_arrays_bytes(op.q.rows()) + document_backward_workspace(s, op.q.rows(), op.k.rows(), op.gq.row_stride);
}

}  // namespace octet::kernels

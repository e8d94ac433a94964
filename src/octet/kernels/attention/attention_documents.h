// Documents in the form in which cuDNN takes them. cuDNN's batch has one entry per document. An entry consists of the document's
// queries in this call and of the keys from the document's first key to the last one that these queries see. Arrays in device
// memory say where each entry begins in each operand, so documents of different lengths use the same plan. The number of entries
// is rounded up to a power of 2; entries after the last document are empty.
#pragma once

#include <array>
#include <cstddef>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

inline constexpr std::size_t kAttentionOperands = 9;  // q, k, v, o, lse, go, gq, gk, gv

// Bytes for DocumentArrays with as many entries as `queries` queries can have.
std::size_t document_arrays_bytes(std::int64_t queries);

// The number of entries for a call with at most `documents` documents.
std::int64_t document_entries(std::int64_t documents, std::int64_t queries);

// Arrays for n entries, in memory of document_arrays_bytes(). Each array begins at a multiple of 16 bytes.
struct DocumentArrays {
  std::int32_t* begins;   // [n + 1] first query of each entry; after the last document, the number of queries
  std::int32_t* queries;  // [n] number of queries of each entry
  std::int32_t* keys;     // [n] number of keys of each entry
  std::int64_t* offsets;  // [operands, row] elements from an operand's first row to the entry's; n + 1 used per row
  std::int64_t row;

  DocumentArrays(void* memory, std::int64_t n);
  std::int64_t* offsets_of(std::size_t operand) const { return offsets + static_cast<std::int64_t>(operand) * row; }
};

namespace cuda {

struct FindDocuments {
  Tensor first_keys;  // [B Sq]
  std::int64_t keys_before = 0;
  std::int64_t batch = 1, sq = 0, sk = 0;
  std::int64_t entries = 1;
  std::array<std::int64_t, kAttentionOperands> strides = {};  // elements between rows of each operand; 0 if the operand is absent
};
// Fills `to`. If there are more documents than entries, the kernel traps and the process ends.
void find_documents(Stream& stream, const FindDocuments& op, const DocumentArrays& to);

}  // namespace cuda
}  // namespace octet::kernels

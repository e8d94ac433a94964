// Documents as cuDNN takes them: its batch holds an entry for each, of the queries of a call that are its own and of the keys
// that the last of them sees, down to the document's first. Where an entry begins in each operand is an array in device memory,
// so no document needs a plan of its own; their number is rounded up to a power of 2, and entries behind the last are empty.
#pragma once

#include <array>
#include <cstddef>

#include "octet/kernels/attention/attention.h"

namespace octet::kernels {

inline constexpr std::size_t kAttentionOperands = 9;  // q, k, v, o, lse, go, gq, gk, gv

// Memory for DocumentArrays of any number of entries that so many queries can have.
std::size_t document_arrays_bytes(std::int64_t queries);

// Entries of a call whose caller knows of at most `documents`.
std::int64_t document_entries(std::int64_t documents, std::int64_t queries);

// The arrays of n entries in memory of document_arrays_bytes(), each at a multiple of 16 bytes.
struct DocumentArrays {
  std::int32_t* begins;   // [n + 1] first query of each; behind the last, all queries
  std::int32_t* queries;  // [n]
  std::int32_t* keys;     // [n]
  std::int64_t* offsets;  // [operands, row] elements from an operand's first row to the entry's, n + 1 of each row
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
  std::array<std::int64_t, kAttentionOperands> strides = {};  // elements from row to row of each operand; 0: there is none
};
// Fills `to`. More documents than entries end the process.
void find_documents(Queue& queue, const FindDocuments& op, const DocumentArrays& to);

}  // namespace cuda
}  // namespace octet::kernels

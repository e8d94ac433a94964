#include "octet/kernels/attention/attention_documents.h"

#include <algorithm>
#include <bit>

#include "octet/base/math.h"

namespace octet::kernels {
namespace {

constexpr std::int64_t kAlignment = 16;

// The sizes in bytes of the arrays of n entries, which are stored one after another.
struct Sizes {
  std::int64_t counts, row;
  explicit Sizes(std::int64_t n)
      : counts(round_up((n + 1) * static_cast<std::int64_t>(sizeof(std::int32_t)), kAlignment)),
        row(round_up((n + 1) * static_cast<std::int64_t>(sizeof(std::int64_t)), kAlignment)) {}
};

}  // namespace

std::int64_t document_entries(std::int64_t documents, std::int64_t queries) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, std::min(documents, queries)))));
}

std::size_t document_arrays_bytes(std::int64_t queries) {
  const Sizes most(document_entries(queries, queries));
  return static_cast<std::size_t>(3 * most.counts + static_cast<std::int64_t>(kAttentionOperands) * most.row);
}

DocumentArrays::DocumentArrays(void* memory, std::int64_t n) {
  const Sizes sizes(n);
  auto* const bytes = static_cast<std::byte*>(memory);
  begins = reinterpret_cast<std::int32_t*>(bytes);
  queries = reinterpret_cast<std::int32_t*>(bytes + sizes.counts);
  keys = reinterpret_cast<std::int32_t*>(bytes + 2 * sizes.counts);
  offsets = reinterpret_cast<std::int64_t*>(bytes + 3 * sizes.counts);
  row = sizes.row / static_cast<std::int64_t>(sizeof(std::int64_t));
}

}  // namespace octet::kernels

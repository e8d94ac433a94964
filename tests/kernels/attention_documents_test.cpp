#include "octet/kernels/attention/attention_documents.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace octet::kernels {
namespace {

// cuDNN builds a plan for each batch size, so the number of entries is rounded up to a power of two.
TEST(AttentionDocuments, EntriesArePowersOfTwo) {
  EXPECT_EQ(document_entries(1, 100), 1);
  EXPECT_EQ(document_entries(2, 100), 2);
  EXPECT_EQ(document_entries(3, 100), 4);
  EXPECT_EQ(document_entries(64, 100), 64);
  EXPECT_EQ(document_entries(65, 100), 128);
  EXPECT_EQ(document_entries(1000, 100), 128) << "no more documents than queries";
  EXPECT_EQ(document_entries(5, 1), 1);
}

// For any number of documents the arrays are aligned, do not overlap and fit into the memory for the largest number.
TEST(AttentionDocuments, ArraysDoNotOverlap) {
  for (const std::int64_t queries : {1, 2, 77, 4096}) {
    const std::size_t bytes = document_arrays_bytes(queries);
    std::vector<std::byte> memory(bytes + 16);
    void* start = memory.data();
    std::size_t space = memory.size();
    ASSERT_TRUE(std::align(16, bytes, start, space));
    for (std::int64_t documents = 1; documents <= queries; documents = 2 * documents + 1) {
      const std::int64_t n = document_entries(documents, queries);
      const DocumentArrays arrays(start, n);
      std::vector<int> taken(bytes, 0);
      const auto take = [&](const void* array, std::int64_t count, std::size_t size) {
        const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(array) - static_cast<std::byte*>(start));
        EXPECT_EQ(at % 16, 0u);
        ASSERT_LE(at + static_cast<std::size_t>(count) * size, bytes);
        for (std::size_t i = 0; i < static_cast<std::size_t>(count) * size; ++i) ++taken[at + i];
      };
      take(arrays.begins, n + 1, sizeof(std::int32_t));
      take(arrays.queries, n, sizeof(std::int32_t));
      take(arrays.keys, n, sizeof(std::int32_t));
      for (std::size_t x = 0; x < kAttentionOperands; ++x) take(arrays.offsets_of(x), n + 1, sizeof(std::int64_t));
      for (const int times : taken) ASSERT_LE(times, 1);
    }
  }
}

}  // namespace
}  // namespace octet::kernels

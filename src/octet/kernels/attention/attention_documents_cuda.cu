#include <cuda_runtime.h>

#include "octet/device/cuda/cuda.h"
#include "octet/kernels/attention/attention_documents.h"

namespace octet::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kLanes = 32, kWarps = kThreads / kLanes;

struct Call {
  const std::int32_t* first_keys;
  std::int64_t keys_before, batch, sq, sk;
  int entries;
  std::int64_t strides[kAttentionOperands];
};

// Whether the rows of an operand are keys (K, V and their gradients) or queries (all others).
__device__ bool has_keys(std::size_t operand) { return operand == 1 || operand == 2 || operand >= 7; }

// Runs in one block. Numbers the first queries of documents by a running count.
__global__ void __launch_bounds__(kThreads) find_kernel(Call call, DocumentArrays to) {
  __shared__ int of_warp[kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kLanes, lane = thread % kLanes;
  const std::int64_t queries = call.batch * call.sq;
  int found = 0;
  for (std::int64_t first = 0; first < queries; first += kThreads) {
    const std::int64_t i = first + thread;
    const bool begins = i < queries && (i % call.sq == 0 || call.first_keys[i] != call.first_keys[i - 1]);
    const unsigned in_warp = __ballot_sync(~0u, begins);
    if (lane == 0) of_warp[warp] = __popc(in_warp);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < kWarps; ++w) {
      before += w < warp ? of_warp[w] : 0;
      all += of_warp[w];
    }
    const int number = found + before + __popc(in_warp & ((1u << lane) - 1));
    if (begins && number < call.entries) to.begins[number] = static_cast<std::int32_t>(i);
    found += all;
    __syncthreads();  // of_warp is written again in the next iteration
  }
  // Otherwise, documents would be ignored silently.
  if (found > call.entries) __trap();
  for (int n = found + thread; n <= call.entries; n += kThreads) to.begins[n] = static_cast<std::int32_t>(queries);
  __syncthreads();
  for (int n = thread; n <= call.entries; n += kThreads) {
    const std::int64_t begin = to.begins[n], end = n < call.entries ? to.begins[n + 1] : begin;
    std::int64_t key_begin = call.batch * call.sk, key_end = key_begin;
    if (begin < end) {
      const std::int64_t b = begin / call.sq, first = call.first_keys[begin] - call.keys_before;
      key_begin = b * call.sk + (first > 0 ? first : 0);
      key_end = b * call.sk + (end - b * call.sq) + call.sk - call.sq;
    }
    if (n < call.entries) {
      to.queries[n] = static_cast<std::int32_t>(end - begin);
      to.keys[n] = static_cast<std::int32_t>(key_end > key_begin ? key_end - key_begin : 0);
    }
    for (std::size_t x = 0; x < kAttentionOperands; ++x) {
      to.offsets[static_cast<std::int64_t>(x) * to.row + n] = (has_keys(x) ? key_begin : begin) * call.strides[x];
    }
  }
}

}  // namespace

void find_documents(Stream& stream, const FindDocuments& op, const DocumentArrays& to) {
  Call call{.first_keys = op.first_keys.as<std::int32_t>(),
            .keys_before = op.keys_before,
            .batch = op.batch,
            .sq = op.sq,
            .sk = op.sk,
            .entries = static_cast<int>(op.entries)};
  for (std::size_t x = 0; x < kAttentionOperands; ++x) call.strides[x] = op.strides[x];
  find_kernel<<<1, kThreads, 0, octet::cuda::native_stream(stream)>>>(call, to);
  octet::cuda::check_launch("find_documents");
}

}  // namespace octet::kernels::cuda

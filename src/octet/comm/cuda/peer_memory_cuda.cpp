#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "octet/comm/cuda/peer_memory.h"
#include "octet/device/cuda/cuda.h"

namespace octet::comm {
namespace {

// What a rank tells the others about its memory.
struct Card {
  char host[64] = {};
  std::int64_t process = 0;
  cudaIpcMemHandle_t memory{}, fences{};
  bool given = false;  // whether the handles are valid
};

Card own_card(std::byte* memory, std::byte* fences) {
  Card card;
  gethostname(card.host, sizeof card.host - 1);
  card.process = getpid();
  card.given = fences && cudaIpcGetMemHandle(&card.memory, memory) == cudaSuccess &&
               cudaIpcGetMemHandle(&card.fences, fences) == cudaSuccess;
  if (!card.given) cudaGetLastError();  // clears the error; the group then uses NCCL
  return card;
}

std::byte* open_handle(const cudaIpcMemHandle_t& handle) {
  void* mapped = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess);
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess ? static_cast<std::byte*>(mapped) : nullptr;
}

// What a stream writes to memory and waits for there, in this order.
class MemoryOps {
 public:
  void write(std::byte* address, std::uint32_t value) {
    CUstreamBatchMemOpParams op{};
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = reinterpret_cast<CUdeviceptr>(address);
    op.writeValue.value = value;
    op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // after everything that the stream has written
    ops_.push_back(op);
  }
  // Until the number at `address` is `value` or a later one, in arithmetic modulo 2^32.
  void wait(std::byte* address, std::uint32_t value) {
    CUstreamBatchMemOpParams op{};
    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op.waitValue.address = reinterpret_cast<CUdeviceptr>(address);
    op.waitValue.value = value;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops_.push_back(op);
  }
  // Returns whether the driver and the GPU can do it.
  bool enqueue(cudaStream_t native) {
    // Found at run time, so that the program starts on machines without a driver.
    static const auto function = [] {
      void* found = nullptr;
      cudaDriverEntryPointQueryResult result{};
      const cudaError_t code = cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, 12000, cudaEnableDefault, &result);
      return code == cudaSuccess ? reinterpret_cast<decltype(&cuStreamBatchMemOp)>(found) : nullptr;
    }();
    return function && function(native, static_cast<unsigned>(ops_.size()), ops_.data(), 0) == CUDA_SUCCESS;
  }

 private:
  std::vector<CUstreamBatchMemOpParams> ops_;
};

std::byte* fence_of(std::byte* fences, std::size_t rank) { return fences + rank * sizeof(std::uint32_t); }

// What rank `rank` writes to see whether its writes arrive. No fence has such a number so early.
std::uint32_t trial_of(std::size_t rank) { return 0x7A000000u + static_cast<std::uint32_t>(rank); }

std::vector<Card> exchange(Stream& stream, Arena& scratch, Group& group, const Card& own) {
  const ArenaScope scope(scratch);
  const auto bytes = static_cast<std::int64_t>(sizeof own);
  const Tensor all = allocate(scratch, DType::u8, {group.size() * bytes});
  const Tensor mine = all.slice_rows(group.rank() * bytes, (group.rank() + 1) * bytes);
  stream.copy_to_device(mine.data, &own, sizeof own);
  group.all_gather(stream, scratch, {.x = mine, .y = all});
  std::vector<Card> cards(static_cast<std::size_t>(group.size()));
  stream.copy_to_host(cards.data(), all.data, all.bytes());
  stream.synchronize();
  group.check();
  return cards;
}

// Whether `says` is false on all ranks.
bool nobody(Stream& stream, Arena& scratch, Group& group, bool says) {
  const ArenaScope scope(scratch);
  const Tensor vote = allocate(scratch, DType::f32, {1});
  float value = says ? 1.0f : 0.0f;
  stream.copy_to_device(vote.data, &value, sizeof value);
  group.all_reduce(stream, scratch, {.x = vote, .reduction = Reduction::max});
  stream.copy_to_host(&value, vote.data, sizeof value);
  stream.synchronize();
  group.check();
  return value == 0.0f;
}

// Copies a tensor to one of the same shape. Does nothing if both are the same memory.
void copy(cudaStream_t native, const Tensor& from, const Tensor& to) {
  if (from.data == to.data || from.elements() == 0) return;
  if (from.contiguous() && to.contiguous()) {
    cuda::check(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, native), "cudaMemcpyAsync");
    return;
  }
  const auto pitch = [](const Tensor& x) { return static_cast<std::size_t>(x.row_stride) * size_of(x.dtype); };
  cuda::check(
      cudaMemcpy2DAsync(to.data, pitch(to), from.data, pitch(from), static_cast<std::size_t>(to.cols()) * size_of(to.dtype),
                        static_cast<std::size_t>(to.rows()), cudaMemcpyDeviceToDevice, native),
      "cudaMemcpy2DAsync");
}

}  // namespace

PeerMemory::PeerMemory(Stream& stream, Arena& scratch, Group& group, void* memory, std::size_t bytes)
    : rank_(group.rank()), own_(static_cast<std::byte*>(memory)), bytes_(bytes) {
  void* fences = nullptr;
  const std::size_t size = static_cast<std::size_t>(group.size()) * sizeof(std::uint32_t);
  cuda::check(cudaMalloc(&fences, size), "cudaMalloc");
  own_fences_ = static_cast<std::byte*>(fences);
  cuda::check(cudaMemsetAsync(fences, 0, size, cuda::native_stream(stream)), "cudaMemsetAsync");
  cuda::check(cudaStreamCreateWithFlags(&ends_waits_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const Card own = own_card(own_, own_fences_);
  bool failed = false;
  int rank = 0;
  for (const Card& card : exchange(stream, scratch, group, own)) {
    Peer& peer = peers_.emplace_back();
    if (rank++ == rank_) {
      peer.memory = own_;
      peer.fences = own_fences_;
      continue;
    }
    // Threads of one process do not share memory this way. The driver would map all memory for all threads, and an allocation by
    // one thread would wait for work that waits for that thread.
    const bool elsewhere = std::strcmp(card.host, own.host) == 0 && card.process != own.process;
    if (elsewhere && card.given) {
      peer.memory = open_handle(card.memory);
      peer.fences = open_handle(card.fences);
    }
    const bool opened = peer.memory && peer.fences;
    MemoryOps trial;
    const auto self = static_cast<std::size_t>(rank_);
    if (opened) trial.write(fence_of(peer.fences, self), trial_of(self));
    failed = failed || !opened || !trial.enqueue(cuda::native_stream(stream));
  }
  reachable_ = nobody(stream, scratch, group, failed);
  if (reachable_) {
    std::vector<std::uint32_t> written(peers_.size());
    stream.copy_to_host(written.data(), fences, size);
    stream.synchronize();
    for (std::size_t peer = 0; peer < written.size(); ++peer) {
      failed = failed || (peer != static_cast<std::size_t>(rank_) && written[peer] != trial_of(peer));
    }
    cuda::check(cudaMemsetAsync(fences, 0, size, cuda::native_stream(stream)), "cudaMemsetAsync");
    reachable_ = nobody(stream, scratch, group, failed);
  }
  if (!reachable_) close();
}

PeerMemory::~PeerMemory() {
  end_waits();
  close();
  cudaFree(own_fences_);
  cudaStreamDestroy(ends_waits_);
}

void PeerMemory::close() noexcept {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (rank == static_cast<std::size_t>(rank_)) continue;
    if (peers_[rank].memory) cudaIpcCloseMemHandle(peers_[rank].memory);
    if (peers_[rank].fences) cudaIpcCloseMemHandle(peers_[rank].fences);
  }
  peers_.clear();
}

bool PeerMemory::holds(const Tensor& x) const {
  const auto* begin = static_cast<const std::byte*>(x.data);
  const std::size_t bytes =
      x.rows() > 0 ? static_cast<std::size_t>((x.rows() - 1) * x.row_stride + x.cols()) * size_of(x.dtype) : 0;
  return begin >= own_ && begin + bytes <= own_ + bytes_;
}

void PeerMemory::fetch(cudaStream_t native, const Fetch& op) const {
  Tensor theirs = op.x;
  theirs.data = peers_[static_cast<std::size_t>(op.from)].memory + (static_cast<const std::byte*>(op.x.data) - own_);
  copy(native, theirs, op.y);
}

void PeerMemory::fence(cudaStream_t native) {
  const auto own = static_cast<std::size_t>(rank_);
  const std::uint32_t number = ++fence_;
  MemoryOps ops;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peer != own) ops.write(fence_of(peers_[peer].fences, own), number);
  }
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    if (peer != own) ops.wait(fence_of(own_fences_, peer), number);
  }
  require(ops.enqueue(native), "cuStreamBatchMemOp failed, although it worked before");
}

void PeerMemory::end_waits() noexcept {
  constexpr std::uint32_t kAhead = std::uint32_t{1} << 30;  // later than every fence that is enqueued
  MemoryOps ops;
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) ops.write(fence_of(own_fences_, peer), fence_ + kAhead);
  ops.enqueue(ends_waits_);
}

}  // namespace octet::comm

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
  cudaIpcMemHandle_t handle{};
  bool given = false;  // whether `handle` is valid
};

Card own_card(std::byte* memory) {
  Card card;
  gethostname(card.host, sizeof card.host - 1);
  card.process = getpid();
  card.given = cudaIpcGetMemHandle(&card.handle, memory) == cudaSuccess;
  if (!card.given) cudaGetLastError();  // clears the error; the group then uses NCCL
  return card;
}

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
  const Card own = own_card(own_);
  bool failed = false;
  int rank = 0;
  for (const Card& card : exchange(stream, scratch, group, own)) {
    Peer& peer = peers_.emplace_back();
    if (rank++ == rank_) {
      peer.memory = own_;
      continue;
    }
    // Threads of one process do not share memory this way. The driver would map all memory for all threads, and an allocation by
    // one thread would wait for work that waits for that thread.
    const bool elsewhere = std::strcmp(card.host, own.host) == 0 && card.process != own.process;
    void* mapped = nullptr;
    peer.opened =
        elsewhere && card.given && cudaIpcOpenMemHandle(&mapped, card.handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    peer.memory = static_cast<std::byte*>(mapped);
    failed = failed || !peer.opened;
  }
  cudaGetLastError();  // clears the error of memory that cannot be opened
  reachable_ = nobody(stream, scratch, group, failed);
  if (!reachable_) close();
}

PeerMemory::~PeerMemory() { close(); }

void PeerMemory::close() noexcept {
  for (Peer& peer : peers_) {
    if (peer.opened) cudaIpcCloseMemHandle(peer.memory);
  }
  peers_.clear();
}

bool PeerMemory::holds(const Tensor& x) const {
  const auto* begin = static_cast<const std::byte*>(x.data);
  const std::size_t bytes =
      x.rows() > 0 ? static_cast<std::size_t>((x.rows() - 1) * x.row_stride + x.cols()) * size_of(x.dtype) : 0;
  return begin >= own_ && begin + bytes <= own_ + bytes_;
}

template <class Visit>
void PeerMemory::each_peer(const Tensor& x, Visit&& visit) const {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(x.data) - own_);
  const int size = static_cast<int>(peers_.size());
  for (int i = 1; i <= size; ++i) {
    const int peer = (rank_ + i) % size;
    Tensor theirs = x;
    theirs.data = peers_[static_cast<std::size_t>(peer)].memory + offset;
    visit(peer, theirs);
  }
}

void PeerMemory::fetch(cudaStream_t native, const AllGather& op) const {
  each_peer(op.x, [&](int peer, const Tensor& theirs) {
    copy(native, theirs, {behind(op.y.data, static_cast<std::size_t>(peer) * op.x.bytes()), op.x.dtype, op.x.shape});
  });
}

void PeerMemory::fetch(cudaStream_t native, const Fetch& op) const {
  each_peer(op.x, [&](int peer, const Tensor& theirs) { copy(native, theirs, op.y[static_cast<std::size_t>(peer)]); });
}

}  // namespace octet::comm

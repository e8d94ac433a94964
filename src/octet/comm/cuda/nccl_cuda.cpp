#include <memory>
#include <utility>

#include "octet/comm/cuda/communicator.h"
#include "octet/comm/cuda/peer_memory.h"
#include "octet/comm/nccl.h"
#include "octet/device/cuda/cuda.h"

namespace octet::comm {
namespace {

struct Reducing {
  ncclDataType_t type;
  ncclRedOp_t op;
};

Reducing reducing(const Tensor& x, Reduction reduction) {
  if (reduction == Reduction::max) {
    require(x.dtype == DType::f32, "NCCL: max reduces F32 only, not ", name_of(x.dtype));
    return {ncclUint32, ncclMax};
  }
  return {x.dtype == DType::bf16 ? ncclBfloat16 : x.dtype == DType::f32 ? ncclFloat32 : ncclFloat64, ncclSum};
}

std::size_t count_of(const Tensor& x) { return static_cast<std::size_t>(x.elements()); }

// One element of device memory for the sum that implements a barrier.
// Like NCCL's own buffers, it is not counted as the program's memory.
class BarrierElement {
 public:
  explicit BarrierElement(int device) {
    cuda::check(cudaSetDevice(device), "cudaSetDevice");
    cuda::check(cudaMalloc(&memory_, sizeof(float)), "cudaMalloc");
  }
  ~BarrierElement() { cudaFree(memory_); }
  BarrierElement(const BarrierElement&) = delete;
  BarrierElement& operator=(const BarrierElement&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

class NcclGroup final : public Group {
 public:
  NcclGroup(Device& device, const GroupOptions& options)
      : Group(options.name, options.rank, options.size),
        token_(cuda::index_of(device)),
        communicator_(cuda::index_of(device), options) {
    take_page();
    communicator_.connect();
  }
  void check() override { communicator_.check(); }
  void share(Stream& stream, Arena& scratch, void* memory, std::size_t bytes) override {
    close_shared();
    auto shared = std::make_unique<PeerMemory>(stream, scratch, *this, memory, bytes);
    if (!shared->reachable()) return barrier(stream);  // no rank frees what another has mapped
    shared_ = std::move(shared);
    communicator_.while_failed([this] { shared_->end_waits(); });
  }
  bool reaches(const Tensor& x) const override { return shared_ && shared_->holds(x); }
  void unshare(Stream& stream) override {
    if (!shared_) return;
    stream.synchronize();
    shared_->close();
    barrier(stream);
    close_shared();
  }

 private:
  using Calls = Communicator::Calls;

  void run(Stream& stream, const AllGather& op) override {
    if (op.x.elements() == 0) return;
    const cudaStream_t native = cuda::native_stream(stream);
    enqueue("all_gather", native,
            {[=](ncclComm_t group) { return ncclAllGather(op.x.data, op.y.data, op.x.bytes(), ncclUint8, group, native); }});
  }
  void run(Stream& stream, const ReduceScatter& op, const Tensor&) override {
    if (op.y.elements() == 0) return;
    const cudaStream_t native = cuda::native_stream(stream);
    const Reducing how = reducing(op.x, op.reduction);
    enqueue("reduce_scatter", native, {[=](ncclComm_t group) {
              return ncclReduceScatter(op.x.data, op.y.data, count_of(op.y), how.type, how.op, group, native);
            }});
  }
  void run(Stream& stream, const AllReduce& op, const Tensor&) override {
    if (op.x.elements() == 0) return;
    const cudaStream_t native = cuda::native_stream(stream);
    const Reducing how = reducing(op.x, op.reduction);
    enqueue("all_reduce", native, {[=](ncclComm_t group) {
              return ncclAllReduce(op.x.data, op.x.data, count_of(op.x), how.type, how.op, group, native);
            }});
  }
  // A rank's shard for itself is also sent through NCCL.
  void run(Stream& stream, const AllToAll& op) override {
    const cudaStream_t native = cuda::native_stream(stream);
    const std::size_t size_of_one = size_of(op.x.dtype);
    const std::uint8_t* from = op.x.as_bytes();
    std::uint8_t* to = op.y.as_bytes();
    Calls calls;
    for (int peer = 0; peer < size(); ++peer) {
      const auto r = static_cast<std::size_t>(peer);
      const std::size_t sent = static_cast<std::size_t>(op.sent[r]) * size_of_one;
      const std::size_t received = static_cast<std::size_t>(op.received[r]) * size_of_one;
      if (sent > 0) calls.push_back([=](ncclComm_t group) { return ncclSend(from, sent, ncclUint8, peer, group, native); });
      if (received > 0) calls.push_back([=](ncclComm_t group) { return ncclRecv(to, received, ncclUint8, peer, group, native); });
      from += sent;
      to += received;
    }
    if (!calls.empty()) enqueue("all_to_all", native, std::move(calls));
  }
  void run(Stream& stream, const Broadcast& op) override {
    if (op.x.elements() == 0) return;
    const cudaStream_t native = cuda::native_stream(stream);
    enqueue("broadcast", native, {[=](ncclComm_t group) {
              return ncclBroadcast(op.x.data, op.x.data, op.x.bytes(), ncclUint8, op.root, group, native);
            }});
  }
  // A message in shared memory is fetched by its receiver between two fences: the first one comes when the message is complete,
  // the second one when it has been fetched. NCCL's kernels would hold multiprocessors while they wait for the other rank.
  bool fetches(const Tensor& message) const { return size() == 2 && reaches(message); }
  void run(Stream& stream, const Send& op) override {
    if (fetches(op.x)) {
      fence(stream);
      return fence(stream);
    }
    const cudaStream_t native = cuda::native_stream(stream);
    enqueue("send", native,
            {[=](ncclComm_t group) { return ncclSend(op.x.data, op.x.bytes(), ncclUint8, op.to, group, native); }});
  }
  void run(Stream& stream, const Receive& op) override {
    if (fetches(op.y)) {
      fence(stream);
      run(stream, Fetch{.x = op.y, .y = op.y, .from = op.from});
      return fence(stream);
    }
    const cudaStream_t native = cuda::native_stream(stream);
    enqueue("receive", native,
            {[=](ncclComm_t group) { return ncclRecv(op.y.data, op.y.bytes(), ncclUint8, op.from, group, native); }});
  }
  void run(Stream& stream, const Fetch& op) override { shared_->fetch(cuda::native_stream(stream), op); }
  void run_fence(Stream& stream) override {
    if (!shared_) return;
    const cudaStream_t native = cuda::native_stream(stream);
    shared_->fence(native);
    communicator_.follow("fence", native);
  }
  void close_shared() {
    communicator_.while_failed(nullptr);
    shared_.reset();
  }
  void run_barrier(Stream& stream) override {
    require(!batching_, "group ", name(), ": a barrier in a batch");
    meet("barrier", stream);
    stream.synchronize();
    communicator_.check();
  }
  void meet(const char* op, Stream& stream) {
    const cudaStream_t native = cuda::native_stream(stream);
    enqueue(op, native, {[=, this](ncclComm_t group) {
              return ncclAllReduce(token_.get(), token_.get(), 1, ncclUint32, ncclSum, group, native);
            }});
  }

  // The operations of a batch are collected until its end, so that the communicator is not locked while the caller's code runs.
  void begin_batch() override {
    require(!batching_, "group ", name(), ": a batch in a batch");
    batching_ = true;
  }
  void end_batch() noexcept override {
    batching_ = false;
    const Calls calls = std::exchange(batch_, {});
    if (calls.empty()) return;
    try {
      communicator_.launch(batch_op_, calls, batch_stream_);
    } catch (const Error&) {  // the communicator keeps the error for the next call
    }
  }
  void drop_batch() noexcept override {
    batching_ = false;
    batch_.clear();
  }

  void enqueue(const char* op, cudaStream_t native, Calls calls) {
    if (!batching_) return communicator_.launch(op, calls, native);
    batch_op_ = op;
    batch_stream_ = native;  // one stream suffices: NCCL completes a launch for all its streams together
    for (auto& call : calls) batch_.push_back(std::move(call));
  }

  BarrierElement token_;
  std::unique_ptr<PeerMemory> shared_;  // null if no memory is shared. The communicator, which may end its waits, goes first.
  Communicator communicator_;
  bool batching_ = false;
  Calls batch_;
  const char* batch_op_ = nullptr;  // the batch's last operation
  cudaStream_t batch_stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(Device& device, const GroupOptions& options) {
  if (options.size == 1) return make_silent_group(options.name);
  return std::make_unique<NcclGroup>(device, options);
}

std::string nccl_version() {
  int version = 0;  // 22809 is version 2.28.9
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
  return concat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace octet::comm

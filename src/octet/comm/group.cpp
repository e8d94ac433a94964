#include "octet/comm/group.h"

#include <numeric>
#include <span>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/math.h"

namespace octet::comm {

using telemetry::Exchange;

namespace {

void check_flat(const char* op, const char* operand, const Tensor& x) {
  require(x.contiguous(), op, ": ", operand, " ", x.shape, " is not contiguous");
}

void check_reducible(const char* op, const Tensor& x) {
  check_flat(op, "x", x);
  require(x.dtype == DType::bf16 || x.dtype == DType::f32 || x.dtype == DType::f64, op, ": cannot reduce ", name_of(x.dtype));
}

// Checks that `whole` has `size` times the elements of `part`.
void check_parts(const char* op, const Tensor& part, const Tensor& whole, int size) {
  require(part.dtype == whole.dtype, op, ": ", name_of(part.dtype), " and ", name_of(whole.dtype));
  require(whole.elements() == size * part.elements(), op, ": ", whole.elements(), " elements are not ", size, " times ",
          part.elements());
}

class SilentGroup final : public Group {
 public:
  SilentGroup(std::string name, int rank, int size, bool reach) : Group(std::move(name), rank, size), reach_(reach) {}
  void share(Stream&, Arena&, void*, std::size_t) override { shares_ = true; }
  bool reaches(const Tensor&) const override { return reach_ && shares_; }
  void unshare(Stream&) override { shares_ = false; }

 private:
  [[noreturn]] void refuse() const { fail(ExitCode::internal, "group ", name(), " of ", size(), " ranks has no transport"); }
  void run(Stream&, const AllGather&) override { refuse(); }
  void run(Stream&, const ReduceScatter&, const Tensor&) override { refuse(); }
  void run(Stream&, const AllReduce&, const Tensor&) override { refuse(); }
  void run(Stream&, const AllToAll&) override { refuse(); }
  void run(Stream&, const Broadcast&) override { refuse(); }
  void run(Stream&, const Send&) override { refuse(); }
  void run(Stream&, const Receive&) override { refuse(); }
  void run_barrier(Stream&) override { refuse(); }

  const bool reach_;
  bool shares_ = false;
};

}  // namespace

Group::Group(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {
  require(size >= 1 && rank >= 0 && rank < size, "group ", name_, ": rank ", rank, " of ", size);
}

Group::~Group() {
  if (page_) page_->clear();
}

// The page of "shard of ranks 0, 1" shows "shard". A checksum of the whole name tells this group from others of its axis.
void Group::take_page() {
  page_ = &telemetry::own_page().group(name_.substr(0, name_.find(" of rank")));
  page_->members = static_cast<std::uint32_t>(checksum(std::as_bytes(std::span(name_))));
}

std::vector<int> Group::ring() const {
  std::vector<int> ranks;
  for (int distance = 1; distance <= size_; ++distance) ranks.push_back((rank_ + distance) % size_);
  return ranks;
}

bool Group::begin(Stream& stream, Exchange op, double bytes) {
  if (size_ == 1) return false;
  stream.count(telemetry::name_of(op).data(), {.bytes = bytes, .group = name_, .joins = batched_ > 0});
  if (batched_ >= 0) ++batched_;
  traffic_.bytes += bytes;
  ++traffic_.messages;
  if (stream.kind() == DeviceKind::meta) return false;
  if (page_) telemetry::own_page().begin(*page_, op, bytes);
  return true;
}

template <class... Operands>
void Group::exchange(Stream& stream, const Operands&... operands) {
  stream.begin_wait();
  if (stream.kind() == DeviceKind::cpu) {
    stream.call([this, &stream, operands...] { run(stream, operands...); });
  } else {
    run(stream, operands...);
  }
  stream.end_wait();
}

// NCCL needs no such memory.
Tensor Group::parts_for(Arena& scratch, Stream& stream, const Tensor& x) const {
  if (size_ == 1 || stream.target() == DeviceKind::cuda) return {};
  return allocate(scratch, x.dtype, {size_, ceil_div(x.elements(), size_)});
}

void Group::all_gather(Stream& stream, Arena&, const AllGather& op) {
  check_flat("all_gather", "x", op.x);
  check_flat("all_gather", "y", op.y);
  check_parts("all_gather", op.x, op.y, size_);
  const bool sends = begin(stream, Exchange::all_gather, static_cast<double>(op.y.bytes() - op.x.bytes()));
  if (sends) return exchange(stream, op);
  if (size_ == 1 && op.y.data != op.x.data) stream.copy(op.y.data, op.x.data, op.x.bytes());
}

void Group::reduce_scatter(Stream& stream, Arena& scratch, const ReduceScatter& op) {
  check_reducible("reduce_scatter", op.x);
  check_flat("reduce_scatter", "y", op.y);
  check_parts("reduce_scatter", op.y, op.x, size_);
  const ArenaScope scope(scratch);
  const Tensor parts = parts_for(scratch, stream, op.x);
  const bool sends = begin(stream, Exchange::reduce_scatter, static_cast<double>(op.x.bytes() - op.y.bytes()));
  if (sends) return exchange(stream, op, parts);
  if (size_ == 1 && op.y.data != op.x.data) stream.copy(op.y.data, op.x.data, op.x.bytes());
}

void Group::all_reduce(Stream& stream, Arena& scratch, const AllReduce& op) {
  check_reducible("all_reduce", op.x);
  const ArenaScope scope(scratch);
  const Tensor parts = parts_for(scratch, stream, op.x);
  if (begin(stream, Exchange::all_reduce, 2.0 * (size_ - 1) / size_ * static_cast<double>(op.x.bytes())))
    exchange(stream, op, parts);
}

void Group::all_to_all(Stream& stream, Arena&, const AllToAll& op) {
  check_flat("all_to_all", "x", op.x);
  check_flat("all_to_all", "y", op.y);
  require(op.x.dtype == op.y.dtype, "all_to_all: ", name_of(op.x.dtype), " and ", name_of(op.y.dtype));
  AllToAll whole = op;
  const auto complete = [&](std::vector<std::int64_t>& counts, const Tensor& x) {
    if (counts.empty()) {
      require(x.elements() % size_ == 0, "all_to_all: ", x.elements(), " elements in ", size_, " equal parts");
      counts.assign(static_cast<std::size_t>(size_), x.elements() / size_);
    }
    require(counts.size() == static_cast<std::size_t>(size_) &&
                std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == x.elements(),
            "all_to_all: the parts of ", x.elements(), " elements do not add up");
  };
  complete(whole.sent, op.x);
  complete(whole.received, op.y);
  const auto self = static_cast<std::size_t>(rank_);
  require(whole.sent[self] == whole.received[self], "all_to_all: ", whole.sent[self], " elements to itself, ",
          whole.received[self], " from itself");
  const double bytes = static_cast<double>(op.x.elements() - whole.sent[self]) * static_cast<double>(size_of(op.x.dtype));
  if (begin(stream, Exchange::all_to_all, bytes)) return exchange(stream, whole);
  if (size_ == 1) stream.copy(op.y.data, op.x.data, op.x.bytes());
}

void Group::broadcast(Stream& stream, const Broadcast& op) {
  check_flat("broadcast", "x", op.x);
  require(op.root >= 0 && op.root < size_, "broadcast from rank ", op.root, " of ", size_);
  if (begin(stream, Exchange::broadcast, op.root == rank_ ? (size_ - 1) * static_cast<double>(op.x.bytes()) : 0))
    exchange(stream, op);
}

void Group::fetch(Stream& stream, const Fetch& op) {
  require(reaches(op.x), "fetch: x is not in shared memory");
  require(op.from >= 0 && op.from < size_, "fetch from rank ", op.from, " of ", size_);
  require(op.y.dtype == op.x.dtype && op.y.rows() == op.x.rows() && op.y.cols() == op.x.cols(), "fetch: ", name_of(op.x.dtype),
          op.x.shape, " into ", name_of(op.y.dtype), op.y.shape);
  if (begin(stream, Exchange::fetch, op.from == rank_ ? 0 : static_cast<double>(op.x.bytes()))) exchange(stream, op);
}

void Group::send(Stream& stream, const Send& op) {
  check_flat("send", "x", op.x);
  require(op.to >= 0 && op.to < size_ && op.to != rank_, "send to rank ", op.to, " of ", size_, " by rank ", rank_);
  if (begin(stream, Exchange::send, static_cast<double>(op.x.bytes()))) exchange(stream, op);
}

void Group::receive(Stream& stream, const Receive& op) {
  check_flat("receive", "y", op.y);
  require(op.from >= 0 && op.from < size_ && op.from != rank_, "receive from rank ", op.from, " of ", size_, " by rank ", rank_);
  if (begin(stream, Exchange::receive, 0)) exchange(stream, op);
}

void Group::fence(Stream& stream) {
  if (size_ == 1 || stream.kind() == DeviceKind::meta) return;
  if (stream.kind() == DeviceKind::cpu) return stream.call([this, &stream] { run_fence(stream); });
  run_fence(stream);
}

// By default, groups send and need no shared memory.
void Group::share(Stream&, Arena&, void*, std::size_t) {}

void Group::barrier(Stream& stream) {
  if (begin(stream, Exchange::barrier, 0)) run_barrier(stream);
}

Batch::Batch(Group& group, Stream& stream) : group_(group), stream_(stream), exceptions_(std::uncaught_exceptions()) {
  group_.batched_ = 0;
  group_.begin_batch();
  if (group_.size() > 1) stream_.begin_wait();
}

Batch::~Batch() {
  const bool failed = std::uncaught_exceptions() > exceptions_;
  failed ? group_.drop_batch() : group_.end_batch();
  group_.batched_ = -1;
  if (failed || group_.size() == 1) return;
  try {
    stream_.end_wait();
  } catch (const Error&) {  // the device has failed; its next call reports this as well
  }
}

std::unique_ptr<Group> make_silent_group(std::string name, int rank, int size, bool reach) {
  return std::make_unique<SilentGroup>(std::move(name), rank, size, reach);
}

}  // namespace octet::comm

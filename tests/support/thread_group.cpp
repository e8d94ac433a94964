#include "support/thread_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "octet/base/require.h"
#include "octet/comm/reduce_cpu.h"

namespace octet::testing {

constexpr std::chrono::seconds kTimeout{60};

// The place where the ranks of one group wait for each other and show each other their operands.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(int size) : shown(static_cast<std::size_t>(size)), shared(shown.size()), size_(size) {}

  void barrier(const std::string& group) {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = round_;
    if (++waiting_ == size_) {
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait_for(lock, kTimeout, [&] { return round_ != round || left_; });
    demand(round_ != round, ExitCode::peer, "group ", group, ": a rank has left, or does not come");
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    changed_.notify_all();
  }

  // An operand of the current operation. offsets[r] is the first byte of the part for rank r.
  struct Shown {
    const std::uint8_t* bytes = nullptr;
    const std::vector<std::size_t>* offsets = nullptr;
  };
  // Messages from one rank to another, in their order. A message ends when the receiver has copied it.
  struct Message {
    const std::uint8_t* bytes = nullptr;
    bool taken = false;
  };
  using Route = std::pair<int, int>;  // from, to
  std::shared_ptr<Message> send(Route route, const std::uint8_t* bytes) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    return messages_[route].emplace_back(std::make_shared<Message>(Message{.bytes = bytes}));
  }
  void finish_send(const std::string& group, const Message& message) {
    std::unique_lock lock(mutex_);
    demand(changed_.wait_for(lock, kTimeout, [&] { return message.taken || left_; }) && message.taken, ExitCode::peer, "group ",
           group, ": nobody receives a message");
  }
  void receive(const std::string& group, Route route, std::uint8_t* to, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    auto& messages = messages_[route];
    demand(changed_.wait_for(lock, kTimeout, [&] { return !messages.empty() || left_; }) && !messages.empty(), ExitCode::peer,
           "group ", group, ": no message comes");
    std::memcpy(to, messages.front()->bytes, bytes);
    messages.front()->taken = true;
    messages.pop_front();
    changed_.notify_all();
  }

  // By rank. Each rank writes its own entry before a barrier and reads the others' after it.
  std::vector<Shown> shown;
  std::vector<std::uint8_t*> shared;

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  std::uint64_t round_ = 0;
  bool left_ = false;
  std::map<Route, std::deque<std::shared_ptr<Message>>> messages_;
};

std::shared_ptr<ThreadMeeting> ThreadMeetings::of(const std::string& group, int size) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<ThreadMeeting>& meeting = meetings_[group];
  if (!meeting) meeting = std::make_shared<ThreadMeeting>(size);
  return meeting;
}

namespace {

class ThreadGroup final : public comm::Group {
 public:
  ThreadGroup(ThreadMeetings& meetings, const std::string& name, int rank, int size)
      : Group(name, rank, size), meetings_(meetings), meeting_(meetings.of(name, size)) {
    wait();
  }
  ~ThreadGroup() override {
    meeting_->leave();
    meetings_.add_fetched(fetched_);
  }

  void share(Stream&, Arena&, void* memory, std::size_t bytes) override {
    if (!meetings_.reach()) return;
    meeting_->shared[own()] = static_cast<std::uint8_t*>(memory);
    shared_bytes_ = bytes;
    wait();
  }
  bool reaches(const Tensor& x) const override {
    const std::uint8_t* begin = meeting_->shared[own()];
    return x.as_bytes() >= begin && x.as_bytes() < begin + shared_bytes_;
  }
  void unshare(Stream& stream) override {
    if (!meetings_.reach()) return;
    stream.synchronize();
    shared_bytes_ = 0;
    wait();
  }

 private:
  using Sizes = std::vector<std::size_t>;  // in bytes, by rank

  void run(Stream&, const comm::AllGather& op) override { exchange(op.x, Sizes(ranks(), 0), op.y, Sizes(ranks(), op.x.bytes())); }
  void run(Stream&, const comm::ReduceScatter& op, const Tensor&) override { reduce(op.x, op.y.elements(), op.y, op.reduction); }
  void run(Stream&, const comm::AllReduce& op, const Tensor& parts) override {
    const std::int64_t part = parts.shape[1], count = op.x.elements();
    const Tensor flat = op.x.reshape({count});
    const auto begin_of = [&](std::int64_t r) { return std::min(count, r * part); };
    const Tensor mine = flat.slice_rows(begin_of(rank()), begin_of(rank() + 1));
    reduce(flat, part, mine, op.reduction);
    Sizes sizes;
    for (int r = 0; r < size(); ++r) {
      sizes.push_back(static_cast<std::size_t>(begin_of(r + 1) - begin_of(r)) * size_of(flat.dtype));
    }
    exchange(mine, Sizes(ranks(), 0), flat, sizes);
  }
  void run(Stream&, const comm::AllToAll& op) override {
    Sizes begins, sizes;
    std::size_t begin = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      begins.push_back(begin * size_of(op.x.dtype));
      begin += static_cast<std::size_t>(op.sent[r]);
      sizes.push_back(static_cast<std::size_t>(op.received[r]) * size_of(op.x.dtype));
    }
    exchange(op.x, begins, op.y, sizes);
  }
  void run(Stream&, const comm::Broadcast& op) override {
    Sizes sizes(ranks(), 0);
    sizes[static_cast<std::size_t>(op.root)] = op.x.bytes();
    exchange(op.x, Sizes(ranks(), 0), op.x, sizes);
  }
  void run(Stream&, const comm::Fetch& op) override {
    ++fetched_;
    if (op.from == rank() && op.x.data == op.y.data) return;
    const std::size_t width = size_of(op.x.dtype);
    const std::uint8_t* theirs = meeting_->shared[static_cast<std::size_t>(op.from)] + (op.x.as_bytes() - meeting_->shared[own()]);
    for (std::int64_t row = 0; row < op.y.rows(); ++row) {
      std::memcpy(op.y.as_bytes() + static_cast<std::size_t>(row * op.y.row_stride) * width,
                  theirs + static_cast<std::size_t>(row * op.x.row_stride) * width,
                  static_cast<std::size_t>(op.y.cols()) * width);
    }
  }
  void run(Stream& stream, const comm::Send& op) override {
    stream.finish_later([this, message = meeting_->send({rank(), op.to}, op.x.as_bytes())] {
      meeting_->finish_send(name(), *message);
    });
  }
  void run(Stream& stream, const comm::Receive& op) override {
    std::memset(op.y.as_bytes(), 0xff, op.y.bytes());  // the message may arrive at any time from now on
    stream.finish_later([this, op] { meeting_->receive(name(), {op.from, rank()}, op.y.as_bytes(), op.y.bytes()); });
  }
  void run_barrier(Stream& stream) override {
    stream.synchronize();
    wait();
  }
  void run_fence(Stream&) override {
    if (meetings_.reach()) wait();
  }

  std::size_t own() const { return static_cast<std::size_t>(rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  void wait() { meeting_->barrier(name()); }

  // Each rank r sends sizes[r] bytes to this rank. They begin at begins[own rank] in the x of rank r, and are stored in y one
  // after the other.
  void exchange(const Tensor& x, const Sizes& begins, const Tensor& y, const Sizes& sizes) {
    meeting_->shown[own()] = {x.as_bytes(), &begins};
    wait();
    std::uint8_t* to = y.as_bytes();
    for (std::size_t r = 0; r < ranks(); ++r) {
      const ThreadMeeting::Shown& theirs = meeting_->shown[r];
      const std::uint8_t* const from = theirs.bytes + (*theirs.offsets)[own()];
      if (from != to && sizes[r] > 0) std::memcpy(to, from, sizes[r]);
      to += sizes[r];
    }
    wait();
  }
  // y = the reduction of this rank's part. Part r consists of the elements from r * part on, at most `part` of them. The versions
  // of the ranks get memory of their own, because that of the group's caller is free again when the call returns, and streams of
  // a DeferredDevice would overwrite it. NCCL needs no such memory.
  void reduce(const Tensor& x, std::int64_t part, const Tensor& y, comm::Reduction reduction) {
    const std::size_t width = size_of(x.dtype);
    Sizes begins;
    for (std::int64_t r = 0; r < size(); ++r)
      begins.push_back(static_cast<std::size_t>(std::min(x.elements(), r * part)) * width);
    std::vector<std::uint8_t> memory(ranks() * y.bytes());
    const Tensor parts(memory.data(), x.dtype, {size(), y.elements()});
    exchange(x, begins, parts, Sizes(ranks(), y.bytes()));
    comm::reduce_parts(parts, size(), y, reduction);
  }

  ThreadMeetings& meetings_;
  const std::shared_ptr<ThreadMeeting> meeting_;
  std::size_t shared_bytes_ = 0;
  std::int64_t fetched_ = 0;
};

}  // namespace

std::unique_ptr<comm::Group> make_thread_group(ThreadMeetings& meetings, const std::string& name, int rank, int size) {
  if (size == 1) return comm::make_silent_group(name);
  return std::make_unique<ThreadGroup>(meetings, name, rank, size);
}

}  // namespace octet::testing

#include "octet/comm/gloo.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "octet/base/math.h"
#include "octet/base/threads.h"
#include "octet/comm/reduce_cpu.h"

namespace octet::comm {
namespace {

constexpr const char* kLoopback = "127.0.0.1";         // this version's ranks on CPUs are of one host
constexpr std::chrono::milliseconds kWatchEvery{100};  // how soon a lost rank is noticed

class SharedStore final : public gloo::rendezvous::Store {
 public:
  explicit SharedStore(const GroupOptions& options) : options_(options) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    options_.set(path(key), std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = options_.get(path(key));
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) options_.get(path(key));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  std::string path(const std::string& key) const { return options_.name + "/" + key; }
  const GroupOptions& options_;
};

class GlooGroup final : public Group {
 public:
  explicit GlooGroup(const GroupOptions& options) : Group(options.name, options.rank, options.size), options_(options) {
    attempt("connecting", [&] {
      const auto context = std::make_shared<gloo::rendezvous::Context>(rank(), size());
      context->setTimeout(std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3)));
      SharedStore store(options);
      auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(kLoopback));
      context->connectFullMesh(store, device);
      context_ = context;
    });
    // A rank may be connected to all before all are connected to it, and end: those would find it gone while they connect.
    const auto key_of = [&](int r) { return concat(name(), "/connected/", r); };
    options.set(key_of(rank()), "");
    for (int r = 0; r < size(); ++r) options.get(key_of(r));
    if (options.lost) watcher_ = std::thread([this] { watch(); });
  }
  ~GlooGroup() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
  }

 private:
  using Byte = std::uint8_t;

  void run(Queue&, const AllGather& op) override {
    attempt("all_gather", [&] {
      gloo::AllgatherOptions options(context_);
      const Byte* const place = op.y.as_bytes() + static_cast<std::size_t>(rank()) * op.x.bytes();
      if (op.x.as_bytes() != place) options.setInput(op.x.as_bytes(), op.x.bytes());
      options.setOutput(op.y.as_bytes(), op.y.bytes());
      options.setTag(next_tag());
      if (op.x.bytes() > 0) gloo::allgather(options);
    });
  }
  void run(Queue&, const ReduceScatter& op, const Tensor& parts) override {
    attempt("reduce_scatter", [&] { exchange_parts(op.x, op.y.elements(), parts); });
    reduce_parts(parts, size(), op.y, op.reduction);
  }
  // Each rank reduces its part, then all gather the parts; the last ones are shorter where x does not divide.
  void run(Queue&, const AllReduce& op, const Tensor& parts) override {
    const std::int64_t part = parts.shape[1], count = op.x.elements();
    const auto range_of = [&](int r) { return std::pair(std::min(count, r * part), std::min(count, (r + 1) * part)); };
    const auto [begin, end] = range_of(rank());
    const Tensor flat = op.x.reshape({count}), mine = flat.slice_rows(begin, end);
    attempt("all_reduce", [&] { exchange_parts(flat, part, parts); });
    reduce_parts(parts, size(), mine, op.reduction);
    attempt("all_reduce", [&] {
      std::vector<std::size_t> bytes;
      for (int r = 0; r < size(); ++r) {
        const auto [first, last] = range_of(r);
        bytes.push_back(static_cast<std::size_t>(last - first) * size_of(flat.dtype));
      }
      gloo::AllgathervOptions options(context_);
      options.setOutput(flat.as_bytes(), bytes);
      options.setTag(next_tag());
      if (count > 0) gloo::allgatherv(options);
    });
  }
  void run(Queue&, const AllToAll& op) override {
    attempt("all_to_all", [&] { exchange(op.x, op.sent, op.y, op.received); });
  }
  void run(Queue&, const Broadcast& op) override {
    attempt("broadcast", [&] {
      gloo::BroadcastOptions options(context_);
      // In place: an input is copied to the output while it is still being sent, even onto itself.
      options.setOutput(op.x.as_bytes(), op.x.bytes());
      options.setRoot(op.root);
      options.setTag(next_tag());
      if (op.x.bytes() > 0) gloo::broadcast(options);
    });
  }
  void run_barrier(Queue&) override {
    attempt("barrier", [&] {
      gloo::BarrierOptions options(context_);
      options.setTag(next_tag());
      gloo::barrier(options);
    });
  }

  // Row r of `parts` becomes rank r's version of this rank's part, `part` elements of x or what is left of it.
  void exchange_parts(const Tensor& x, std::int64_t part, const Tensor& parts) {
    std::vector<std::int64_t> sent, received;
    const std::int64_t count = x.elements();
    const auto length_of = [&](int r) { return std::min(count, (r + 1) * part) - std::min(count, r * part); };
    for (int r = 0; r < size(); ++r) {
      sent.push_back(length_of(r));
      received.push_back(length_of(rank()));
    }
    exchange(x, sent, parts, received);
  }
  void exchange(const Tensor& x, const std::vector<std::int64_t>& sent, const Tensor& y,
                const std::vector<std::int64_t>& received) {
    const auto in_bytes = [&](std::vector<std::int64_t> counts) {
      for (std::int64_t& n : counts) n *= static_cast<std::int64_t>(size_of(x.dtype));
      return counts;
    };
    gloo::AlltoallvOptions options(context_);
    options.setInput(x.as_bytes(), in_bytes(sent));
    options.setOutput(y.as_bytes(), in_bytes(received));
    options.setTag(next_tag());
    gloo::alltoallv(options);
  }

  std::uint32_t next_tag() { return tag_++; }

  // A Gloo context is dead after its first error: so is the group.
  template <class Operation>
  void attempt(const char* what, Operation operation) {
    require(!failed_, "group ", name(), ": used after it failed");
    try {
      operation();
    } catch (const gloo::Exception& error) {
      failed_ = true;
      fail(ExitCode::peer, "rank ", rank(), ": ", what, " of group ", name(),
           " failed: ", cause_of(options_, last_line(error.what())));
    }
  }
  // Without the file and line that Gloo puts before it.
  static std::string last_line(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const std::size_t bracket = text.find("] ");
    return text.empty() || text.front() != '[' || bracket == std::string::npos ? text : text.substr(bracket + 2);
  }

  // Gloo notices a connection that breaks, and waits for a rank that is silent until the timeout.
  void watch() {
    while (options_.lost().empty()) {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kWatchEvery, [this] { return closing_; })) return;
    }
    end_waits();
  }
  // What is waited for fails, now and later. Any thread may call Gloo for it, but only so: a wait of its own that times out, at
  // once as nobody sends, fails the whole context.
  void end_waits() {
    Byte never = 0;
    try {
      context_->createUnboundBuffer(&never, sizeof never)->waitRecv(std::chrono::milliseconds(0));
    } catch (const gloo::Exception&) {  // it has timed out
    }
  }

  const GroupOptions options_;
  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;
  bool failed_ = false;
  std::mutex mutex_;  // guards closing_
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Group> make_gloo_group(const GroupOptions& options) {
  if (options.size == 1) return make_silent_group(options.name);
  // Gloo writes to sockets without MSG_NOSIGNAL: a peer that is gone would end this process without a word.
  std::signal(SIGPIPE, SIG_IGN);
  return std::make_unique<GlooGroup>(options);
}

}  // namespace octet::comm

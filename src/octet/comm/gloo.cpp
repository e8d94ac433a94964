#include "octet/comm/gloo.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "octet/base/clock.h"
#include "octet/base/start_thread.h"
#include "octet/comm/reduce_cpu.h"

namespace octet::comm {
namespace {

constexpr std::chrono::milliseconds kWatchEvery{100};  // interval of checks for a lost rank
// A rank that cannot be reached may be lost, which the rendezvous finds out in about ten seconds. So links are tried later, and
// twice.
constexpr double kFirstTryS = 8, kBetweenTriesS = 4;
constexpr std::chrono::milliseconds kAbortEvery{10};  // after a loss: interval at which waiting operations are aborted

// The group's keys in the store of all ranks.
class SharedStore final : public gloo::rendezvous::Store {
 public:
  explicit SharedStore(const GroupOptions& options) : options_(options) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::lock_guard lock(mutex_);
    store().set(path(key), std::string_view(data.data(), data.size()), 0);
    own_.push_back(path(key));
  }
  std::vector<char> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const std::string value = store().get(path(key));
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

  // Removes what this rank has set. All ranks must be connected. Gloo does not read each key equally often, so the keys cannot go
  // by themselves; here they are set again for one read.
  void clear() {
    for (const std::string& key : own_) {
      options_.set(key, "", 1);
      options_.get(key);
    }
  }
  // From now on the store of all ranks is not used. Waits for a call that is in progress.
  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }

 private:
  const GroupOptions& store() const {
    if (left_) throw gloo::IoException("the group was given up");
    return options_;
  }
  std::string path(const std::string& key) const { return options_.name + "/" + key; }

  const GroupOptions options_;
  std::mutex mutex_;
  bool left_ = false;
  std::vector<std::string> own_;
};

// The connecting of a group, in a thread of its own. While Gloo connects, nothing can end its wait for a peer that has ended. A
// rank that gives up leaves the thread behind; it waits until Gloo's timeout or the end of the process, and uses nothing outside
// this object.
class Connecting : public std::enable_shared_from_this<Connecting> {
 public:
  explicit Connecting(const GroupOptions& options)
      : store_(options), context_(std::make_shared<gloo::rendezvous::Context>(options.rank, options.size)) {
    context_->setTimeout(std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3)));
    device_ = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.address.c_str()));
  }
  // Returns the connected context. `trouble` returns a reason to give up, or ""; it is called about ten times a second.
  std::shared_ptr<gloo::Context> run(const std::function<std::string()>& trouble) {
    std::thread thread = start_thread("the connection to other ranks", [self = shared_from_this()] { self->connect(); });
    while (!ended_within(kWatchEvery)) {
      const std::string reason = trouble();
      if (reason.empty()) continue;
      store_.leave();
      thread.detach();
      throw gloo::IoException(reason);
    }
    thread.join();
    if (error_) std::rethrow_exception(error_);
    return context_;
  }
  // All ranks are connected, and no rank needs the others' addresses any more.
  void clear_store() { store_.clear(); }

 private:
  bool ended_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return ended_; });
  }
  void connect() {
    std::exception_ptr error;
    try {
      context_->connectFullMesh(store_, device_);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }

  SharedStore store_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr error_;
};

class GlooGroup final : public Group {
 public:
  explicit GlooGroup(const GroupOptions& options) : Group(options.name, options.rank, options.size), options_(options) {
    take_page();
    const auto start = Clock::now();
    double next_try = kFirstTryS;
    int broken = 0;  // tries in a row that have found a broken link
    std::shared_ptr<Connecting> connecting;
    attempt("connecting", [&] {
      connecting = std::make_shared<Connecting>(options);
      context_ = connecting->run([&]() -> std::string {
        if (seconds_since(start) > options.timeout_s)
          return concat("not all ranks have connected within ", options.timeout_s, " s");
        const std::string lost = options.lost ? options.lost() : "";
        if (!lost.empty() || !options.broken_links || seconds_since(start) < next_try) return lost;
        const std::string links = options.broken_links();
        broken = links.empty() ? 0 : broken + 1;
        next_try = seconds_since(start) + kBetweenTriesS;
        return broken < 2 ? "" : links;
      });
    });
    // A rank may be connected to all others, and even end, before those are connected to each other. They would then fail to
    // connect to it. So each rank waits until all ranks are connected.
    const auto key_of = [&](int r) { return concat(name(), "/connected/", r); };
    options.set(key_of(rank()), "", size() - 1);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) options.get(key_of(r));
    }
    connecting->clear_store();
    if (options.lost) watcher_ = start_thread("the watcher of the ranks", [this] { watch(); });
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
  struct Part {
    std::size_t offset = 0, bytes = 0;
  };
  using Parts = std::vector<Part>;  // the shards of one tensor, one per rank

  void run(Stream&, const AllGather& op) override {
    const std::size_t bytes = op.x.bytes();
    attempt("all_gather", [&] { exchange(op.x, Parts(ranks(), {0, bytes}), op.y, in_turn(std::vector(ranks(), bytes))); });
  }
  void run(Stream&, const ReduceScatter& op, const Tensor& parts) override {
    attempt("reduce_scatter", [&] { exchange_versions(op.x, op.y.elements(), parts); });
    reduce_parts(parts, size(), op.y, op.reduction);
  }
  // Each rank reduces its shard, then all ranks gather the shards. The last shards are shorter if x is not divisible.
  void run(Stream&, const AllReduce& op, const Tensor& parts) override {
    const std::int64_t part = parts.shape[1], count = op.x.elements();
    const auto begin_of = [&](int r) { return std::min(count, r * part); };
    const Tensor flat = op.x.reshape({count}), mine = flat.slice_rows(begin_of(rank()), begin_of(rank() + 1));
    attempt("all_reduce", [&] { exchange_versions(flat, part, parts); });
    reduce_parts(parts, size(), mine, op.reduction);
    const Parts all = in_turn(bytes_of_shards(flat, part));
    attempt("all_reduce", [&] { exchange(flat, Parts(ranks(), all[static_cast<std::size_t>(rank())]), flat, all); });
  }
  void run(Stream&, const AllToAll& op) override {
    const auto bytes_of = [&](const std::vector<std::int64_t>& counts) {
      std::vector<std::size_t> bytes;
      for (const std::int64_t n : counts) bytes.push_back(static_cast<std::size_t>(n) * size_of(op.x.dtype));
      return bytes;
    };
    attempt("all_to_all", [&] { exchange(op.x, in_turn(bytes_of(op.sent)), op.y, in_turn(bytes_of(op.received))); });
  }
  void run(Stream&, const Broadcast& op) override {
    const Part whole = {0, op.x.bytes()};
    Parts sent(ranks()), received(ranks());
    received[static_cast<std::size_t>(op.root)] = whole;
    if (op.root == rank()) sent.assign(ranks(), whole);
    attempt("broadcast", [&] { exchange(op.x, sent, op.x, received); });
  }
  // Messages have slots from kMessages on, which exchange() does not reach. Both ranks count the messages between them.
  void run(Stream& stream, const Send& op) override {
    const std::shared_ptr out = context_->createUnboundBuffer(op.x.as_bytes(), op.x.bytes());
    attempt("send", [&] { out->send(op.to, kMessages + sent_[static_cast<std::size_t>(op.to)]++); });
    stream.finish_later([this, out] {
      const Wait wait(*this, nullptr, out.get());
      attempt("send", [&] { demand_done(out->waitSend()); });
    });
  }
  void run(Stream& stream, const Receive& op) override {
    const std::shared_ptr in = context_->createUnboundBuffer(op.y.as_bytes(), op.y.bytes());
    attempt("receive", [&] { in->recv(op.from, kMessages + received_[static_cast<std::size_t>(op.from)]++); });
    stream.finish_later([this, in] {
      const Wait wait(*this, in.get(), nullptr);
      attempt("receive", [&] { demand_done(in->waitRecv()); });
    });
  }
  void run_barrier(Stream&) override {
    std::vector<Byte> sign(1), signs(ranks());
    attempt("barrier", [&] {
      exchange({sign.data(), DType::u8, {1}}, Parts(ranks(), {0, 1}), {signs.data(), DType::u8, {size()}},
               in_turn(std::vector<std::size_t>(ranks(), 1)));
    });
  }

  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  // Shards of these sizes, one after another.
  static Parts in_turn(const std::vector<std::size_t>& bytes) {
    Parts parts;
    std::size_t offset = 0;
    for (const std::size_t n : bytes) {
      parts.push_back({offset, n});
      offset += n;
    }
    return parts;
  }
  // The sizes in bytes of the ranks' shards of x: `part` elements each, or what remains of x.
  std::vector<std::size_t> bytes_of_shards(const Tensor& x, std::int64_t part) const {
    std::vector<std::size_t> bytes;
    const std::int64_t count = x.elements();
    for (int r = 0; r < size(); ++r) {
      const std::int64_t length = std::min(count, (r + 1) * part) - std::min(count, r * part);
      bytes.push_back(static_cast<std::size_t>(length) * size_of(x.dtype));
    }
    return bytes;
  }
  // Sends shard r of x to rank r. Row r of `versions` becomes rank r's version of this rank's shard.
  void exchange_versions(const Tensor& x, std::int64_t part, const Tensor& versions) {
    const std::vector<std::size_t> bytes = bytes_of_shards(x, part);
    exchange(x, in_turn(bytes), versions, in_turn(std::vector(ranks(), bytes[static_cast<std::size_t>(rank())])));
  }

  // Sends shard r of x to rank r and receives shard r of y from rank r. Every operation consists of one or two such exchanges. x
  // and y may be the same memory if this rank's own shard has the same place in both.
  void exchange(const Tensor& x, const Parts& sent, const Tensor& y, const Parts& received) {
    const auto own = static_cast<std::size_t>(rank());
    const Byte* const from = x.as_bytes() + sent[own].offset;
    Byte* const to = y.as_bytes() + received[own].offset;
    if (from != to && sent[own].bytes > 0) std::memcpy(to, from, sent[own].bytes);

    const auto out = context_->createUnboundBuffer(x.as_bytes(), x.bytes());
    const auto in = context_->createUnboundBuffer(y.as_bytes(), y.bytes());
    const Wait wait(*this, in.get(), out.get());
    const std::uint64_t slot = next_slot_++;
    for (int i = 1; i < size(); ++i) {  // each rank starts with a different rank
      const int receiver = (rank() + i) % size(), sender = (rank() + size() - i) % size();
      const Part &ours = sent[static_cast<std::size_t>(receiver)], &theirs = received[static_cast<std::size_t>(sender)];
      if (theirs.bytes > 0) in->recv(sender, slot, theirs.offset, theirs.bytes);
      if (ours.bytes > 0) out->send(receiver, slot, ours.offset, ours.bytes);
    }
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (r == own) continue;
      demand_done((received[r].bytes == 0 || in->waitRecv()) && (sent[r].bytes == 0 || out->waitSend()));
    }
  }

  // The result of a wait: whether watch() has not aborted it.
  static void demand_done(bool done) {
    if (!done) throw gloo::IoException("aborted");
  }

  // A Gloo context cannot be used after its first error, so the whole group fails.
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
  // Removes the file and line that Gloo puts before its message.
  static std::string last_line(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const std::size_t bracket = text.find("] ");
    return text.empty() || text.front() != '[' || bracket == std::string::npos ? text : text.substr(bracket + 2);
  }

  // Registers the buffers that this rank waits for, so that watch() can abort the wait. Either may be null.
  class Wait {
   public:
    Wait(GlooGroup& group, gloo::transport::UnboundBuffer* in, gloo::transport::UnboundBuffer* out) : group_(group) {
      group_.show_wait(true);
      const std::lock_guard lock(group_.mutex_);
      group_.in_ = in;
      group_.out_ = out;
    }
    ~Wait() {
      group_.show_wait(false);
      const std::lock_guard lock(group_.mutex_);
      group_.in_ = group_.out_ = nullptr;
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    GlooGroup& group_;
  };

  // Gloo itself notices only a broken connection. For a silent rank, or for a message that was in transit when the connection
  // broke, it waits until the timeout. This thread ends such waits as soon as a rank is lost.
  void watch() {
    while (options_.lost().empty()) {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kWatchEvery, [this] { return closing_; })) return;
    }
    close_connections();
    std::unique_lock lock(mutex_);
    do {
      if (in_) in_->abortWaitRecv();
      if (out_) out_->abortWaitSend();
    } while (!changed_.wait_for(lock, kAbortEvery, [this] { return closing_; }));
  }
  // Makes all further sends and receives throw. The only call that does this and that Gloo permits from any thread is a wait
  // that times out: it fails the whole context. This wait times out at once because no rank sends.
  void close_connections() {
    Byte never = 0;
    try {
      context_->createUnboundBuffer(&never, sizeof never)->waitRecv(std::chrono::milliseconds(0));
    } catch (const gloo::Exception&) {  // the intended timeout
    }
  }

  const GroupOptions options_;
  std::shared_ptr<gloo::Context> context_;
  static constexpr std::uint64_t kMessages = std::uint64_t{1} << 48;
  std::uint64_t next_slot_ = 0;
  std::vector<std::uint64_t> sent_ = std::vector<std::uint64_t>(ranks()), received_ = sent_;  // messages, by rank
  bool failed_ = false;
  std::mutex mutex_;  // guards the next three members
  std::condition_variable changed_;
  bool closing_ = false;
  gloo::transport::UnboundBuffer *in_ = nullptr, *out_ = nullptr;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Group> make_gloo_group(const GroupOptions& options) {
  if (options.size == 1) return make_silent_group(options.name);
  // Gloo writes to sockets without MSG_NOSIGNAL. Without this, writing to a lost peer would end this process without a message.
  std::signal(SIGPIPE, SIG_IGN);
  return std::make_unique<GlooGroup>(options);
}

}  // namespace octet::comm

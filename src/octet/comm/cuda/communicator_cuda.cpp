#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "octet/base/clock.h"
#include "octet/base/start_thread.h"
#include "octet/comm/cuda/communicator.h"
#include "octet/device/cuda/cuda.h"

namespace octet::comm {
namespace {

// The interval of checks for lost ranks and completed operations.
constexpr std::chrono::milliseconds kLookForLostRanksEvery{100};
// Stands for the operation if a failure belongs to none. The next caller's operation is then named instead.
constexpr const char* kSomeOp = "an operation";

// Rank 0 creates the id, the others read it from the store.
ncclUniqueId shared_id(const GroupOptions& options) {
  const std::string key = options.name + "/nccl";
  ncclUniqueId id;
  if (options.rank == 0) {
    const ncclResult_t code = ncclGetUniqueId(&id);
    demand(code == ncclSuccess, ExitCode::peer, "rank 0: connecting of group ", options.name,
           " failed: ncclGetUniqueId: ", ncclGetErrorString(code));
    options.set(key, std::string_view(id.internal, sizeof id.internal), options.size - 1);
    return id;
  }
  const std::string text = options.get(key);
  require(text.size() == sizeof id.internal, key, ": ", text.size(), " bytes");
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

// NCCL keeps the pointer to the name. Communicators of one process share data that NCCL frees with the last of them.
const char* lasting(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

bool failed(ncclResult_t code) { return code != ncclSuccess && code != ncclInProgress; }

// ncclGetLastError gives details beyond the error code, or an empty text.
std::string words_of(ncclResult_t code, ncclComm_t handle) {
  const std::string detail = ncclGetLastError(handle);
  const bool of_multicast = detail.find("NVLS") != std::string::npos || detail.find("ulticast") != std::string::npos;
  return concat("NCCL: ", ncclGetErrorString(code), detail.empty() ? "" : ": ", detail.substr(0, detail.find('\n')),
                of_multicast ? " (to train without NVLink multicast, set NCCL_NVLS_ENABLE=0)" : "");
}

}  // namespace

Communicator::Communicator(int device, const GroupOptions& options)
    : options_(options), device_(device), exceptions_(std::uncaught_exceptions()) {
  const ncclUniqueId id = shared_id(options_);
  cuda::check(cudaSetDevice(device_), "cudaSetDevice");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = lasting(options_.name);
  const ncclResult_t code = ncclCommInitRankConfig(&handle_, options_.size, id, options_.rank, &config);
  if (failed(code)) {
    const std::string words = words_of(code, nullptr);
    if (handle_) ncclCommAbort(handle_);
    fail(ExitCode::peer, "rank ", options_.rank, ": connecting of group ", options_.name, " failed: ", words);
  }
  watchdog_ = start_thread("the watcher of NCCL", [this] { watch(); });
}

Communicator::~Communicator() {
  if (std::uncaught_exceptions() > exceptions_) {
    abort("closing", "an exception has ended this rank");
  } else {
    finish();
  }
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  watchdog_.join();  // it may still be aborting the communicator
  if (handle_) ncclCommDestroy(handle_);
  for (const Launched& launched : launched_) cudaEventDestroy(launched.end);
  for (const cudaEvent_t event : unused_) cudaEventDestroy(event);
}

void Communicator::finish() noexcept {
  try {
    ncclResult_t code;
    {
      const std::lock_guard lock(mutex_);
      if (!handle_) return;
      code = ncclCommFinalize(handle_);
    }
    if (failed(code)) give_up("closing", words_of(code, nullptr));
    settle("closing");
  } catch (const Error&) {  // the communicator was aborted instead
  }
}

void Communicator::connect() { settle("connecting"); }

void Communicator::launch(const char* op, const Calls& calls, cudaStream_t native) {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed(op);
    ncclResult_t code = ncclGroupStart();
    for (const auto& call : calls) {
      if (!failed(code)) code = call(handle_);
    }
    const ncclResult_t end = ncclGroupEnd();  // must follow ncclGroupStart even after a failure, which it then returns
    if (!failed(code)) code = end;
    if (failed(code)) reason = words_of(code, handle_);
  }
  if (!reason.empty()) give_up(op, reason);
  settle(op);  // an NCCL thread launches the operation; what the caller enqueues next must come after it
  const std::lock_guard lock(mutex_);
  throw_if_failed(op);
  record(op, native);
}

void Communicator::follow(const char* op, cudaStream_t native) {
  const std::lock_guard lock(mutex_);
  throw_if_failed(op);
  record(op, native);
}

void Communicator::while_failed(std::function<void()> end) {
  const std::lock_guard lock(mutex_);
  while_failed_ = std::move(end);
}

void Communicator::check() {
  // Another rank that knows of a loss may abort before the watcher of this one looks. NCCL's kernels then end here, too, with any
  // result.
  std::string reason = lost_ranks();
  const char* op;
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed(kSomeOp);
    if (reason.empty()) reason = trouble();
    op = current_op();
  }
  if (!reason.empty()) give_up(op, reason);
}

void Communicator::settle(const char* op) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    ncclResult_t state = ncclSuccess;
    std::string reason;
    {
      const std::lock_guard lock(mutex_);
      throw_if_failed(op);
      const ncclResult_t code = ncclCommGetAsyncError(handle_, &state);
      if (failed(code) || failed(state)) reason = words_of(failed(code) ? code : state, handle_);
    }
    if (!reason.empty()) give_up(op, reason);
    if (state == ncclSuccess) return;
    const double waited_s = seconds_since(begin);
    if (waited_s > options_.timeout_s) give_up(op, concat("the other ranks have not arrived within ", options_.timeout_s, " s"));
    // A launch takes microseconds, a connection seconds.
    if (waited_s < 1e-3) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

ncclComm_t Communicator::fail_with(const char* op, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  const ncclComm_t handle = std::exchange(handle_, nullptr);
  if (!handle) return nullptr;
  failed_op_ = op;
  failure_ = cause;
  if (while_failed_) while_failed_();
  return handle;
}

void Communicator::abort(const char* op, const std::string& cause) {
  const ncclComm_t handle = fail_with(op, cause);
  // No thread is in a call or can start one. The abort ends kernels,
  // so streams that wait for them continue. failure_ is already set.
  if (handle) ncclCommAbort(handle);
}

void Communicator::give_up(const char* op, const std::string& reason) {
  abort(op, cause_of(options_, reason));
  const std::lock_guard lock(mutex_);
  throw_if_failed(op);
  fail(ExitCode::internal, "unreachable");
}

std::string Communicator::lost_ranks() const { return options_.lost ? options_.lost() : ""; }

void Communicator::throw_if_failed(const char* op) const {
  if (handle_) return;
  fail(ExitCode::peer, "rank ", options_.rank, ": ", failed_op_ == kSomeOp ? op : failed_op_, " of group ", options_.name,
       " failed: ", failure_);
}

const char* Communicator::current_op() const { return launched_.empty() ? kSomeOp : launched_.front().op; }

void Communicator::watch() {
  cudaSetDevice(device_);
  // May have to wait until while_failed_ has ended all waits, so it has a thread of its own.
  std::future<void> aborting;
  const auto may_end = [&] {
    return closing_ && (!aborting.valid() || aborting.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  };
  for (;;) {
    const std::string lost = lost_ranks();
    std::string reason;
    const char* op = kSomeOp;
    {
      std::unique_lock lock(mutex_);
      if (may_end()) return;
      if (handle_) {
        reason = lost.empty() ? trouble() : lost;
        op = current_op();
      } else if (while_failed_) {
        while_failed_();
      }
      if (reason.empty() && changed_.wait_for(lock, kLookForLostRanksEvery, may_end)) return;
    }
    if (reason.empty()) continue;
    const ncclComm_t handle = fail_with(op, cause_of(options_, reason));
    if (!handle) continue;
    const auto abort_it = [this, handle] {
      cudaSetDevice(device_);
      ncclCommAbort(handle);
    };
    try {
      aborting = start_task("the abort of NCCL", abort_it);
    } catch (const Error&) {
      abort_it();
    }
  }
}

std::string Communicator::trouble() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(handle_, &state);
  if (failed(code) || failed(state)) return words_of(failed(code) ? code : state, handle_);
  const Clock::time_point now = Clock::now();
  while (!launched_.empty() && cudaEventQuery(launched_.front().end) != cudaErrorNotReady) {
    unused_.push_back(launched_.front().end);
    launched_.pop_front();
    progress_ = now;
  }
  if (launched_.empty()) return "";
  const std::chrono::duration<double> still = now - std::max(progress_, launched_.front().at);
  return still.count() > options_.timeout_s ? concat("it has not ended within ", options_.timeout_s, " s") : "";
}

void Communicator::record(const char* op, cudaStream_t native) {
  cudaEvent_t end = nullptr;
  if (unused_.empty()) {
    cuda::check(cudaEventCreateWithFlags(&end, cudaEventDisableTiming), "cudaEventCreate");
  } else {
    end = unused_.back();
    unused_.pop_back();
  }
  launched_.push_back({op, end, Clock::now()});
  cuda::check(cudaEventRecord(end, native), "cudaEventRecord");
}

}  // namespace octet::comm

// A rank's NCCL communicator and the thread that watches over it. Nothing here blocks in NCCL: communicators are nonblocking, so
// that each call returns at once, and its end is polled for. One mutex guards the handle; it is held for calls, never for waits.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "octet/base/clock.h"
#include "octet/comm/nccl.h"

namespace octet::comm {

class Communicator {
 public:
  // Begins to connect; connect() waits for it.
  Communicator(int device, const GroupOptions& options);
  // In order, within the timeout; after a failure or during an exception aborts.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Waits until all ranks are connected.
  void connect();
  // Puts NCCL calls as one launch on a stream. `op` is a literal.
  using Calls = std::vector<std::function<ncclResult_t(ncclComm_t)>>;
  void launch(const char* op, const Calls& calls, cudaStream_t stream);
  // Throws Error{peer} after a failure.
  void check();

 private:
  // An operation that was launched, until `end` is reached on its stream.
  struct Launched {
    const char* op;
    cudaEvent_t end;
    Clock::time_point at;
  };

  // Ends in order; where that fails, aborts.
  void finish() noexcept;
  // Waits until NCCL has done what was asked for.
  void settle(const char* op);
  // Ends the communicator for a cause; the first one counts.
  void abort(const char* op, const std::string& cause);
  // Aborts and throws.
  [[noreturn]] void give_up(const char* op, const std::string& reason);
  void watch();
  std::string lost_ranks() const;

  // Under the mutex.
  void throw_if_failed(const char* op) const;
  // Why the communicator is to be aborted, or "". Takes what has ended off `launched_`.
  std::string trouble();
  const char* current_op() const;
  void record(const char* op, cudaStream_t stream);

  const GroupOptions options_;
  const int device_, exceptions_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  ncclComm_t handle_ = nullptr;  // null: aborted, because of failure_ in failed_op_
  std::string failure_;
  const char* failed_op_ = nullptr;
  std::deque<Launched> launched_;
  std::vector<cudaEvent_t> unused_;
  Clock::time_point progress_;  // when an operation last ended
  bool closing_ = false;
  std::thread watchdog_;
};

}  // namespace octet::comm

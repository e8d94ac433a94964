// A rank's NCCL communicator and a thread that monitors it. No call blocks in NCCL: the communicator is nonblocking, so each call
// returns at once and its completion is polled. One mutex guards the handle. It is held during calls but never during waits.
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
  // Starts to connect. connect() waits for the end.
  Communicator(int device, const GroupOptions& options);
  // Closes the communicator within the timeout. Aborts it if that fails or if an exception is in flight.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Waits until all ranks are connected.
  void connect();
  // Launches NCCL calls together on a stream. `op` is a string literal.
  using Calls = std::vector<std::function<ncclResult_t(ncclComm_t)>>;
  void launch(const char* op, const Calls& calls, cudaStream_t native);
  // Watches an operation that the caller has enqueued itself, as it watches NCCL's.
  void follow(const char* op, cudaStream_t native);
  // Calls `end` again and again once the communicator has failed, so that streams do not wait for ranks that are lost. Replaces
  // the function of the call before, which has returned.
  void while_failed(std::function<void()> end);
  // Throws Error{peer} if the communicator has failed.
  void check();

 private:
  // A launched operation. `end` is an event after it on its stream.
  struct Launched {
    const char* op;
    cudaEvent_t end;
    Clock::time_point at;
  };

  // Closes the communicator in order, or aborts it if that fails.
  void finish() noexcept;
  // Waits until NCCL has completed the last call.
  void settle(const char* op);
  // Ends the communicator because of `cause`. Only the first call has an effect.
  void abort(const char* op, const std::string& cause);
  // The first half of abort(): from here on every call throws. Returns the handle to abort; null if another call was first.
  ncclComm_t fail_with(const char* op, const std::string& cause);
  // Aborts and throws Error{peer}.
  [[noreturn]] void give_up(const char* op, const std::string& reason);
  void watch();
  std::string lost_ranks() const;

  // The following functions require the mutex.
  void throw_if_failed(const char* op) const;
  // The reason to abort the communicator, or "". Also removes completed operations from `launched_`.
  std::string trouble();
  const char* current_op() const;
  void record(const char* op, cudaStream_t native);

  const GroupOptions options_;
  const int device_, exceptions_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  ncclComm_t handle_ = nullptr;  // null after an abort because of failure_ in failed_op_
  std::string failure_;
  const char* failed_op_ = nullptr;
  std::deque<Launched> launched_;
  std::vector<cudaEvent_t> unused_;
  Clock::time_point progress_;  // when an operation last completed
  bool closing_ = false;
  std::function<void()> while_failed_;
  std::thread watchdog_;
};

}  // namespace octet::comm

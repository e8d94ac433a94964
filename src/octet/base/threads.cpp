#include "octet/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "octet/base/require.h"
#include "octet/base/start_thread.h"

namespace octet {
namespace {

thread_local bool inside_pool = false;

// One call of parallel_for. Threads take the next task number until none is left.
struct Job {
  const std::function<void(std::int64_t)>* body;
  std::int64_t tasks;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void work() {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(tasks);
      }
    }
  }
};

class Pool {
 public:
  explicit Pool(int threads)
      : workers_(start_threads(
            concat(threads, " computing threads"), threads - 1, [this](int) { loop(); }, [this] { stop(); })) {}
  ~Pool() {
    stop();
    for (std::thread& worker : workers_) worker.join();
  }
  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(Job& job) {
    const std::lock_guard one_at_a_time(callers_);
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
      pending_ = workers_.size();
    }
    wake_.notify_all();
    inside_pool = true;
    job.work();
    inside_pool = false;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    job_ = nullptr;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
  }
  void loop() {
    inside_pool = true;
    std::uint64_t seen = 0;
    for (;;) {
      Job* job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
        job = job_;
      }
      job->work();
      {
        const std::lock_guard lock(mutex_);
        if (--pending_ == 0) done_.notify_one();
      }
    }
  }

  std::mutex callers_, mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  std::size_t pending_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;  // the last member: its threads use the others
};

std::mutex pool_mutex;
std::unique_ptr<Pool> pool;

Pool& the_pool() {
  const std::lock_guard lock(pool_mutex);
  if (!pool) pool = std::make_unique<Pool>(available_cores());
  return *pool;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void set_num_threads(int count) {
  require(count >= 1, "the number of threads must be at least 1, got ", count);
  const std::lock_guard lock(pool_mutex);
  if (pool && pool->size() == count) return;
  pool.reset();
  pool = std::make_unique<Pool>(count);
}

int num_threads() { return the_pool().size(); }

void parallel_for(std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
  if (tasks <= 0) return;
  if (tasks == 1 || inside_pool || num_threads() == 1) {
    for (std::int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  Job job{.body = &body, .tasks = tasks, .next = {}, .mutex = {}, .error = {}};
  the_pool().run(job);
  if (job.error) std::rethrow_exception(job.error);
}

void parallel_ranges(std::int64_t count, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& body) {
  require(grain > 0, "parallel_ranges: grain must be positive, got ", grain);
  parallel_for((count + grain - 1) / grain, [&](std::int64_t i) { body(i * grain, std::min(count, (i + 1) * grain)); });
}

}  // namespace octet

// Threads that may fail to start: a limit of processes (ulimit -u), of memory (ulimit -v) or of a control group may leave no room
// for them. All threads of the program start here; tools/check_layers.py finds others.
#pragma once

#include <future>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace octet {

[[noreturn]] void fail_to_start(std::string_view what, const std::system_error& error);
void warn_of_foreground(std::string_view what, const std::system_error& error);

// Runs `body` on a new thread, which the caller joins. Throws Error{internal} "cannot start WHAT: REASON; ...".
template <class Body>
std::thread start_thread(std::string_view what, Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    fail_to_start(what, error);
  }
}

// Calls `work` on a new thread. The future receives what `work` returns or throws; the future's destructor waits for the end.
// Throws like start_thread().
template <class Work>
std::future<std::invoke_result_t<Work&>> start_task(std::string_view what, Work work) {
  try {
    return std::async(std::launch::async, std::move(work));
  } catch (const std::system_error& error) {
    fail_to_start(what, error);
  }
}

// Like start_task(), but if the thread cannot start, warns and calls `work` before it returns. For work on which other ranks
// wait.
template <class Work>
std::future<std::invoke_result_t<Work&>> start_or_run(std::string_view what, Work work) {
  const auto call = [shared = std::make_shared<Work>(std::move(work))] { return (*shared)(); };
  try {
    return std::async(std::launch::async, call);
  } catch (const std::system_error& error) {
    warn_of_foreground(what, error);
  }
  std::packaged_task<std::invoke_result_t<Work&>()> task(call);
  task();
  return task.get_future();
}

// Starts `count` threads; thread i calls body(i). If a thread cannot start, calls stop(), which must make the others end, joins
// them and throws like start_thread().
template <class Body, class Stop>
std::vector<std::thread> start_threads(std::string_view what, int count, const Body& body, const Stop& stop) {
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) threads.push_back(start_thread(what, [body, i] { body(i); }));
  } catch (...) {
    stop();
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  return threads;
}

// The largest number of threads that a user may ask for: four for each processor of this process. More would be slower, and
// tens of thousands would exhaust the machine.
int most_threads();
// Throws Error{config} "NAME = COUNT: ..." if `count` is above most_threads().
void check_threads(std::string_view name, int count);

}  // namespace octet

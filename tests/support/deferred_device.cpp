#include "support/deferred_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <thread>
#include <utility>

#include "octet/base/require.h"

namespace octet::testing {

struct DeferredEvent final : Event {
  // A place in the order of a stream, which sends or receives messages or does not.
  struct Point {
    bool of_messages = false, reached = false;
  };
  explicit DeferredEvent(bool of_messages) : point(std::make_shared<Point>(Point{.of_messages = of_messages})) {}
  std::shared_ptr<Point> point;
};

class DeferredStream final : public Stream {
 public:
  explicit DeferredStream(DeferredDevice& device) : Stream(device), device_(device) { device_.streams_.push_back(this); }
  ~DeferredStream() override {
    device_.finish_or_drop();
    std::erase(device_.streams_, this);
  }

  std::unique_ptr<Event> record() override {
    auto event = std::make_unique<DeferredEvent>(sends_messages_);
    add({.function = [point = event->point] { point->reached = true; }, .ends_stretch = true});
    return event;
  }
  void wait(const Event& event) override {
    add({.ends_stretch = true});  // what comes before the wait need not wait
    add({.awaited = dynamic_cast<const DeferredEvent&>(event).point, .ends_stretch = true});
  }
  void synchronize() override {
    const std::unique_ptr<Event> event = record();
    const DeferredEvent::Point& end = *dynamic_cast<const DeferredEvent&>(*event).point;
    while (!end.reached) device_.run_a_stretch();
  }
  void call(std::function<void()> function) override { add({.function = std::move(function)}); }
  // A group calls this while the stream executes the beginning of a message. Its end comes before all that the stream was given
  // later.
  void finish_later(std::function<void()> finish) override {
    sends_messages_ = true;
    items_.push_front({.message = std::async(std::launch::async, std::move(finish)).share(), .number = device_.items_});
  }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    if (bytes == 0 || device_.is_of_host(host)) return copy(device, host, bytes);
    const auto* const begin = static_cast<const std::byte*>(host);
    call([=, now = std::vector<std::byte>(begin, begin + bytes)] { std::memcpy(device, now.data(), bytes); });
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) call([=] { std::memcpy(to, from, bytes); });
  }
  void zero(void* device, std::size_t bytes) override {
    if (bytes > 0) call([=] { std::memset(device, 0, bytes); });
  }

  bool is_empty() const { return items_.empty(); }
  bool sends_messages() const { return sends_messages_; }
  // Whether the stream waits for a message of another stream.
  bool awaits_message() const { return !items_.empty() && items_.front().awaited && items_.front().awaited->of_messages; }
  // Whether the stream has a stretch to execute that need not wait. Streams of messages do not wait for the end of a stretch,
  // either: another rank may need a message that has been sent.
  bool is_ready() const {
    if (sends_messages_ ? items_.empty() : stretches_ == 0) return false;
    const Item& item = items_.front();
    if (item.message.valid()) return item.message.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    return !item.awaited || item.awaited->reached;
  }
  void run_a_stretch() {
    device_.overtakings_ += std::any_of(device_.streams_.begin(), device_.streams_.end(), [this](const DeferredStream* other) {
      return !other->items_.empty() && other->items_.front().number < items_.front().number;
    });
    bool ended = false;
    do {
      const Item item = std::move(items_.front());
      items_.pop_front();
      ended = item.ends_stretch;
      stretches_ -= ended;
      if (item.function) item.function();
      if (item.message.valid()) item.message.get();
    } while (!ended && is_ready());
  }
  void drop() {
    items_.clear();
    stretches_ = 0;
  }

 protected:
  void stamp() override {
    call([this] {
      stamps_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
    });
  }
  std::vector<double> take_stamps() override { return std::exchange(stamps_, {}); }

 private:
  // A function, or a wait for an event, or for the end of a message that travels beside all streams.
  struct Item {
    std::function<void()> function = {};
    std::shared_ptr<const DeferredEvent::Point> awaited = {};
    std::shared_future<void> message = {};
    bool ends_stretch = false;
    std::int64_t number = 0;  // in the order in which the device's streams were given their items
  };
  void add(Item item) {
    item.number = device_.items_++;
    stretches_ += item.ends_stretch;
    items_.push_back(std::move(item));
  }

  DeferredDevice& device_;
  std::deque<Item> items_;
  std::int64_t stretches_ = 0;  // those in items_
  bool sends_messages_ = false;
  std::vector<double> stamps_;
};

std::unique_ptr<Stream> DeferredDevice::make_stream() { return std::make_unique<DeferredStream>(*this); }

bool DeferredDevice::run_messages() {
  bool ran = false;
  for (DeferredStream* const stream : streams_) {
    for (; stream->sends_messages() && stream->is_ready(); ran = true) stream->run_a_stretch();
  }
  return ran;
}

void DeferredDevice::run_a_stretch() {
  if (run_messages()) return;
  std::vector<DeferredStream*> ready;
  DeferredStream* awaits_message = nullptr;
  for (DeferredStream* const stream : streams_) {
    if (stream->sends_messages() || stream->is_empty()) continue;
    if (stream->awaits_message()) {
      if (!awaits_message) awaits_message = stream;
    } else if (stream->is_ready()) {
      ready.push_back(stream);
    }
  }
  if (ready.empty()) {
    if (awaits_message && awaits_message->is_ready()) return awaits_message->run_a_stretch();
    const bool travels = std::any_of(streams_.begin(), streams_.end(), [](const DeferredStream* stream) {
      return stream->sends_messages() && !stream->is_empty();
    });
    require(travels, "streams wait for each other");
    return std::this_thread::yield();
  }
  const bool others = std::uniform_real_distribution<double>()(random_) < others_first_;
  std::vector<DeferredStream*> chosen = ready;
  std::erase_if(chosen, [&](DeferredStream* stream) { return (stream != streams_.front()) != others; });
  if (chosen.empty()) chosen = ready;
  chosen[std::uniform_int_distribution<std::size_t>(0, chosen.size() - 1)(random_)]->run_a_stretch();
}

void DeferredDevice::finish() {
  for (DeferredStream* const stream : streams_) stream->synchronize();
}

void DeferredDevice::finish_or_drop() {
  if (std::uncaught_exceptions() == 0) {
    try {
      return finish();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  for (DeferredStream* const stream : streams_) stream->drop();
}

void* DeferredDevice::acquire(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const memory = std::aligned_alloc(kAlignment, bytes);
  demand(memory != nullptr, ExitCode::does_not_fit, "cannot allocate ", bytes, " bytes");
  std::memset(memory, 0, bytes);
  return memory;
}

// As on a GPU, memory is freed when all that uses it has ended.
void DeferredDevice::release(void* memory, std::size_t) {
  finish_or_drop();
  std::free(memory);
}

void* DeferredDevice::acquire_host(std::size_t bytes) {
  void* const memory = acquire(bytes);
  if (memory) host_memory_[static_cast<const std::byte*>(memory)] = bytes;
  return memory;
}

void DeferredDevice::release_host(void* memory, std::size_t bytes) {
  release(memory, bytes);
  host_memory_.erase(static_cast<const std::byte*>(memory));
}

bool DeferredDevice::is_of_host(const void* memory) const {
  const auto* const at = static_cast<const std::byte*>(memory);
  const auto behind = host_memory_.upper_bound(at);
  if (behind == host_memory_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(behind);
  return at < begin + bytes;
}

}  // namespace octet::testing

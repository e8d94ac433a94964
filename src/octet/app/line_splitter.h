// Cuts a stream that arrives in pieces into lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace octet::app {

// Passes every line on as a whole, with its end. A line of more than kLongest bytes comes in parts of that size, so that memory
// is bounded.
class LineSplitter {
 public:
  static constexpr std::size_t kLongest = 64 << 10;

  template <class Sink>
  void feed(std::string_view text, Sink&& sink) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::size_t wanted = end == std::string_view::npos ? text.size() : end + 1;
      const std::size_t n = std::min(wanted, kLongest + 1 - rest_.size());
      rest_.append(text.substr(0, n));
      text.remove_prefix(n);
      if (rest_.back() == '\n') {
        sink(std::string_view(rest_));
        rest_.clear();
      } else if (rest_.size() > kLongest) {
        sink(std::string_view(rest_).substr(0, kLongest));
        rest_.erase(0, kLongest);
      }
    }
  }

  // Call it when the stream has ended. Passes on the text after the last line's end, if there is any.
  template <class Sink>
  void finish(Sink&& sink) {
    if (!rest_.empty()) sink(std::string_view(rest_));
    rest_.clear();
  }

 private:
  std::string rest_;
};

}  // namespace octet::app

// Assembles whole parameters from what all ranks hold of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "octet/base/require.h"
#include "octet/parallel/parameter.h"

namespace octet::testing {

template <class T>
using ByName = std::map<std::string, std::vector<T>>;

// Collects numbers by name. Ranks that hold the same element must hold the same bits, and some rank must hold each element.
template <class T>
class Wholes {
 public:
  // Adds a rank's part of a parameter. The part begins with local element `first` and has `width` numbers for each element.
  // Returns the number of elements added.
  std::size_t add(const std::string& name, const parallel::Parameter& p, const std::vector<parallel::TensorPiece>& pieces,
                  std::int64_t first, const T* part, std::size_t width = 1) {
    std::size_t added = 0;
    const auto count = static_cast<std::size_t>(p.cut.global().elements());
    std::vector<T>& all = numbers_[name];
    std::vector<std::uint8_t>& known = known_[name];
    all.resize(width * count);
    known.resize(count);
    for (const parallel::TensorPiece& piece : pieces) {
      parallel::for_runs(piece, p.cut.global(), [&](std::int64_t global, std::int64_t local, std::int64_t run) {
        const std::size_t bytes = width * sizeof(T);
        T* to = all.data() + width * static_cast<std::size_t>(global);
        const T* from = part + width * static_cast<std::size_t>(local - first);
        std::uint8_t* by = known.data() + global;
        const auto length = static_cast<std::size_t>(run);
        if (std::memchr(by, 1, length)) {
          for (std::size_t i = 0; i < length; ++i)
            different_ += by[i] && std::memcmp(to + width * i, from + width * i, bytes) != 0;
        }
        std::memcpy(to, from, length * bytes);
        std::memset(by, 1, length);
        added += length;
      });
    }
    return added;
  }
  // Adds the shard that this rank updates.
  void add(const parallel::Parameter& p, const std::vector<T>& part, std::size_t width = 1) {
    const std::size_t added = add(p.spec.name, p, p.pieces(), p.first_element, part.data(), width);
    require(width * added == part.size(), p.spec.name, ": ", part.size(), " numbers, of which ", width * added, " have a place");
  }
  // Adds a tensor that every rank holds as a whole, if it holds it at all.
  void add(const std::string& name, std::vector<T> whole) {
    const auto [at, fresh] = numbers_.try_emplace(name, whole);
    different_ += !fresh && at->second != whole;
  }

  // Returns a text about disagreements and missing elements once all ranks have added theirs, or "" if all is well.
  std::string wrong() const {
    std::string text = different_ > 0 ? concat(different_, " elements of which ranks know different values; ") : "";
    for (const auto& [name, known] : known_) {
      const auto missing = std::count(known.begin(), known.end(), 0);
      if (missing > 0) text += concat(missing, " elements of ", name, " that nobody has; ");
    }
    return text;
  }
  void expect_whole() const { EXPECT_EQ(wrong(), ""); }
  // Returns wrong() and the names whose numbers differ from those of `other`.
  std::string difference(const Wholes& other) const {
    std::string text = wrong();
    for (const auto& [name, numbers] : other.numbers_) {
      const auto found = numbers_.find(name);
      if (found == numbers_.end() || found->second != numbers)
        text += concat(name, found == numbers_.end() ? " is missing; " : " differs; ");
    }
    return text +
           (numbers_.size() == other.numbers_.size() ? "" : concat(numbers_.size(), " tensors, not ", other.numbers_.size()));
  }
  const ByName<T>& by_name() const { return numbers_; }
  const std::vector<T>& at(const std::string& name) const { return numbers_.at(name); }
  bool operator==(const Wholes& other) const { return numbers_ == other.numbers_; }

 private:
  ByName<T> numbers_;
  ByName<std::uint8_t> known_;
  std::size_t different_ = 0;
};

}  // namespace octet::testing

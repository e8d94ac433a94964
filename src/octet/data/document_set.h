// Which documents have been seen, by XXH3-128 of their tokens: two different ones of a billion share it with a probability of
// 1.5e-21. From 22 to 43 bytes for each document.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/base/checksum.h"

namespace octet::data {

class DocumentSet {
 public:
  DocumentSet();
  // False when it was there.
  bool insert(const Checksum128& document);
  std::int64_t size() const { return size_; }

 private:
  std::size_t place(const Checksum128& document) const;
  void grow();

  // Open addressing, a power of two of places, at most three quarters of them taken. All zeros is a free place; the document
  // with that sum is known apart.
  std::vector<Checksum128> places_;
  std::int64_t size_ = 0;
  bool has_zero_ = false;
};

}  // namespace octet::data

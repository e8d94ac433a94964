// The set of documents seen so far. It stores the XXH3-128 of each document's tokens. Among a billion different documents, the
// probability that any two share a checksum is 1.5e-21. The table takes 21 to 43 bytes for each document; while it grows, the old
// table exists together with the new one.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/base/checksum.h"

namespace octet::data {

class DocumentSet {
 public:
  DocumentSet();
  // Adds a document. Returns false if the set already holds it.
  bool insert(const Checksum128& document);
  std::int64_t size() const { return size_; }

 private:
  std::size_t place(const Checksum128& document) const;
  void grow();

  // A hash table with open addressing. Its size is a power of two and at most three quarters of it are in use. An all-zero
  // entry is free, so has_zero_ stands for the document whose checksum is zero.
  std::vector<Checksum128> places_;
  std::int64_t size_ = 0;
  bool has_zero_ = false;
};

}  // namespace octet::data

#include "octet/data/document_set.h"

#include <utility>

namespace octet::data {

DocumentSet::DocumentSet() : places_(1024) {}

// The place of the document, or the free place where it belongs.
std::size_t DocumentSet::place(const Checksum128& document) const {
  const std::size_t mask = places_.size() - 1;
  std::size_t at = document.low & mask;
  while (places_[at] != Checksum128{} && places_[at] != document) at = (at + 1) & mask;
  return at;
}

bool DocumentSet::insert(const Checksum128& document) {
  if (document == Checksum128{}) {
    const bool is_new = !std::exchange(has_zero_, true);
    size_ += is_new ? 1 : 0;
    return is_new;
  }
  const std::size_t at = place(document);
  if (places_[at] == document) return false;
  places_[at] = document;
  ++size_;
  if (static_cast<std::size_t>(size_) * 4 > places_.size() * 3) grow();
  return true;
}

void DocumentSet::grow() {
  const std::vector<Checksum128> before = std::exchange(places_, std::vector<Checksum128>(places_.size() * 2));
  for (const Checksum128& document : before) {
    if (document != Checksum128{}) places_[place(document)] = document;
  }
}

}  // namespace octet::data

// The ranks that write and read checkpoints together, and how they agree: over a key-value store that all of them share.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::checkpoint {

// One process needs to fill in nothing. `set` and `get` are called from any thread.
struct Ranks {
  int rank = 0, size = 1;
  // What the keys begin with: the same on all ranks, and one of its own for each Writer and each call of Reader::open or
  // open_latest over the same store.
  std::string name = "checkpoint";
  // Replaces the value that was there.
  std::function<void(const std::string& key, std::string_view value)> set = {};
  // Waits until the key is there: for as long as a rank may take to write its part. Throws Error{peer} when a rank is lost.
  std::function<std::string(const std::string& key)> get = {};
};

// Each rank's value, in the order of the ranks, on rank 0; nothing elsewhere. All ranks call with the same new `what`.
std::vector<std::string> gather(const Ranks& ranks, const std::string& what, std::string value);

// Rank 0's value, on every rank. All ranks call with the same new `what`.
std::string broadcast(const Ranks& ranks, const std::string& what, std::string value);

// One line about the failures of all ranks, "" for none: "rank 1: TEXT (2 more ranks failed as well)", or TEXT alone where there
// is one rank.
std::string failure_of(const std::vector<std::string>& failures);

// The failure of all ranks from each rank's own, on every rank. All ranks call with the same new `what`.
std::string common_failure(const Ranks& ranks, const std::string& what, std::string failure);

}  // namespace octet::checkpoint

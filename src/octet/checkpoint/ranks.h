// Lets the ranks that write or read a checkpoint together exchange messages through a shared key-value store.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::checkpoint {

// The ranks and their store. For a single process the defaults suffice. `set` and `get` may be called from any thread.
struct Ranks {
  int rank = 0, size = 1;
  // The prefix of the keys: the same on all ranks, but different for each Writer and each call of Reader::open() or open_latest() that
  // uses the same store.
  std::string name = "checkpoint";
  // Stores a value. The key is removed after `reads` calls of `get`.
  std::function<void(const std::string& key, std::string_view value, int reads)> set = {};
  // Waits for the key and returns its value. Its timeout must be at least as long as a rank may need to write its part. Throws
  // Error{peer} if a rank is lost.
  std::function<std::string(const std::string& key)> get = {};
};

// The following functions are collective: all ranks call them with the same `what`, which must be new for each call.

// Returns the values of all ranks, in the order of the ranks, on rank 0, and an empty list on other ranks.
std::vector<std::string> gather(const Ranks& ranks, const std::string& what, std::string value);

// Returns rank 0's value on every rank.
std::string broadcast(const Ranks& ranks, const std::string& what, std::string value);

// Summarises the failures of all ranks in a line: "rank 1: TEXT (2 more ranks failed as well)", only TEXT if there is a single rank, or ""
// if none failed. Not collective.
std::string failure_of(const std::vector<std::string>& failures);

// Gathers each rank's failure ("" for none) and returns failure_of() all of them on every rank.
std::string common_failure(const Ranks& ranks, const std::string& what, std::string failure);

}  // namespace octet::checkpoint

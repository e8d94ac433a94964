// What the bench commands share: timing, a table and its JSON.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace octet::app {

struct BenchRow {
  std::string name;      // what ran, with its shape
  double seconds = 0;    // the shortest time
  double rate = 0;       // in `unit`
  std::string unit;      // "GFLOP/s", "GB/s", "tok/s"
  double ceiling = 0;    // the rate with which it is compared
  std::string against;   // the meaning of the ceiling
};

// The shortest of repeated calls, in seconds: at least 3 calls and 0.2 s.
double shortest_time(const std::function<void()>& body);

// Prints a table whose last column is the share rate / ceiling, and writes the rows to `json` unless it is empty.
void show_bench(const std::vector<BenchRow>& rows, const std::filesystem::path& json);

}  // namespace octet::app

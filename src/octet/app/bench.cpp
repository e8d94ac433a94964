#include "octet/app/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "octet/base/clock.h"
#include "octet/base/file.h"
#include "octet/base/json.h"

namespace octet::app {

double shortest_time(const std::function<void()>& body) {
  double best = 1e300, spent = 0;
  body();  // touches memory
  for (int call = 0; call < 3 || spent < 0.2; ++call) {
    const auto start = Clock::now();
    body();
    const double seconds = seconds_since(start);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

void show_bench(const std::vector<BenchRow>& rows, const std::filesystem::path& json) {
  std::size_t width = 0;
  for (const BenchRow& row : rows) width = std::max(width, row.name.size());
  Json list = Json::array();
  for (const BenchRow& row : rows) {
    const double share = row.ceiling > 0 ? row.rate / row.ceiling : 0;
    fmt::print("{:<{}} {:>12.1f} us {:>10.1f} {:<8}", row.name, width, row.seconds * 1e6, row.rate, row.unit);
    if (row.ceiling > 0) fmt::print(" {:>6.0f}% of {} ({:.1f})", 100 * share, row.against, row.ceiling);
    fmt::print("\n");
    Json object = {{"name", row.name}, {"seconds", row.seconds}, {"rate", row.rate}, {"unit", row.unit}};
    if (row.ceiling > 0) {
      object["ceiling"] = row.ceiling;
      object["against"] = row.against;
      object["share"] = share;
    }
    list.push_back(object);
  }
  if (!json.empty()) write_output(json, list.dump(2) + "\n");
}

}  // namespace octet::app

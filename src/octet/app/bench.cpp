#include "octet/app/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "octet/base/clock.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

std::string rate_text(double rate) { return rate < 1000 ? fmt::format("{:.1f}", rate) : telemetry::format_count(rate); }

}  // namespace

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
    fmt::print("{:<{}} {:>12.1f} us {:>13} {:<8}", row.name, width, row.seconds * 1e6, rate_text(row.rate), row.unit);
    if (row.ceiling > 0) {
      const std::string times =
          share < 10 ? fmt::format("{:.0f}% of", 100 * share) : concat(telemetry::format_count(share), " times");
      fmt::print(" {:>10} {} ({})", times, row.against, rate_text(row.ceiling));
    }
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

#include <fmt/format.h>

#include <atomic>
#include <sstream>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/base/threads.h"
#include "octet/data/jsonl.h"
#include "octet/data/tokenizer/tokenizer.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

std::vector<std::string> read_documents(const std::filesystem::path& path) {
  std::istringstream stream(read_file(path));
  std::vector<std::string> documents;
  std::int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    if (++number; !data::is_blank(line)) documents.push_back(data::jsonl_text(line, "text", path.string(), number));
  }
  demand(!documents.empty(), ExitCode::data, path.string(), ": has no documents");
  return documents;
}

}  // namespace

// Encodes the same documents on one core and on all, each thread one document after another.
int run_bench_tokenize(const BenchTokenizeArgs& args) {
  const auto tokenizer = data::make_tokenizer(args.tokenizer);
  const std::vector<std::string> documents = read_documents(args.input);
  double bytes = 0;
  for (const std::string& document : documents) bytes += static_cast<double>(document.size());
  fmt::print("{:.1f} MB in {}, tokenizer {}\n", bytes * 1e-6,
             telemetry::format_count(static_cast<std::int64_t>(documents.size()), "document"), args.tokenizer);
  Json results = Json::array();
  std::vector<int> counts = {1};
  if (available_cores() > 1) counts.push_back(available_cores());
  for (const int cores : counts) {
    set_num_threads(cores);
    std::atomic<std::int64_t> tokens = 0;
    const double seconds = shortest_time([&] {
      tokens = 0;
      parallel_for(static_cast<std::int64_t>(documents.size()), [&](std::int64_t i) {
        std::vector<std::int32_t> ids;
        tokenizer->encode(documents[static_cast<std::size_t>(i)], ids);
        tokens += static_cast<std::int64_t>(ids.size());
      });
    });
    const double rate = bytes / seconds * 1e-6;
    fmt::print("{:3} cores  {:8.1f} MB/s  {:7.1f} MB/s per core  {} tokens in {:.3f} s\n", cores, rate, rate / cores,
               tokens.load(), seconds);
    results.push_back({{"cores", cores}, {"seconds", seconds}, {"mb_per_s", rate}, {"tokens", tokens.load()}});
  }
  if (!args.json.empty()) write_output(args.json, results.dump(2) + "\n");
  return 0;
}

}  // namespace octet::app

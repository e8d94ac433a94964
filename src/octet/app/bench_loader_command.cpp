#include <fmt/format.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "octet/app/bench.h"
#include "octet/app/commands.h"
#include "octet/base/clock.h"
#include "octet/base/directory.h"
#include "octet/base/require.h"
#include "octet/base/rng.h"
#include "octet/base/start_thread.h"
#include "octet/data/corpus_writer.h"
#include "octet/data/loader.h"
#include "octet/data/tokenizer/byte.h"
#include "octet/telemetry/format.h"

namespace octet::app {
namespace {

constexpr int kRanks = 8;
constexpr double kRankRate = 20000;  // tokens a second that a GPU takes
constexpr std::int64_t kLength = 8192;

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((temporary_folder() / "octet-bench-XXXXXX").string()) {
    demand(::mkdtemp(path_.data()) != nullptr, ExitCode::internal, path_, ": cannot create this folder");
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

// Writes 64 million tokens in documents of 1 to 1,200 tokens.
void write_corpus(const std::filesystem::path& prefix) {
  const Rng rng(1, RngStream::test);
  data::CorpusWriter writer(prefix, data::ByteTokenizer());
  std::vector<std::int32_t> ids;
  for (std::uint64_t d = 0; writer.tokens() < 64'000'000; ++d) {
    ids.resize(1 + rng.words(d)[0] % 1200);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * 31 + d) % 256);
    writer.append(ids);
    writer.end_document();
  }
  writer.finish();
}

// Runs the loaders of eight ranks of one host for `seconds`; each takes a batch every `pause`. Returns {tokens a second of all
// ranks, the largest share of its time that a rank has waited}.
std::pair<double, double> drain(const data::Dataset& dataset, std::chrono::duration<double> pause, double seconds) {
  std::vector<double> tokens(kRanks), waited(kRanks);
  std::atomic<bool> stopped{false};
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const auto rank_loop = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    data::Loader loader(dataset, {.coordinate = rank, .coordinates = kRanks});
    loader.next();  // a run starts with its memory plan and its weights: the first batch is there by then
    loader.take_wait_s();
    for (auto next = Clock::now(); Clock::now() < end && !stopped;) {
      tokens[r] += static_cast<double>(loader.next().tokens.size());
      next += std::chrono::duration_cast<Clock::duration>(pause);
      std::this_thread::sleep_until(std::min(next, end));
    }
    waited[r] = loader.take_wait_s();
  };
  std::vector<std::thread> threads = start_threads("the loaders", kRanks, rank_loop, [&] { stopped = true; });
  for (std::thread& thread : threads) thread.join();
  const double elapsed = seconds_since(start);
  double sum = 0, worst = 0;
  for (std::size_t r = 0; r < kRanks; ++r) {
    sum += tokens[r];
    worst = std::max(worst, waited[r]);
  }
  return {sum / elapsed, worst / elapsed};
}

}  // namespace

int run_bench_loader(const BenchArgs& args) {
  const TemporaryFolder folder;
  write_corpus(folder.path() / "corpus");
  const data::Dataset dataset(
      {.sources = {{.path = folder.path() / "corpus"}}, .seq_len = kLength, .seed = 1, .split = {1, 0}, .vocab_size = 256});
  const double rate = drain(dataset, std::chrono::duration<double>(0), 2).first;
  const double waited = drain(dataset, std::chrono::duration<double>(kLength / kRankRate), 5).second;
  show_bench({{.name = fmt::format("{} loaders, sequences of {}", kRanks, telemetry::format_count(kLength)),
               .seconds = kRanks * kLength / rate,
               .rate = rate,
               .unit = "tok/s",
               .ceiling = kRanks * kRankRate,
               .against = fmt::format("what {} ranks at {} tok/s need", kRanks, telemetry::format_count(kRankRate))}},
             args.json);
  fmt::print("at that speed a rank waits {:.3f}% of its time\n", 100 * waited);
  return 0;
}

}  // namespace octet::app

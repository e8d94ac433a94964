#include "octet/data/split.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "octet/base/require.h"

namespace octet::data {
namespace {

// A constant of the program: the held-out text must not change with the run's seed.
constexpr std::uint64_t kSplitSeed = 0x6F63746574'5350ull;

std::int64_t held_out_windows(std::int64_t windows, std::array<double, 2> fractions) {
  const auto [train, held_out] = fractions;
  demand(train >= 0 && held_out >= 0 && std::abs(train + held_out - 1) <= 1e-6, ExitCode::config, "data.split = [", train, ", ",
         held_out, "]: the two fractions must not be negative and their sum must be 1");
  const auto wanted = static_cast<std::int64_t>(std::llround(static_cast<double>(windows) * held_out));
  const std::int64_t least = held_out > 0 && windows >= 2 ? 1 : 0;
  const std::int64_t most = train > 0 ? windows - 1 : windows;
  return std::clamp(wanted, least, std::max(least, most));
}

}  // namespace

WindowSplit::WindowSplit(std::int64_t windows, std::array<double, 2> fractions)
    : order_(windows, kSplitSeed, 0, name_id("split")), held_out_(held_out_windows(windows, fractions)) {}

std::int64_t WindowSplit::window(Part part, std::int64_t i) const {
  require(i >= 0 && i < count(part), "split: item ", i, " of ", count(part));
  return order_(part == Part::held_out ? i : held_out_ + i);
}

namespace {

// Draws documents that have about `wanted` tokens together. A document that would make them more than a quarter larger than
// wanted is not drawn. Returns their numbers, ascending.
std::vector<std::int64_t> draw_documents(const Corpus& corpus, double wanted) {
  const Permutation order(corpus.documents(), kSplitSeed, 0, name_id("split documents"));
  std::vector<std::int64_t> drawn;
  double tokens = 0;
  for (std::int64_t i = 0; i < corpus.documents() && tokens < wanted; ++i) {
    const std::int64_t d = order(i);
    const auto length = static_cast<double>(corpus.document_start(d + 1) - corpus.document_start(d));
    if (length == 0 || tokens + length > 1.25 * wanted) continue;
    drawn.push_back(d);
    tokens += length;
  }
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace

std::optional<Split::Parts> Split::divide(const Corpus& corpus, std::int64_t seq_len, double held_out, Packing packing) {
  if (corpus.documents() < 2) return {};
  const double wanted = held_out * static_cast<double>(corpus.tokens());
  std::vector<Stream::Documents> out, in;
  std::int64_t next = 0;
  for (const std::int64_t d : draw_documents(corpus, wanted)) {
    if (d > next) in.push_back({next, d});
    out.push_back({d, d + 1});
    next = d + 1;
  }
  if (next < corpus.documents()) in.push_back({next, corpus.documents()});
  Stream train(corpus, in), held(corpus, out);
  const bool enough = static_cast<double>(held.tokens()) >= wanted / 2 && Windows::any(held, seq_len, packing) &&
                      Windows::any(train, seq_len, packing);
  if (!enough) return {};
  return Parts{.train = Windows(std::move(train), seq_len, packing), .held_out = Windows(std::move(held), seq_len, packing)};
}

Split::Split(const Corpus& corpus, std::int64_t seq_len, std::array<double, 2> fractions, SplitBy by, Packing packing) {
  Windows whole(Stream(corpus), seq_len, packing);
  WindowSplit split(whole.count(), fractions);
  if (by == SplitBy::documents && fractions[0] > 0 && fractions[1] > 0) parts_ = divide(corpus, seq_len, fractions[1], packing);
  if (parts_) return;
  windows_ = std::move(whole);
  windows_split_ = split;
}

std::int64_t Split::count(Part part) const {
  if (windows_split_) return windows_split_->count(part);
  return (part == Part::train ? parts_->train : parts_->held_out).count();
}

std::vector<Remainder::Range> Split::left_to_train(const std::vector<bool>& used) const {
  require(static_cast<std::int64_t>(used.size()) == count(Part::train), "split: ", used.size(), " items of ", count(Part::train));
  const Windows& text = training_text();
  std::vector<bool> gone(static_cast<std::size_t>(text.count()), windows_split_.has_value());
  for (std::size_t i = 0; i < used.size(); ++i) {
    const auto item = static_cast<std::int64_t>(i);
    gone[static_cast<std::size_t>(windows_split_ ? windows_split_->window(Part::train, item) : item)] = used[i];
  }
  if (text.packs()) return text.packs()->without(gone);
  const Remainder::Range whole{0, text.stream().tokens() - 1};
  return Remainder({&whole, 1}, text.seq_len()).without(gone);
}

void Split::read(Part part, std::int64_t i, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
                 std::int32_t base) const {
  if (windows_split_) return windows_->read(windows_split_->window(part, i), vocab_size, row, document_starts, base);
  if (part == Part::train) return parts_->train.read(i, vocab_size, row, document_starts, base);
  // Shuffled, so that the first few items come from many documents.
  const Permutation order(parts_->held_out.count(), kSplitSeed, 0, name_id("held out"));
  parts_->held_out.read(order(i), vocab_size, row, document_starts, base);
}

}  // namespace octet::data

#include "octet/train/sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "octet/base/require.h"
#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/telemetry/format.h"
#include "octet/train/config.h"

namespace octet::train {

static_assert(data::kNoTarget == kernels::kIgnoredTarget);

namespace {

nlohmann::json source_json(const data::Corpus& corpus) {
  nlohmann::json source = {{"path", corpus.paths().prefix.lexically_normal().string()},
                           {"documents", corpus.documents()},
                           {"tokens", corpus.tokens()}};
  if (corpus.info()) source["bin_xxh3"] = corpus.info()->bin_xxh3;
  if (corpus.has_loss_mask())
    source["loss_mask"] = corpus.info() && corpus.info()->loss ? corpus.info()->loss->bin_xxh3 : "unknown";
  return source;
}

// Compares the checksums only if both are known.
bool same_source(const nlohmann::json& a, const nlohmann::json& b) {
  if (a.at("documents") != b.at("documents") || a.at("tokens") != b.at("tokens")) return false;
  if (a.value("loss_mask", "") != b.value("loss_mask", "")) return false;
  return !a.contains("bin_xxh3") || !b.contains("bin_xxh3") || a.at("bin_xxh3") == b.at("bin_xxh3");
}

std::string text_of(const nlohmann::json& source) {
  const std::string sum = source.value("bin_xxh3", ""), mask = source.value("loss_mask", "");
  const auto count = [&](const char* key, const char* noun) {
    return telemetry::format_count(source.at(key).get<std::int64_t>(), noun);
  };
  return concat(count("documents", "document"), ", ", count("tokens", "token"), sum.empty() ? "" : ", XXH3 ", sum,
                mask.empty() ? "" : ", loss mask ", mask);
}

}  // namespace

nlohmann::json sources_json(const data::Dataset& dataset) {
  auto sources = nlohmann::json::array();
  for (std::int64_t s = 0; s < dataset.sources(); ++s) sources.push_back(source_json(dataset.corpus(s)));
  return sources;
}

void check_sources(const data::Dataset& dataset, const nlohmann::json& recorded, const std::string& checkpoint) {
  for (const nlohmann::json& now : sources_json(dataset)) {
    for (const nlohmann::json& then : recorded) {
      const bool only_one_masks = then.contains("loss_mask") != now.contains("loss_mask");
      demand(then.at("path") != now.at("path") || same_source(then, now), ExitCode::data, now.at("path").get<std::string>(),
             ": not the corpus that ", checkpoint, " was trained on (now ", text_of(now), "; then ", text_of(then), ")",
             only_one_masks ? "; training.mask says whether loss masks are used" : "",
             ". Start again with another run.output_dir, or with --resume none --run.set_aside=true, or give "
             "--checkpoint.allow=data to continue with it from its beginning");
    }
  }
}

std::vector<std::string> packing_lines(const data::Dataset& dataset) {
  std::vector<std::string> lines;
  for (std::int64_t s = 0; s < dataset.sources(); ++s) {
    const auto& packs = dataset.training_text(s).packs();
    if (!packs || !dataset.trains_on(s)) continue;
    const double full = static_cast<double>(packs->tokens()) / static_cast<double>(packs->count() * dataset.seq_len());
    lines.push_back(fmt::format("{}: {} packed into {} of {}, {:.1f}% full", dataset.corpus(s).paths().prefix.string(),
                                telemetry::format_count(packs->documents(), "document"),
                                telemetry::format_count(packs->count(), "sequence"),
                                telemetry::format_count(dataset.seq_len(), "token"), 100 * full));
    if (packs->split_documents() > 0)
      lines.back() +=
          fmt::format("; documents longer than that, which are split: {}", telemetry::format_count(packs->split_documents()));
  }
  return lines;
}

std::vector<std::string> unread_text(const data::Dataset& dataset) {
  constexpr std::int64_t kFew = 50;  // a rest of up to 1 / kFew of the tokens is not worth a warning
  std::vector<std::string> lines;
  for (std::int64_t s = 0; s < dataset.sources(); ++s) {
    const data::Windows& text = dataset.training_text(s);
    if (text.packs() || !dataset.trains_on(s)) continue;
    const std::int64_t tokens = text.stream().tokens(), unread = tokens - text.count() * dataset.seq_len() - 1;
    if (unread * kFew <= tokens) continue;
    lines.push_back(concat(dataset.corpus(s).paths().prefix.string(), ": the last ", telemetry::format_count(unread), " of ",
                           telemetry::format_count(tokens, "token"), " fill no sequence of ",
                           telemetry::format_count(dataset.seq_len()),
                           " and are never read. Give --data.packing=documents to train on all documents"));
  }
  return lines;
}

std::string TrainingSource::text() const {
  const std::string known = corpus.contains("tokens") ? " (" + text_of(corpus) + ")" : "";
  return concat(corpus.at("path").get<std::string>(), known, ", weight ", weight, ", ", share * 100, "% of it");
}

std::vector<TrainingSource> training_sources(const nlohmann::json& data, const nlohmann::json& sources) {
  const nlohmann::json given = data.value("source", nlohmann::json::array());
  const auto use = [](const nlohmann::json& source) { return source.value("split", "auto"); };
  const bool named = std::any_of(given.begin(), given.end(), [&](const auto& source) { return use(source) == "validation"; });
  const double share = data.value("split", DataConfig{}.split)[0];
  std::vector<TrainingSource> result;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (use(given[i]) == "validation") continue;
    result.push_back({.number = i,
                      .weight = given[i].value("weight", 1.0),
                      .share = named || use(given[i]) == "train" ? 1.0 : share,
                      .corpus = i < sources.size() ? sources[i] : nlohmann::json{{"path", given[i].value("path", "")}}});
  }
  return result;
}

bool same_text(const TrainingSource& a, const TrainingSource& b) {
  const bool known = a.corpus.contains("tokens") && b.corpus.contains("tokens");
  const bool same = known ? same_source(a.corpus, b.corpus) : a.corpus.at("path") == b.corpus.at("path");
  return same && a.number == b.number && a.weight == b.weight && a.share == b.share;
}

}  // namespace octet::train

#include "octet/train/sources.h"

#include "octet/base/require.h"

namespace octet::train {
namespace {

nlohmann::json source_json(const data::Corpus& corpus) {
  nlohmann::json source = {{"path", corpus.paths().prefix.lexically_normal().string()},
                           {"documents", corpus.documents()},
                           {"tokens", corpus.tokens()}};
  if (corpus.info()) source["bin_xxh3"] = corpus.info()->bin_xxh3;
  return source;
}

// Compares the checksums only if both are known.
bool same_source(const nlohmann::json& a, const nlohmann::json& b) {
  if (a.at("documents") != b.at("documents") || a.at("tokens") != b.at("tokens")) return false;
  return !a.contains("bin_xxh3") || !b.contains("bin_xxh3") || a.at("bin_xxh3") == b.at("bin_xxh3");
}

std::string text_of(const nlohmann::json& source) {
  const std::string sum = source.value("bin_xxh3", "");
  return concat(source.at("documents").dump(), " documents, ", source.at("tokens").dump(), " tokens", sum.empty() ? "" : ", XXH3 ",
                sum);
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
      demand(then.at("path") != now.at("path") || same_source(then, now), ExitCode::data, now.at("path").get<std::string>(),
             ": not the corpus that ", checkpoint, " was trained on (now ", text_of(now), "; then ", text_of(then),
             "). Start again with another run.output_dir, or with --resume none --run.set_aside=true, or rename the corpus to "
             "continue with it");
    }
  }
}

}  // namespace octet::train

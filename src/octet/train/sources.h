// Records the corpora of a run in its checkpoints, and compares them on resume. A sample's number has a meaning only for these corpora.
#pragma once

#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/data/dataset.h"

namespace octet::train {

// Returns [{"path", "documents", "tokens", "bin_xxh3", "loss_mask"}]. The checksum is there only if the corpus has a PREFIX.json,
// and `loss_mask`, the checksum of the mask, only if the run uses one.
nlohmann::json sources_json(const data::Dataset& dataset);

// Throws Error{data} if a source has a path that is in `recorded`, the list in a checkpoint, but is now a different corpus.
// `recorded` is null in checkpoints of earlier versions; then nothing is checked. `checkpoint` names the checkpoint in messages.
void check_sources(const data::Dataset& dataset, const nlohmann::json& recorded, const std::string& checkpoint);

// With data.packing = "documents": a line for each source that is trained on, which says how full its sequences are.
std::vector<std::string> packing_lines(const data::Dataset& dataset);
// With data.packing = "stream": a line for each source that is trained on and whose end, more than 2% of its tokens, fills no
// sequence.
std::vector<std::string> unread_text(const data::Dataset& dataset);

// Describes each source of `data`, a [data] section, that is trained on: its number, corpus, weight and share of the text.
// `sources` is a list of sources_json(), or null. Two runs train on the same samples in the same order if the number of sources,
// and each same_text(), agree and the rest of their configuration does.
struct TrainingSource {
  std::size_t number = 0;
  double weight = 1, share = 1;
  nlohmann::json corpus;
  // "corpus (24 documents, 14,000 tokens), weight 1, 98% of it"
  std::string text() const;
};
std::vector<TrainingSource> training_sources(const nlohmann::json& data, const nlohmann::json& sources);
// Whether both stand for the same text. A corpus may have moved to another path.
bool same_text(const TrainingSource& a, const TrainingSource& b);

}  // namespace octet::train

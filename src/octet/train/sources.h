// Records the corpora of a run in its checkpoints, and compares them on resume. A sample's number has a meaning only for these corpora.
#pragma once

#include <string>

#include "octet/base/json.h"
#include "octet/data/dataset.h"

namespace octet::train {

// Returns [{"path", "documents", "tokens", "bin_xxh3"}]. The checksum is there only if the corpus has a PREFIX.json.
nlohmann::json sources_json(const data::Dataset& dataset);

// Throws Error{data} if a source has a path that is in `recorded`, the list in a checkpoint, but is now a different corpus. Sources that
// were added, removed or moved are allowed, because the user changed the configuration. `recorded` is null in checkpoints of earlier
// versions; then nothing is checked. `checkpoint` names the checkpoint in messages.
void check_sources(const data::Dataset& dataset, const nlohmann::json& recorded, const std::string& checkpoint);

}  // namespace octet::train

// Which corpora a run was trained on, as its checkpoints say it: a sample's number means something in these alone.
#pragma once

#include <string>

#include "octet/base/json.h"
#include "octet/data/dataset.h"

namespace octet::train {

// [{"path", "documents", "tokens", "bin_xxh3"}], the sum only of a corpus that has a PREFIX.json.
nlohmann::json sources_json(const data::Dataset& dataset);

// Throws Error{data} where a source of a path that `recorded` has, which `checkpoint` says, is another corpus now. Sources that
// came, went or lie elsewhere are the configuration's business; null, of checkpoints of earlier versions, says nothing.
void check_sources(const data::Dataset& dataset, const nlohmann::json& recorded, const std::string& checkpoint);

}  // namespace octet::train

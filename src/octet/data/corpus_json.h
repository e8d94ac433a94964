// The JSON that PREFIX.json and `octet data inspect --json` have in common.
#pragma once

#include "octet/base/json.h"
#include "octet/data/corpus.h"

namespace octet::data {

Json to_json(const ChatInfo& chat);

}  // namespace octet::data

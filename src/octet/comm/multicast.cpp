#include "octet/comm/multicast.h"

#include <cstdlib>
#include <string_view>

namespace octet::comm {
namespace {
constexpr const char* kVariable = "NCCL_NVLS_ENABLE";
}  // namespace

bool true_on_all(const GroupOptions& ranks, bool mine) {
  const std::string result = ranks.name + "/all";
  const auto key = [&](int rank) { return concat(ranks.name, "/", rank); };
  if (ranks.rank > 0) {
    ranks.set(key(ranks.rank), mine ? "1" : "0", 1);
    return ranks.get(result) == "1";
  }
  for (int rank = 1; rank < ranks.size; ++rank) mine = (ranks.get(key(rank)) == "1") && mine;
  if (ranks.size > 1) ranks.set(result, mine ? "1" : "0", ranks.size - 1);
  return mine;
}

void probe_multicast(const GroupOptions& ranks, int device) {
  const char* const set_by_user = std::getenv(kVariable);
  const bool mine = set_by_user ? std::string_view(set_by_user) != "0" : can_use_multicast(device);
  if (!true_on_all(ranks, mine) && !set_by_user) ::setenv(kVariable, "0", 1);
}

}  // namespace octet::comm

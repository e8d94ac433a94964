#include "octet/checkpoint/mismatch.h"

#include <algorithm>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

constexpr std::size_t kNamed = 20;  // beyond, a count says more than a list

// "2 missing tensors: a, b"
std::string counted(const std::vector<std::string>& items, std::string_view what) {
  std::string text = concat(items.size(), " ", what, items.size() == 1 ? " tensor: " : " tensors: ");
  for (std::size_t i = 0; i < std::min(items.size(), kNamed); ++i) text += (i ? ", " : "") + items[i];
  if (items.size() > kNamed) text += concat(" and ", items.size() - kNamed, " more");
  return text;
}

}  // namespace

bool glob_match_any(const std::vector<std::string>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_match(glob, name); });
}

void Mismatch::raise(const std::string& source) const {
  std::vector<std::string> parts;
  if (!missing.empty()) {
    const std::size_t count = std::min(missing.size(), kNamed);
    const std::vector<std::string> nearest = nearest_names(std::span(missing).first(count), unexpected);
    std::vector<std::string> named(missing.size());
    for (std::size_t i = 0; i < count; ++i) named[i] = in_quotes(missing[i]) + did_you_mean(missing[i], {&nearest[i], 1});
    parts.push_back(counted(named, "missing"));
  }
  if (!unexpected.empty()) {
    std::vector<std::string> named;
    for (const std::string& name : unexpected) named.push_back(in_quotes(name));
    parts.push_back(counted(named, "unexpected"));
  }
  if (!different.empty()) parts.push_back(counted(different, "unfit"));
  if (parts.empty()) return;
  std::string text = source + ": ";
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i ? "; " : "") + parts[i];
  throw Error(ExitCode::data, text);
}

}  // namespace octet::checkpoint

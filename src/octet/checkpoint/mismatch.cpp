#include "octet/checkpoint/mismatch.h"

#include <algorithm>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

constexpr std::size_t kNamed = 20;  // a longer list is cut, and the message gives the number of the rest

// "2 missing tensors: a, b"
std::string counted(const std::vector<std::string>& items, std::string_view what) {
  std::string text = concat(items.size(), " ", what, items.size() == 1 ? ": " : "s: ");
  for (std::size_t i = 0; i < std::min(items.size(), kNamed); ++i) text += (i ? ", " : "") + items[i];
  if (items.size() > kNamed) text += concat(" and ", items.size() - kNamed, " more");
  return text;
}

// "NAME" in FILE, or only "NAME" if the file is not in `files`.
std::string placed(const std::string& name, const std::map<std::string, std::string>& files) {
  const auto file = files.find(name);
  return in_quotes(name) + (file == files.end() ? "" : " in " + file->second);
}

// The first kNamed missing names, each with its file and the nearest name that exists.
std::vector<std::string> with_nearest(const std::vector<std::string>& missing, const std::vector<std::string>& there,
                                      const std::map<std::string, std::string>& files) {
  const std::size_t count = std::min(missing.size(), kNamed);
  const std::vector<std::string> nearest = nearest_names(std::span(missing).first(count), there);
  std::vector<std::string> named(missing.size());
  for (std::size_t i = 0; i < count; ++i) named[i] = placed(missing[i], files) + did_you_mean(missing[i], {&nearest[i], 1});
  return named;
}

}  // namespace

bool glob_match_any(const std::vector<std::string>& globs, std::string_view name) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_match(glob, name); });
}

void Mismatch::raise(const std::string& source) const {
  std::vector<std::string> parts;
  if (!absent.empty()) parts.push_back(counted(with_nearest(absent, surplus, {}), "missing file"));
  if (!missing.empty()) parts.push_back(counted(with_nearest(missing, unexpected, files), "missing tensor"));
  if (!unexpected.empty()) {
    std::vector<std::string> named;
    for (const std::string& name : unexpected) named.push_back(placed(name, files));
    parts.push_back(counted(named, "unexpected tensor"));
  }
  if (!different.empty()) parts.push_back(counted(different, "unfit tensor"));
  if (parts.empty()) return;
  std::string text = source + ": ";
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i ? "; " : "") + parts[i];
  throw Error(ExitCode::data, text);
}

}  // namespace octet::checkpoint

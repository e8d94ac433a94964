#include "octet/checkpoint/mismatch.h"

#include <algorithm>

#include "octet/base/names.h"
#include "octet/base/require.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

constexpr std::size_t kMostNamed = 20;
// The lists of a message together. A list ends with the item that makes it too long, but not before the second, and the message
// gives the number of the rest.
constexpr std::size_t kMostCharacters = 200;
constexpr std::size_t kLeastNamed = 2;

// "2 missing tensors: a, b"
std::string counted(const std::vector<std::string>& items, std::string_view what, std::size_t most_characters) {
  std::string list;
  std::size_t named = 0;
  for (; named < std::min(items.size(), kMostNamed) && (named < kLeastNamed || list.size() < most_characters); ++named)
    list += (named > 0 ? ", " : "") + items[named];
  const std::string rest = named < items.size() ? concat(" and ", items.size() - named, " more") : "";
  return concat(items.size(), " ", what, items.size() == 1 ? ": " : "s: ", list, rest);
}

// "NAME" in FILE, or only "NAME" if the file is not in `files`.
std::string placed(const std::string& name, const std::map<std::string, std::string>& files) {
  const auto file = files.find(name);
  return in_quotes(name) + (file == files.end() ? "" : " in " + file->second);
}

// The first kMostNamed missing names, each with its file and the nearest name that exists.
std::vector<std::string> with_nearest(const std::vector<std::string>& missing, const std::vector<std::string>& there,
                                      const std::map<std::string, std::string>& files) {
  const std::size_t count = std::min(missing.size(), kMostNamed);
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
  std::vector<std::string> placed_unexpected;
  for (const std::string& name : unexpected) placed_unexpected.push_back(placed(name, files));
  struct Part {
    std::vector<std::string> items;
    std::string_view what;
  };
  std::vector<Part> parts = {{with_nearest(absent, surplus, {}), "missing file"},
                             {with_nearest(missing, unexpected, files), "missing tensor"},
                             {placed_unexpected, "unexpected tensor"},
                             {different, "unfit tensor"}};
  std::erase_if(parts, [](const Part& part) { return part.items.empty(); });
  if (parts.empty()) return;
  std::string text = source + ": ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i ? "; " : "") + counted(parts[i].items, parts[i].what, kMostCharacters / parts.size());
  throw Error(ExitCode::data, text);
}

}  // namespace octet::checkpoint

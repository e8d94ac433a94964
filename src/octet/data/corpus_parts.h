// The files of a corpus that is being written: PREFIX.bin.part and so on. They are of one process at a time, up to the
// moment when the whole corpus has its final names; what a killed one left stays until somebody goes on with it or starts over.
#pragma once

#include <filesystem>

#include "octet/base/file.h"
#include "octet/data/corpus.h"

namespace octet::data {

inline constexpr const char* kPartSuffix = ".part";

class CorpusParts {
 public:
  // Creates missing folders. Throws Error{config} for a prefix without a name, a folder that cannot be made and a corpus that
  // another process is preparing.
  // NOLINTNEXTLINE(google-explicit-constructor): a prefix is all that it takes
  CorpusParts(const std::filesystem::path& prefix);

  const CorpusPaths& finals() const { return finals_; }
  const std::filesystem::path& bin() const { return bin_; }
  const std::filesystem::path& idx() const { return idx_; }
  const std::filesystem::path& seen() const { return seen_; }        // sums of the documents
  const std::filesystem::path& journal() const { return journal_; }  // how far it is
  void remove() const;

 private:
  CorpusPaths finals_;
  std::filesystem::path bin_, idx_, seen_, journal_;
  FileLock lock_;  // of a file of its own: the others change their names one by one
};

}  // namespace octet::data

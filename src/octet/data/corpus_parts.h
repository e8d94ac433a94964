// The files of a corpus while it is written: PREFIX.bin.part, PREFIX.idx.part and so on. One process at a time owns them, until
// the corpus has its final names. A killed process leaves them behind; the next run continues from them or starts over.
#pragma once

#include <filesystem>

#include "octet/base/file.h"
#include "octet/data/corpus.h"

namespace octet::data {

inline constexpr const char* kPartSuffix = ".part";

class CorpusParts {
 public:
  // Creates missing folders and takes the lock. Throws Error{config} if the prefix does not end in a name, a folder cannot be
  // created, or another process is preparing this corpus.
  // NOLINTNEXTLINE(google-explicit-constructor): callers pass a prefix
  CorpusParts(const std::filesystem::path& prefix);

  const CorpusPaths& finals() const { return finals_; }
  const std::filesystem::path& bin() const { return bin_; }
  const std::filesystem::path& idx() const { return idx_; }
  const std::filesystem::path& loss_bin() const { return loss_bin_; }
  const std::filesystem::path& loss_idx() const { return loss_idx_; }
  const std::filesystem::path& seen() const { return seen_; }        // checksums of the documents, to find duplicates
  const std::filesystem::path& journal() const { return journal_; }  // PrepareJournal
  // Deletes the part files and what interrupted writes of the journal and of PREFIX.json have left.
  void remove() const;

 private:
  CorpusPaths finals_;
  std::filesystem::path bin_, idx_, loss_bin_, loss_idx_, seen_, journal_;
  FileLock lock_;  // locks PREFIX.lock.part, because the other files are renamed one by one
};

}  // namespace octet::data

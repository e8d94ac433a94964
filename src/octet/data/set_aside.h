// Moves aside a corpus that is in the place where `octet data prepare` writes another one.
#pragma once

#include <filesystem>
#include <string>

#include "octet/data/corpus.h"

namespace octet::data {

// Replaces `to`. Throws SystemError.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Keeps a corpus that another command made: gives its files the prefix PREFIX-1, or the next free number, and says so. Does
// nothing if PREFIX.json names this command (CorpusInfo::command), because a command that is repeated replaces its corpus. If a
// kill interrupts it, the next call completes it. The caller holds the lock of the corpus. Throws SystemError.
void set_corpus_aside(const CorpusPaths& corpus, const std::string& command);

}  // namespace octet::data

// A tokenizer that does something at a given call. Tests use it to interrupt or kill a run at the same place on every machine.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/file.h"
#include "octet/data/prepare.h"
#include "octet/data/tokenizer/tokenizer.h"

namespace octet::data {

// Encodes as `tokenizer` does. Calls `act` before it encodes the text of call number `calls`, counted from 1.
class ActingTokenizer final : public Tokenizer {
 public:
  ActingTokenizer(const Tokenizer& tokenizer, int calls, std::function<void()> act)
      : tokenizer_(tokenizer), calls_(calls), act_(std::move(act)) {}
  std::string name() const override { return tokenizer_.name(); }
  std::string hash() const override { return tokenizer_.hash(); }
  std::int32_t vocab_size() const override { return tokenizer_.vocab_size(); }
  std::optional<std::int32_t> end_of_document() const override { return tokenizer_.end_of_document(); }
  std::span<const std::int32_t> prefix() const override { return tokenizer_.prefix(); }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    if (--calls_ == 0) act_();
    tokenizer_.encode(text, ids);
  }
  std::vector<std::size_t> encode_counting(std::string_view text, std::span<const std::size_t> places,
                                           std::vector<std::int32_t>& ids) const override {
    if (--calls_ == 0) act_();
    return tokenizer_.encode_counting(text, places, ids);
  }
  void decode(std::span<const std::int32_t> ids, std::string& text) const override { tokenizer_.decode(ids, text); }
  std::size_t cut(std::string_view text) const override { return tokenizer_.cut(text); }

 private:
  const Tokenizer& tokenizer_;
  mutable std::atomic<int> calls_;
  std::function<void()> act_;
};

inline std::vector<std::string> files_of_corpus(const std::filesystem::path& prefix) {
  std::vector<std::string> files;
  for (const char* suffix : {".bin", ".idx", ".json"}) files.push_back(read_file(prefix.string() + suffix));
  return files;
}

// Runs `octet data prepare` until it ends. Kills each run with SIGKILL, the first at call number `calls` and each later one a
// thousand calls later. Returns how often a run was killed.
inline int kills_until_prepared(PrepareOptions options, const Tokenizer& tokenizer, int calls) {
  options.journal_interval_s = 0;
  const std::string prefix = options.output.string();
  int journals = 0;
  for (int kills = 0; kills < 40; ++kills) {
    options.workers = 1 + kills % 3;
    const pid_t child = ::fork();
    if (child == 0) {
      prepare(options, ActingTokenizer(tokenizer, calls + kills * 1000, [] { ::raise(SIGKILL); }));
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      EXPECT_GE(journals, 1) << "no run was killed behind its first document";
      return kills;
    }
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    EXPECT_FALSE(std::filesystem::exists(prefix + ".bin"));
    const std::string journal = prefix + ".json.part";
    journals += std::filesystem::exists(journal) && read_file(journal).find("\"documents\":0,") == std::string::npos;
  }
  ADD_FAILURE() << "was killed 40 times";
  return 40;
}

}  // namespace octet::data

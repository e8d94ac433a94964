// Tiny runs of the program, of which many fit into a second, and functions that read their results.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/require.h"
#include "support/program.h"

namespace octet::testing {

void write_corpus(const std::filesystem::path& prefix, const std::vector<std::string>& documents);

// Returns documents from which a model can learn: the same few words in random order.
std::vector<std::string> tiny_documents(int documents = 24, int words = 120);

// Returns a configuration with a model of 35 thousand parameters and 128 tokens in a step, which logs every step.
std::string tiny_toml();

// A temporary folder with a run.toml and its corpus.
class TinyRun {
 public:
  TinyRun() : TinyRun(tiny_documents()) {}
  explicit TinyRun(const std::vector<std::string>& documents);
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  ProgramResult run(const std::string& arguments, const std::string& how = "exec") const {
    return run_program(arguments, folder_.path(), how);
  }
  ProgramResult train(const std::string& options = "") const { return run("train run.toml " + options); }
  // Returns the process id of a rank that `octet launch` started in this folder, or -1.
  pid_t pid_of_rank(int rank) const;

 private:
  TemporaryFolder folder_;
};

std::vector<Json> read_lines(const std::filesystem::path& path);

std::map<std::int64_t, Json> metrics_of(const std::filesystem::path& run);

// Returns {name: bytes} of every tensor of a safetensors file.
std::map<std::string, std::string> tensors_of(const std::filesystem::path& path);

std::filesystem::path last_checkpoint(const std::filesystem::path& run);

// Returns the results of a run that must not depend on interruptions, as {name: text}, so that a difference can be named.
std::map<std::string, std::string> outcome_of(const std::filesystem::path& run);

::testing::AssertionResult same_outcome(const std::map<std::string, std::string>& actual,
                                        const std::map<std::string, std::string>& expected);

}  // namespace octet::testing

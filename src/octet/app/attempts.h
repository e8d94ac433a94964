// The attempts of a supervised run. An attempt is one start of all ranks. OUT/attempts/00000003.json says how the third one went;
// `octet status` and `octet report` read it. Numbers only grow, also over several starts of the supervisor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/process_identity.h"

namespace octet::app {

struct Attempt {
  std::int64_t number = 0;
  int ranks = 0;
  std::string started;         // UTC
  ProcessIdentity supervisor;  // and the descriptor of its telemetry::RankPages
  int pages = -1;
  std::int64_t from_step = 0;  // of the newest checkpoint when the ranks started
  // Known at its end:
  std::string ended;  // UTC; "": it has not ended, or nobody was left to say so
  int code = 0;
  std::string what;            // which rank failed, and how
  std::int64_t last_step = 0;  // finished
  std::int64_t checkpoint_step = 0;
  std::string next;  // "restarts in 5 s", "stops: ..."; "" after success
  // Of rank 0, from the start of the ranks: when each phase began that it has reached, and the end of its first step. Then how
  // long it took until all ranks had ended after the first one failed, and the whole attempt.
  std::map<std::string, double> seconds;
};

class Attempts {
 public:
  explicit Attempts(const std::filesystem::path& run_folder) : folder_(run_folder / "attempts") {}

  // Gives the attempt the next free number and writes it down. Throws Error{internal} or Error{data} "PATH: REASON".
  void begin(Attempt& attempt) const;
  void write(const Attempt& attempt) const;
  // All that there are, in the order of their numbers. A file that is no attempt is left out, with a warning. Throws SystemError
  // if the folder or a file cannot be read; a folder that does not exist has no attempts.
  std::vector<Attempt> read() const;

 private:
  std::filesystem::path path_of(std::int64_t number) const;

  std::filesystem::path folder_;
};

Json to_json(const Attempt& attempt);

// The step of the newest checkpoint of a run, by the names of the folders; 0: none.
std::int64_t newest_checkpoint(const std::filesystem::path& run_folder);

}  // namespace octet::app

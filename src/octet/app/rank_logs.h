// OUT/logs/rank-00003.log: the output of each rank of a supervised run, over all attempts; and node-003.log: the output of the
// supervisor of a host. Every line begins with its time. A thread writes, so that a slow or full disk never delays the ranks.
// Lines that cannot be written wait in memory, and the thread tries again every second.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace octet::app {

class RankLogs {
 public:
  explicit RankLogs(const std::filesystem::path& run_folder);
  // Tries once more to write the remaining lines.
  ~RankLogs();
  RankLogs(const RankLogs&) = delete;
  RankLogs& operator=(const RankLogs&) = delete;

  // Begins an attempt in the files of ranks first to first+count-1.
  void begin_attempt(std::int64_t number, int first, int count);
  void line(int rank, std::string_view text);
  void node_line(int node, std::string_view text);

 private:
  void add(const std::string& name, std::string_view text);
  void write_all();
  // Returns the end of `text` that could not be written.
  std::string append(const std::string& name, std::string_view text);

  std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, std::string> waiting_;  // by the file's name
  std::size_t waiting_bytes_ = 0;               // with those that are being written
  std::uint64_t left_out_ = 0;                  // lines for which there was no room
  bool stop_ = false;
  bool warned_ = false;  // that lines wait
  std::thread thread_;
};

}  // namespace octet::app

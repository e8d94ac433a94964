#include "support/rank_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "octet/base/file.h"
#include "octet/base/require.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/snapshot_memory.h"

namespace octet::testing {

void flip_bit(const std::filesystem::path& file, std::uint64_t offset, int bit) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(offset);
  const int byte = bytes.seekg(at).get();
  bytes.seekp(at).put(static_cast<char>(byte ^ (1 << bit)));
  require(bytes.good(), file.string(), " cannot be damaged");
}

Stopped::Stopped(pid_t pid) : pid_(pid), memory_(::open(concat("/proc/", pid, "/mem").c_str(), O_RDWR | O_CLOEXEC)) {
  ::kill(pid_, SIGSTOP);
  while (state() == 'R' || state() == 'S' || state() == 'D') std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Stopped::~Stopped() { ::kill(pid_, SIGCONT); }

int Stopped::flip(std::string_view bytes, int bit) {
  int count = 0;
  std::ifstream maps(concat("/proc/", pid_, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0, inode = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*s %lu", &begin, &end, rights, &inode) != 4) continue;
    if (std::string_view(rights) != "rw-p" || inode != 0) continue;
    std::string held(end - begin, '\0');
    const ssize_t read = ::pread(memory_.get(), held.data(), held.size(), static_cast<off_t>(begin));
    if (read <= 0) continue;
    held.resize(static_cast<std::size_t>(read));
    for (std::size_t at = held.find(bytes); at != std::string::npos; at = held.find(bytes, at + 1)) {
      const char flipped = static_cast<char>(held[at] ^ (1 << bit));
      count += ::pwrite(memory_.get(), &flipped, 1, static_cast<off_t>(begin + at)) == 1 ? 1 : 0;
    }
  }
  return count;
}

// As in /proc/PID/stat: 'T' when stopped; 0: there is no such process.
char Stopped::state() const {
  std::string pid, name;
  char state = 0;
  std::ifstream(concat("/proc/", pid_, "/stat")) >> pid >> name >> state;
  return state;
}

std::vector<HeldSnapshot> snapshots_of(pid_t rank) {
  const std::filesystem::path process = concat("/proc/", rank);
  std::ifstream environment(process / "environ");
  const std::string variable = "OCTET_SNAPSHOTS=";
  std::vector<int> files;  // data and manifest of each slot of the host
  int local_rank = 0;
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (!entry.starts_with(variable)) continue;
    std::replace(entry.begin(), entry.end(), ',', ' ');
    std::istringstream text(entry.substr(variable.size()));
    char colon = 0;
    text >> local_rank >> colon;
    for (int file = -1; text >> file;) files.push_back(file);
  }
  std::vector<HeldSnapshot> snapshots;
  const auto first = static_cast<std::size_t>(local_rank) * 2 * checkpoint::kSlotsPerRank;
  for (std::size_t i = first; i < first + 2 * checkpoint::kSlotsPerRank && i + 1 < files.size(); i += 2) {
    const std::filesystem::path manifest = process / "fd" / std::to_string(files[i + 1]);
    const std::string text = read_file(manifest);
    if (text.empty()) continue;
    const checkpoint::Manifest held = checkpoint::parse_manifest_part(text, manifest.string());
    snapshots.push_back({.step = held.step,
                         .saved_step = held.meta.at("run").at("saved_step").get<std::int64_t>(),
                         .data = process / "fd" / std::to_string(files[i])});
  }
  std::sort(snapshots.begin(), snapshots.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return snapshots;
}

}  // namespace octet::testing

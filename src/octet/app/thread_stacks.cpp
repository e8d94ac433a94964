#include "octet/app/thread_stacks.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

namespace octet::app {
namespace {

constexpr std::chrono::milliseconds kBetween{1};  // so that stacks do not mix

// The first line of a file of /proc, or "".
std::string line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<std::string> ask_for_stacks(pid_t process) {
  std::vector<std::string> lines;
  std::error_code error;  // the process may end meanwhile
  if (process <= 0) return lines;
  for (std::filesystem::directory_iterator entry(fmt::format("/proc/{}/task", process), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path folder = entry->path();
    const std::string name = folder.filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (thread <= 0) continue;
    const std::string stat = line_of(folder / "stat"), where = line_of(folder / "wchan");
    const std::size_t state = stat.rfind(") ");  // the name before it may contain anything
    lines.push_back(fmt::format("thread {} ({}): {}{}", thread, line_of(folder / "comm"),
                                state == std::string::npos ? "?" : stat.substr(state + 2, 1),
                                where.empty() || where == "0" ? "" : ", in " + where));
    ::syscall(SYS_tgkill, process, thread, SIGURG);
    std::this_thread::sleep_for(kBetween);
  }
  return lines;
}

bool is_stack_line(std::string_view line) {
  while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
  return line.starts_with("stack of thread ") || (line.ends_with("]") && line.find("[0x") != std::string_view::npos);
}

std::string readable_stack_line(std::string_view line) {
  const std::size_t begin = line.find("(_Z"), end = line.find('+', begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) return std::string(line);
  const std::string mangled(line.substr(begin + 1, end - begin - 1));
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  if (!name) return std::string(line);
  return std::string(line.substr(0, begin + 1)) + name.get() + std::string(line.substr(end));
}

}  // namespace octet::app

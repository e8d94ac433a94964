// The program `octet` of the wheel. It replaces itself by the build of Octet that fits this machine. pip puts the package `octet`
// into Python's folder of packages. It holds a build for the CPU for each level of x86-64, and one with the CUDA backend.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

namespace fs = std::filesystem;

namespace {

// octet::ExitCode::config
constexpr int kConfig = 2;

// The libraries that the build with the CUDA backend needs to start. octet[cuda] installs them beside the package.
constexpr std::array kCudaLibraries = {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cu13/lib/libnvrtc.so.13",
                                       "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/nccl/lib/libnccl.so.2"};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Returns Python's folder of packages that has `octet`, or "". It is found relative to the folder of this program: in a virtual
// environment or the user's lib/python3.11/site-packages, in Debian's dist-packages, or in the folder of `pip install --target`.
fs::path find_packages(const fs::path& prefix) {
  if (is_there(prefix / "octet/octet-cpu-v3")) return prefix;
  for (const char* library : {"lib", "lib64"}) {
    std::error_code error;
    for (const auto& python : fs::directory_iterator(prefix / library, error)) {
      if (python.path().filename().string().rfind("python3", 0) != 0) continue;
      for (const char* name : {"site-packages", "dist-packages"}) {
        if (is_there(python.path() / name / "octet/octet-cpu-v3")) return python.path() / name;
      }
    }
  }
  return "";
}

std::string choose_build(const fs::path& packages) {
  bool cuda = is_there(packages / "octet/octet-cuda-v3");
  for (const char* library : kCudaLibraries) cuda = cuda && is_there(packages / library);
  if (cuda) return "octet-cuda-v3";
  return __builtin_cpu_supports("x86-64-v4") ? "octet-cpu-v4" : "octet-cpu-v3";
}

}  // namespace

int main(int, char** argv) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("x86-64-v3")) {
    std::fprintf(stderr, "octet: this processor lacks AVX2 or FMA, which the wheel needs (x86-64-v3). Build Octet from its sources.\n");
    return kConfig;
  }
  std::error_code error;
  const fs::path prefix = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path();
  const fs::path packages = find_packages(prefix);
  if (packages.empty()) {
    std::fprintf(stderr, "octet: no package `octet` below %s. Install the wheel again with pip.\n", prefix.c_str());
    return kConfig;
  }
  const fs::path program = packages / "octet" / choose_build(packages);
  ::execv(program.c_str(), argv);
  std::fprintf(stderr, "octet: %s does not start: %s\n", program.c_str(), std::strerror(errno));
  return kConfig;
}

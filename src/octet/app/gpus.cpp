#include "octet/app/gpus.h"

#include <charconv>
#include <vector>

#include "octet/app/ceilings.h"
#include "octet/base/names.h"
#include "octet/base/require.h"

namespace octet::app {
namespace {

// The network of a DGX or HGX: 400 Gbit/s for each GPU, of which large messages get 80%. This is an estimate, because no run of
// ours has crossed a network.
constexpr double kNetworkBytesPerSecond = 0.8 * 50e9;
constexpr int kGpusOfANode = 8;
constexpr int kMostGpus = 1 << 16;

// Both have 132 multiprocessors and 700 W, and under a step's load it is the watts that set the clock
// (docs/measurements/h100-80gb.md), so the H100's products are taken to run at the rates measured on an H200. Memory is what CUDA
// reports, cut to tenths.
std::vector<plan::Gpu> known_gpus() {
  const auto gpu = [](const char* name, double memory_gib, double copy_bytes_per_s) {
    return plan::Gpu{.name = name,
                     .memory_bytes = static_cast<std::size_t>(memory_gib * 0x1p30),
                     .machine = {.flops = ceiling_flops, .copy_bytes_per_s = copy_bytes_per_s},
                     .nvlink_bytes_per_s = kNvlinkBytesPerSecond,
                     .network_bytes_per_s = kNetworkBytesPerSecond};
  };
  return {gpu("H100", 79.1, kH100CopyBytesPerSecond), gpu("H200", 139.8, kH200CopyBytesPerSecond)};
}

}  // namespace

plan::Cluster parse_cluster(const std::string& text, int nodes) {
  const auto refuse = [&](const auto&... why) { fail(ExitCode::config, "--gpus ", text, ": ", why...); };
  const std::size_t cross = text.find('x');
  plan::Cluster cluster;
  const char* const begin = text.data();
  const char* const end = begin + (cross == std::string::npos ? 0 : cross);
  const auto [stop, error] = std::from_chars(begin, end, cluster.gpus);
  if (begin == end || stop != end || error != std::errc()) refuse("must be a number, an x and a GPU, as in 8xH100");
  if (cluster.gpus < 1 || cluster.gpus > kMostGpus) refuse("must be between 1 and ", kMostGpus, " GPUs");

  const std::string name = text.substr(cross + 1);
  std::vector<std::string> names;
  for (const plan::Gpu& gpu : known_gpus()) {
    if (gpu.name == name) cluster.gpu = gpu;
    names.push_back(gpu.name);
  }
  if (cluster.gpu.name.empty()) refuse("unknown GPU ", name, "; known are ", joined(names), did_you_mean(name, names));

  cluster.nodes = nodes;
  if (nodes == 0) {
    const bool whole = cluster.gpus % kGpusOfANode == 0;
    if (!whole && cluster.gpus > kGpusOfANode) refuse("not whole nodes of ", kGpusOfANode, " GPUs; say how many with --nodes");
    cluster.nodes = whole ? cluster.gpus / kGpusOfANode : 1;
  }
  if (cluster.nodes < 1 || cluster.gpus % cluster.nodes != 0) {
    refuse("--nodes ", nodes, ": must divide the ", cluster.gpus, " GPUs");
  }
  return cluster;
}

}  // namespace octet::app

// The memory of a planned run as a picture.
#include <fmt/format.h>

#include <array>
#include <fstream>

#include "octet/app/plan.h"
#include "octet/base/require.h"
#include "octet/report/memory_bar.h"

namespace octet::app {
namespace {

// By category.
constexpr std::array<const char*, kMemoryCategories> kNotes = {
    "what products and norms read: FP8 codes, BF16 values",
    "FP32 values that the optimizer updates",
    "AdamW's first and second moments",
    "sums over the micro-batches of a step",
    "kept from forward to backward",
    "temporaries of an op or a block",
    "scales, histories, tables",
};

}  // namespace

std::string memory_picture(const PlannedRun& run) {
  report::MemoryBar bar{.title = run.run,
                        .lines = {fmt::format("{} on {} {}; {}", run.recipe, run.cluster.gpus, run.cluster.gpu.name,
                                              plan::mesh_text(run.layout.mesh)),
                                  fmt::format("{}; micro-batches of {} x {} tokens", plan::keeps_text(run.layout),
                                              run.layout.micro_batch, run.seq_len)},
                        .parts = {},
                        .gpu = run.cluster.gpu.name,
                        .gpu_bytes = run.cluster.gpu.memory_bytes};
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    bar.parts.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), kNotes[i], run.memory.bytes[i]});
  }
  bar.parts.push_back({"CUDA", "its context and libraries", run.overhead.context});
  bar.parts.push_back({"NCCL", "buffers of communicators, an estimate", run.overhead.nccl});
  return report::draw(bar);
}

void check_picture(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  demand(!error, ExitCode::config, "--picture: cannot look at ", path.string(), ": ", error.message());
  std::string begin(256, '\0');
  std::ifstream file(path, std::ios::binary);
  demand(file.is_open(), ExitCode::config, "--picture: cannot read ", path.string(), ", which is there");
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  demand(report::is_memory_bar(begin), ExitCode::config, "--picture: ", path.string(),
         " exists and is no picture of `octet plan`; give another name, or remove it first");
}

}  // namespace octet::app

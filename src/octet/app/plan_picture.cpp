// The memory of a planned run as a picture.
#include <fmt/format.h>

#include <array>

#include "octet/app/plan.h"
#include "octet/report/memory_bar.h"

namespace octet::app {
namespace {

// By category.
constexpr std::array<const char*, kDeviceCategories> kNotes = {
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
  for (std::size_t i = 0; i < kDeviceCategories; ++i) {
    bar.parts.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), kNotes[i], run.memory.bytes[i]});
  }
  bar.parts.push_back({"CUDA", "its context and libraries", run.overhead.context});
  bar.parts.push_back({"NCCL", "buffers of communicators, an estimate", run.overhead.nccl});
  return report::draw(bar);
}

}  // namespace octet::app

// Prints the results of `octet plan`, for people and for programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "octet/app/plan.h"
#include "octet/base/json.h"
#include "octet/plan/memory_table.h"
#include "octet/plan/offload_time.h"
#include "octet/plan/schedule_gaps.h"
#include "octet/plan/schedule_text.h"
#include "octet/telemetry/format.h"
#include "octet/train/peak.h"

namespace octet::app {
namespace {

using parallel::Axis;
using telemetry::format_bytes;

double mfu_pct(const plan::Step& step) { return 100 * step.model_flops_per_s / train::kHopperPeak.bf16_flops; }

std::string memory_text(const PlannedRun& run) {
  std::string text = plan::memory_table(run.memory.bytes);
  const auto line = [&](const char* name, std::size_t bytes, const std::string& note) {
    text += fmt::format("  {:<40} {:>10}  {}\n", name, format_bytes(bytes), note);
  };
  line("of the workspace cuDNN's", run.attention.bytes,
       run.attention.version.empty() ? concat("an estimate: cuDNN was not asked for ", run.attention.shape)
                                     : concat("measured, cuDNN ", run.attention.version));
  line("CUDA's context and libraries", run.overhead.context, "measured on an H200");
  if (run.overhead.nccl > 0) line("and NCCL's buffers", run.overhead.nccl, "an estimate");
  line("all", run.needed(),
       fmt::format("{} the {} of an {}", run.fits() ? "fits" : "does not fit", format_bytes(run.cluster.gpu.memory_bytes),
                   run.cluster.gpu.name));
  if (run.memory.host() > 0) line("host memory for optimizer states", run.memory.host(), "page-locked, not of the GPU");
  if (run.memory.snapshot > 0) line("of the host, for the snapshot of a save", run.memory.snapshot, "not of the GPU");
  if (!run.local_dir.empty()) line("of its disk, for two snapshots of the rank", 2 * run.memory.held, run.local_dir);
  return text;
}

std::string exchanges_text(const PlannedRun& run) {
  if (run.exchanges.empty()) return "";
  const auto bytes = [](double count) { return format_bytes(static_cast<std::uint64_t>(count)); };
  std::size_t width = 16;  // of the names of most groups; those of messages between stages are longer
  for (const Exchange& e : run.exchanges) width = std::max(width, e.group.size());
  std::string text =
      fmt::format("\nexchanges: sent by a GPU in a step\n  {:<{}} {:<15} {:>5} {:>6} {:>12} {:>12} {:>18} {:>13}\n", "", width,
                  "", "GPUs", "nodes", "NVLink", "network", "each micro-batch", "wire");
  for (const Exchange& e : run.exchanges) {
    text += fmt::format("  {:<{}} {:<15} {:>5} {:>6} {:>12} {:>12} {:>18} {:>10.3f} ms\n", e.group, width, e.op, e.span.ranks,
                        e.span.nodes, bytes(e.sent.nvlink_bytes), bytes(e.sent.network_bytes),
                        e.each_bytes ? bytes(*e.each_bytes) : "-", 1e3 * e.seconds);
  }
  return text;
}

Json layout_json(const PlannedRun& run) {
  const plan::LayoutChoice& layout = run.layout;
  Json axes;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) axes[parallel::name_of(Axis(i))] = layout.mesh.size(Axis(i));
  axes["pipeline_chunks"] = layout.mesh.stages().chunks;
  axes["expert"] = layout.mesh.expert();
  axes["weights"] = layout.weights == parallel::Weights::kept ? "kept" : "resharded";
  axes["gradients"] = layout.gradients == parallel::Gradients::whole ? "whole" : "sharded";
  axes["activation_checkpoint"] = layout.checkpointing == nn::Checkpointing::full        ? "full"
                                  : layout.checkpointing == nn::Checkpointing::selective ? "selective"
                                                                                         : "none";
  if (layout.full_layers >= 0) axes["activation_checkpoint_layers"] = layout.full_layers;
  axes["micro_batch_size"] = layout.micro_batch;
  axes["micro_batches"] = run.micro_batches;
  return axes;
}

Json predicted_json(const plan::Step& step) {
  return {{"step_s", step.seconds},
          {"compute_s", step.compute_s},
          {"memory_s", step.memory_s},
          {"waited_s", step.waited_s},
          {"exposed_s", step.exposed_s},
          {"copies_s", step.copies_s},
          {"bubble_s", step.bubble_s},
          {"wire_s", step.wire_s},
          {"tokens_per_s_per_gpu", step.tokens_per_s},
          {"tflops_per_gpu", step.model_flops_per_s * 1e-12},
          {"mfu_pct", mfu_pct(step)},
          {"bound", name_of(step.bound)}};
}

Json run_json(const PlannedRun& run) {
  Json memory;
  for (std::size_t i = 0; i < kDeviceCategories; ++i) {
    memory[std::string(name_of(static_cast<MemoryCategory>(i)))] = run.memory.bytes[i];
  }
  memory["total"] = run.memory.total();
  memory["attention_workspace"] = run.attention.bytes;
  memory["attention_workspace_measured"] = !run.attention.version.empty();
  memory["context"] = run.overhead.context;
  memory["nccl"] = run.overhead.nccl;
  memory["needed"] = run.needed();
  memory["host_snapshot"] = run.memory.snapshot;
  memory["local_dir"] = run.local_dir.empty() ? 0 : 2 * run.memory.held;
  memory["host_states"] = run.memory.host();
  memory["of_gpu"] = run.cluster.gpu.memory_bytes;
  Json exchanges = Json::array();
  for (const Exchange& e : run.exchanges) {
    exchanges.push_back({{"group", e.group},
                         {"op", e.op},
                         {"ranks", e.span.ranks},
                         {"nodes", e.span.nodes},
                         {"bytes", e.bytes},
                         {"nvlink_bytes", e.sent.nvlink_bytes},
                         {"network_bytes", e.sent.network_bytes},
                         {"bytes_each_micro_batch", e.each_bytes ? Json(*e.each_bytes) : Json()},
                         {"seconds", e.seconds}});
  }
  Json ops = Json::array();
  for (const OpTime& op : run.ops) {
    ops.push_back({{"op", op.op},
                   {"shape", op.work.shape},
                   {"calls", op.calls},
                   {"flops", op.work.flops},
                   {"bytes", op.work.bytes},
                   {"seconds", run.has_rates ? Json(op.seconds) : Json()}});
  }
  const plan::Step& step = run.step;
  return {{"run", run.run},
          {"recipe", run.recipe},
          {"parameters", run.parameters},
          {"gpu", run.cluster.gpu.name},
          {"gpus", run.cluster.gpus},
          {"nodes", run.cluster.nodes},
          {"layout", layout_json(run)},
          {"memory_bytes", memory},
          {"fits", run.fits()},
          {"flops", step.flops},
          {"fp8_flops", step.fp8_flops},
          {"memory_traffic_bytes", step.memory_bytes},
          {"nvlink_bytes", step.sent.nvlink_bytes},
          {"network_bytes", step.sent.network_bytes},
          {"exchanges", exchanges},
          {"ops", ops},
          {"predicted", run.has_rates ? predicted_json(step) : Json()}};
}

Json tasks_json(const parallel::StepShape& shape, const std::vector<parallel::TimedTask>& tasks) {
  Json list = Json::array();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    list.push_back({{"stream", plan::name_of(tasks[i].task.stream)},
                    {"task", plan::name_of(shape, tasks[i].task)},
                    {"begin_s", tasks[i].begin},
                    {"end_s", tasks[i].end},
                    {"tensor_s", tasks[i].tensor_s},
                    {"waits_for", plan::waits_for(tasks, i)}});
  }
  return list;
}

std::string passes_text(const PlannedRun& run) {
  const int chunks = run.layout.mesh.stages().chunks;
  std::string text = "\nThe passes of all stages, waits for messages included (m0 is the first micro-batch):\n";
  text += fmt::format("{:<14} {:>11} {:>11}\n", "stage", "begin, ms", "end, ms");
  for (std::size_t stage = 0; stage < run.passes.size(); ++stage) {
    std::vector<parallel::Visit> visits;
    for (const plan::TimedPass& pass : run.passes[stage]) visits.push_back(pass.visit);
    std::size_t next = 0;
    const auto add_until = [&](std::size_t end) {
      for (; next < end; ++next) {
        const auto& [visit, from, to] = run.passes[stage][next];
        text += fmt::format("{:<14} {:>11.3f} {:>11.3f}  {}\n", stage, 1e3 * from, 1e3 * to, pass_text(visit, chunks));
      }
    };
    for (const plan::Gap& gap : plan::gaps_of(visits)) {
      if (gap.end - gap.begin == 1) continue;  // the pass takes one line, too
      add_until(gap.begin);
      text += fmt::format("{:<14} ... {} alike\n", stage, gap.of);
      next = gap.end;
    }
    add_until(visits.size());
  }
  return text;
}

// A stage's range is left out if it begins while the computation does what is left out of the list.
std::string ranges_text(const PlannedRun& run) {
  std::string text = fmt::format("{:<14} {:>11} {:>11}\n", "stream", "begin, ms", "end, ms");
  std::vector<plan::Gap> gaps;
  if (!run.passes.empty()) gaps = plan::gaps_of(run.shape, run.tasks);
  auto gap = gaps.begin();
  const plan::Gap* left_out = nullptr;  // the one that was named last
  for (const train::StepRange& range : run.ranges) {
    while (gap != gaps.end() && plan::end_of(run.tasks, *gap) <= range.begin) ++gap;
    // A gap of blocks hides their computation. Transfers that run meanwhile belong to other blocks.
    const bool may_hide = gap != gaps.end() && (std::string_view(range.stream) == "compute" || !gap->of.starts_with("block"));
    if (may_hide && plan::begin_of(run.tasks, *gap) <= range.begin) {
      if (left_out != &*gap) text += fmt::format("{:<14} ... {} alike\n", "", gap->of);
      left_out = &*gap;
      continue;
    }
    text += fmt::format("{:<14} {:>11.3f} {:>11.3f}  {:{}}{}\n", range.stream, 1e3 * range.begin, 1e3 * range.end, "",
                        2 * range.depth, range.name);
  }
  return text;
}

// The list of the first micro-batch or of a stage's step; if only the last micro-batch reduces gradients, the part of its list
// that does; and the end of the step.
std::string tasks_text(const PlannedRun& run) {
  const bool stages = !run.passes.empty();
  std::string text =
      stages
          ? fmt::format(
                "\nThe micro-batches as each rank of stage {} enqueues them, with the times of the table above (docs/walk.md):\n",
                run.shape.stage)
          : "\nThe first micro-batch as each rank enqueues it (docs/walk.md):\n";
  const std::string columns = fmt::format("{:>5} {:>10} {:>10}  {:<13} task\n", "", "begin, ms", "end, ms", "stream");
  text += columns + plan::text_of(run.shape, run.tasks);
  const auto reduces = [](const std::vector<parallel::TimedTask>& tasks) {
    return std::any_of(tasks.begin(), tasks.end(), [](const auto& timed) { return timed.task.kind == parallel::Kind::reduce; });
  };
  if (reduces(run.last) && !reduces(run.tasks)) {
    text += "\nThe backward pass of the last micro-batch, the only one that reduces gradients:\n" + columns +
            plan::text_of(run.shape, run.last, plan::begin_of_backward(run.shape, run.last));
  }
  return text + "\nThe end of the step:\n" + plan::text_of(run.shape, run.update);
}

}  // namespace

std::string cluster_text(const plan::Cluster& cluster) {
  if (cluster.nodes == 1) return fmt::format("{} {} in one node", cluster.gpus, cluster.gpu.name);
  return fmt::format("{} {} in {} nodes of {}", cluster.gpus, cluster.gpu.name, cluster.nodes, cluster.per_node());
}

std::string pass_text(const parallel::Visit& visit, int chunks) {
  return fmt::format("{} m{}{}", visit.backward ? "backward" : "forward", visit.micro_batch,
                     chunks > 1 ? fmt::format(" chunk {}", visit.chunk) : "");
}

// "; stages of 8, 9, 9, 6 blocks", if there are stages.
std::string stages_text(const parallel::StepShape& shape) {
  const parallel::Stages stages = shape.stages;
  if (stages.count == 1) return "";
  std::vector<int> blocks(static_cast<std::size_t>(stages.count));
  for (int chunk = 0; chunk < stages.count * stages.chunks; ++chunk)
    blocks[static_cast<std::size_t>(chunk % stages.count)] += parallel::blocks_of(shape.blocks, stages, chunk).count();
  return fmt::format("; stages of {} blocks", fmt::join(blocks, ", "));
}

std::string plan_text(const PlannedRun& run) {
  const plan::Step& step = run.step;
  std::string text =
      fmt::format("{}: {} parameters, {}, on {}\n", run.run, telemetry::format_compact(static_cast<double>(run.parameters)),
                  run.recipe, cluster_text(run.cluster));
  text += fmt::format("{}{}; {}\n{} of {} x {} tokens to a step\n\n", plan::mesh_text(run.layout.mesh), stages_text(run.shape),
                      plan::keeps_text(run.layout), telemetry::format_count(run.micro_batches, "micro-batch"),
                      run.layout.micro_batch, run.seq_len);
  text += "memory of a GPU\n" + memory_text(run) + exchanges_text(run);
  text += fmt::format("\na step of a GPU\n  operations          {:>10.1f} TFLOP, {:.1f} of them in FP8\n", step.flops * 1e-12,
                      step.fp8_flops * 1e-12);
  text += fmt::format("  to and from memory  {:>10}\n", format_bytes(static_cast<std::uint64_t>(step.memory_bytes)));
  text += fmt::format("  over NVLink         {:>10}\n", format_bytes(static_cast<std::uint64_t>(step.sent.nvlink_bytes)));
  text += fmt::format("  over the network    {:>10}\n", format_bytes(static_cast<std::uint64_t>(step.sent.network_bytes)));
  if (!run.has_rates) {
    return text +
           fmt::format("\nno prediction: an {} has no instructions for {} and emulates it. The emulation's rate is not known.\n",
                       run.cluster.gpu.name, run.recipe);
  }
  text += "\npredicted, not measured (docs/plan.md)\n";
  const auto time = [&](const char* name, double seconds, const std::string& note) {
    text += fmt::format("  {:<24}{:>12.2f} ms{}\n", name, 1e3 * seconds, note);
  };
  time("products and attention", step.compute_s, "");
  time("memory-bound ops", step.memory_s, "");
  time("exchanges, not hidden", step.exposed_s,
       fmt::format("  of {:.2f} ms; {:.2f} ms waited", 1e3 * step.wire_s, 1e3 * step.waited_s));
  if (step.bubble_s > 0) {
    time("bubble of the pipeline", step.bubble_s,
         fmt::format("  {} of a step", telemetry::format_share(step.bubble_s / step.seconds)));
  }
  if (run.memory.host() > 0) {
    time("states, not hidden", step.copies_s,
         fmt::format("  of {:.2f} ms to the GPU and back", 1e3 * plan::state_copies(run.update).seconds));
  }
  time("a step", step.seconds, fmt::format("  bound by {}", name_of(step.bound)));
  return text + fmt::format("  {}  {:.0f} TFLOPS  mfu {}\n", telemetry::format_rate(step.tokens_per_s, telemetry::Worker::gpu),
                            step.model_flops_per_s * 1e-12, telemetry::format_share(0.01 * mfu_pct(step)));
}

std::string schedule_text(const PlannedRun& run) {
  std::string text =
      fmt::format("{}: {}, on {}; predicted, not measured (docs/plan.md)\n", run.run, run.recipe, cluster_text(run.cluster));
  text += fmt::format("{}; {}\n", plan::mesh_text(run.layout.mesh), plan::keeps_text(run.layout));
  const bool stages = !run.passes.empty();
  if (stages) {
    text += passes_text(run);
    text += fmt::format(
        "\nThe streams of stage {} (--stage N shows another one). These times are not those of the passes above: here all\n"
        "messages of the stage are there when its step begins, so that it never waits for another stage.\n",
        run.shape.stage);
  } else if (run.micro_batches > 3) {
    text += fmt::format("the first, a middle and the last of {} micro-batches\n", run.micro_batches);
  }
  return text + ranges_text(run) + tasks_text(run);
}

std::string schedule_json(const PlannedRun& run) {
  Json ranges = Json::array(), stages = Json::array();
  for (const train::StepRange& range : run.ranges) {
    ranges.push_back(
        {{"stream", range.stream}, {"name", range.name}, {"depth", range.depth}, {"begin_s", range.begin}, {"end_s", range.end}});
  }
  for (const std::vector<plan::TimedPass>& passes : run.passes) {
    Json list = Json::array();
    for (const auto& [visit, begin, end] : passes) {
      list.push_back({{"pass", visit.backward ? "backward" : "forward"},
                      {"micro_batch", visit.micro_batch},
                      {"chunk", visit.chunk},
                      {"begin_s", begin},
                      {"end_s", end}});
    }
    stages.push_back(list);
  }
  return Json{{"run", run.run},
              {"recipe", run.recipe},
              {"gpu", run.cluster.gpu.name},
              {"gpus", run.cluster.gpus},
              {"nodes", run.cluster.nodes},
              {"layout", layout_json(run)},
              {"stage", run.shape.stage},
              {"passes_of_stages", stages},
              {"ranges", ranges},
              {"tasks", tasks_json(run.shape, run.tasks)},
              {"tasks_of_last_micro_batch", tasks_json(run.shape, run.last)},
              {"tasks_of_update", tasks_json(run.shape, run.update)}}
             .dump(2) +
         "\n";
}

std::string plan_json(const PlannedRun& run) { return run_json(run).dump(2) + "\n"; }

std::string search_text(const std::vector<PlannedRun>& best, std::size_t found, const std::string& why) {
  const PlannedRun& first = best.front();
  std::string text = fmt::format("{} on {}: {} layouts fit; predicted, not measured (docs/plan.md)\n", first.run,
                                 cluster_text(first.cluster), found);
  const auto some = [&](const auto& has) {
    return std::any_of(best.begin(), best.end(), [&](const PlannedRun& run) { return has(run.layout.mesh); });
  };
  // Columns that only some clusters need.
  const bool shared = some([](const parallel::Mesh& mesh) { return mesh.expert() > 1; });
  const bool staged = some([](const parallel::Mesh& mesh) { return mesh.stages().count > 1; });
  const auto expert = [&](const auto& value) { return shared ? fmt::format(" {:>7}", value) : ""; };
  const auto pipeline = [&](const std::string& value) { return staged ? fmt::format("{:>8} ", value) : ""; };
  const auto bubble = [&](const std::string& value) { return staged ? fmt::format(" {:>6}", value) : ""; };
  text += fmt::format("{}{:>9} {:>6} {:>8} {:>7}{}  {:<10} {:<8} {:<13} {:>11} {:>10} {:>8} {:>6} {:>10}{}  {}\n",
                      pipeline("pipeline"), "replicate", "shard", "context", "tensor", expert("expert"), "weights", "grads",
                      "checkpointing", "micro-batch", "memory", "tok/s", "mfu", "exposed", bubble("bubble"), "bound");
  for (const PlannedRun& run : best) {
    const Json layout = layout_json(run);
    const parallel::Mesh& mesh = run.layout.mesh;
    const parallel::Stages stages = mesh.stages();
    const std::string of =
        stages.chunks > 1 ? fmt::format("{} x {}", stages.count, stages.chunks) : fmt::format("{}", stages.count);
    text += fmt::format("{}{:>9} {:>6} {:>8} {:>7}{}  {:<10} {:<8} {:<13} {:>11} {:>10} {:>8} {:>5.1f}% {:>9.1f}%{}  {}\n",
                        pipeline(of), mesh.size(Axis::replicate), mesh.size(Axis::shard), mesh.size(Axis::context),
                        mesh.size(Axis::tensor), expert(mesh.expert()), layout["weights"].get<std::string>(),
                        layout["gradients"].get<std::string>(), layout["activation_checkpoint"].get<std::string>(),
                        run.layout.micro_batch, format_bytes(run.needed()), telemetry::format_count(run.step.tokens_per_s),
                        mfu_pct(run.step), 100 * run.step.exposed_s / run.step.seconds,
                        bubble(fmt::format("{:.1f}%", 100 * run.step.bubble_s / run.step.seconds)), name_of(run.step.bound));
  }
  if (staged) text += "pipeline: stages x the chunks of each, if there are several\n";
  return text + "\n" + why + "\n";
}

std::string search_json(const std::vector<PlannedRun>& best, std::size_t found, const std::string& why) {
  Json layouts = Json::array();
  for (const PlannedRun& run : best) layouts.push_back(run_json(run));
  return Json{{"fitting", found}, {"best", layouts}, {"why", why}}.dump(2) + "\n";
}

}  // namespace octet::app

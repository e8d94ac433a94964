// `octet bench step RUN.toml`: times the steps of a run on random tokens, as a whole and then op by op; under a launcher, on
// all its ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "octet/app/bench.h"
#include "octet/app/ceilings.h"
#include "octet/app/commands.h"
#include "octet/app/energy.h"
#include "octet/app/fetched.h"
#include "octet/app/memory_fit.h"
#include "octet/app/threads.h"
#include "octet/base/clock.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/telemetry/format.h"
#include "octet/train/peak.h"
#include "octet/train/setup.h"
#include "octet/train/world.h"

namespace octet::app {
namespace {

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocab, int coordinate) {
  const Rng rng(1, RngStream::test, static_cast<std::uint32_t>(coordinate));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(rng.word64(i) % static_cast<std::uint64_t>(vocab));
  }
  return tokens;
}

std::string name_of(const OpTime& time) {
  const auto& s = time.work.shape;
  return s[0] > 0 ? fmt::format("{} {} x {} x {}", time.op, s[0], s[1], s[2]) : time.op;
}

// Whether the rate of an op is that of its operations. Memory bounds all other ops.
bool computes(std::string_view op) { return op.starts_with("gemm ") || op.starts_with("attention_"); }

// The ceilings of a CPU are unknown, so each op shows its rate and its share of the step's time.
Json show_cpu_profile(const std::vector<OpTime>& profile, double tokens) {
  Json list = Json::array();
  double total = 0;
  for (const OpTime& t : profile) total += t.seconds;
  fmt::print("{:<44} {:>7} {:>10} {:>12} {:>7}\n", "op, of one step", "calls", "us/token", "rate", "share");
  for (const OpTime& t : profile) {
    const double rate = (computes(t.op) ? t.work.flops : t.work.bytes) * 1e-9 / t.seconds;
    const char* const unit = computes(t.op) ? "GF/s" : "GB/s";
    fmt::print("{:<44} {:>7} {:>10.3f} {:>7.1f} {:<4} {:>6.2f}\n", name_of(t), t.calls, t.seconds / tokens * 1e6, rate, unit,
               t.seconds / total);
    list.push_back({{"op", name_of(t)}, {"calls", t.calls}, {"seconds", t.seconds}, {"rate", rate}, {"unit", unit}});
  }
  fmt::print("{:<44} {:>7} {:>10.3f}\n", "all", "", total / tokens * 1e6);
  return list;
}

Json show_profile(const std::vector<OpTime>& profile, double tokens, const std::string& gpu) {
  Json list = Json::array();
  double total = 0, floors = 0;
  fmt::print("{:<44} {:>7} {:>10} {:>8} {:>12} {:>7}\n", "op, of one step", "calls", "us/token", "floor", "rate", "share");
  for (const OpTime& t : profile) {
    const double floor = floor_seconds(t.op, t.work, copy_bytes_per_second(gpu));
    const double rate = (computes(t.op) ? t.work.flops * 1e-12 : t.work.bytes * 1e-9) / t.seconds;
    const char* const unit = computes(t.op) ? "TF/s" : "GB/s";
    fmt::print("{:<44} {:>7} {:>10.3f} {:>8.3f} {:>7.0f} {:<4} {:>6.2f}\n", name_of(t), t.calls, t.seconds / tokens * 1e6,
               floor / tokens * 1e6, rate, unit, floor / t.seconds);
    list.push_back({{"op", name_of(t)},
                    {"calls", t.calls},
                    {"seconds", t.seconds},
                    {"floor_seconds", floor},
                    {"rate", rate},
                    {"unit", unit}});
    total += t.seconds;
    floors += floor;
  }
  fmt::print("{:<44} {:>7} {:>10.3f} {:>8.3f} {:>12} {:>6.2f}\n", "all", "", total / tokens * 1e6, floors / tokens * 1e6, "",
             floors / total);
  return list;
}

}  // namespace

int run_bench_run(const BenchArgs& args) {
  const Clock::time_point launched = Clock::now();
  train::Config config = load_run(args.run);
  const comm::RankEnvironment where = comm::rank_environment([](const char* name) -> const char* { return std::getenv(name); });
  train::check_config(config, where.size);
  use_threads(config, where.local_size);
  const DeviceKind device = train::device_of(config);
  if (where.rank > 0) set_log(Log::own_warnings);
  train::warn_of_idle_preset(config);
  train::World world(where, config);
  config = fitting_together(world, config, where);
  const parallel::Mesh& mesh = world.mesh();
  train::EngineOptions options = train::engine_options(config, train::recipe_of(config, device));
  options.layout = train::layout_of(config, mesh);
  options.rank = world.rank();
  train::Engine engine(options, world.device(), world.groups());
  engine.initialise(config.run.seed);
  engine.tune(train::gemm_tuning());

  const std::int64_t accumulation = train::accumulation_of(config, mesh.data_coordinates());
  const auto micro_tokens = options.seq_len * options.micro_batch_size;
  const std::vector<std::int32_t> ids =
      random_tokens(micro_tokens * accumulation + 1, options.model.vocab, mesh.data_coordinate(world.rank()));
  std::uint32_t step = 0;
  const auto run_step = [&](bool is_last) {
    engine.begin_step(accumulation);
    for (std::int64_t micro = 0; micro < accumulation; ++micro) {
      const std::span all(ids);
      const auto at = static_cast<std::size_t>(micro * micro_tokens), count = static_cast<std::size_t>(micro_tokens);
      engine.forward_backward({.tokens = all.subspan(at, count), .targets = all.subspan(at + 1, count)}, nullptr);
    }
    engine.apply(1e-5, ++step, {.stop = is_last});
  };
  kernels::StepScalars scalars;
  Json losses = Json::array();  // of all steps; the number of timed ones depends on their speed
  const auto finish = [&] {
    scalars = engine.optimizer().read(engine.stream());
    engine.check_ranks();
    demand(scalars.found_inf == 0, ExitCode::not_finite, "step ", step, " of the bench changed nothing: loss ",
           scalars.mean_loss(), ", gradient norm ", scalars.grad_norm);
    losses.push_back(scalars.mean_loss());
  };

  run_step(false);
  finish();
  const double launch_s = seconds_since(launched);
  run_step(false);
  finish();
  const Clock::time_point start = Clock::now();
  Energy energy(world.gpu());
  std::int64_t steps = 0;
  do {
    run_step(seconds_since(start) >= args.seconds);
    finish();
    ++steps;
  } while (!engine.requests().stop);
  const double seconds = seconds_since(start) / static_cast<double>(steps);
  const std::optional<double> joules = energy.take_joules();
  const double joules_of_step = joules.value_or(0) / static_cast<double>(steps);
  // This rank's tokens. Tokens that it shares with others count once.
  const double tokens = static_cast<double>(micro_tokens * accumulation * mesh.data_coordinates()) / mesh.ranks();
  const double joules_of_token = joules_of_step / (device == DeviceKind::cpu ? tokens * mesh.ranks() : tokens);
  const double flops = tokens * options.flops_per_token() / seconds;
  const std::size_t peak = engine.device().memory().total_peak;
  if (world.is_first()) {
    fmt::print("{} on {}{}, recipe {}: {} of {} x ({} x {}) tokens\n", config.run.name, octet::name_of(device),
               mesh.ranks() == 1 ? "" : fmt::format(" x {}", mesh.ranks()), options.recipe.name,
               telemetry::format_count(steps, "step"), accumulation, options.micro_batch_size, options.seq_len);
    std::string rate = fmt::format("{:.0f} TFLOPS", flops * 1e-12);
    if (device == DeviceKind::cpu) {
      rate = fmt::format("{:.1f} GFLOP/s on {}", flops * 1e-9, telemetry::format_count(num_threads(), "thread"));
    } else if (const std::optional<train::Peak> peak_speed = train::peak_of(cuda_properties().name)) {
      rate += fmt::format(", mfu {} of BF16's peak, {} of FP8's", telemetry::format_share(flops / peak_speed->bf16_flops),
                          telemetry::format_share(flops / peak_speed->fp8_flops));
    }
    fmt::print("{:.0f} {}, {:.1f} ms a step, {}, {}, first step {:.1f} s after the start, step {}: loss {:.3f}, grad {:.3f}\n",
               tokens / seconds, telemetry::rate_unit(telemetry::worker_of(octet::name_of(device))), seconds * 1e3, rate,
               telemetry::format_bytes(peak), launch_s, step, scalars.mean_loss(), scalars.grad_norm);
    if (joules) {
      fmt::print("{:.1f} J a step, {:.3f} mJ a token, of {}\n", joules_of_step, joules_of_token * 1e3,
                 device == DeviceKind::cpu ? "all processors of this machine" : "the GPU of rank 0");
    }
  }

  engine.stream().start_profile();
  run_step(false);
  const std::vector<OpTime> times = engine.stream().take_profile();
  engine.close();
  world.barrier("profiled");
  if (!world.is_first()) return 0;
  const Json profile =
      device == DeviceKind::cpu ? show_cpu_profile(times, tokens) : show_profile(times, tokens, cuda_properties().name);
  if (!args.json.empty()) {
    const Json result = {{"tokens_per_s", tokens / seconds},
                         {"step_seconds", seconds},
                         {"tflops", flops * 1e-12},
                         {"memory_gib", static_cast<double>(peak) * 0x1p-30},
                         {"launch_s", launch_s},
                         {"losses", losses},
                         {"joules_per_token", joules ? Json(joules_of_token) : Json()},
                         {"ops", profile}};
    write_output(args.json, result.dump(2) + "\n");
  }
  return 0;
}

}  // namespace octet::app

#include "octet/app/advise.h"
#include "octet/train/setup.h"

namespace octet::app {
namespace {

constexpr int kWarmUps = 3, kTimedRuns = 20;

// The mean of repeated runs, op by op.
template <class Body>
std::vector<OpTime> profile_of(Stream& stream, const Body& body) {
  for (int i = 0; i < kWarmUps; ++i) body();
  stream.start_profile();
  for (int i = 0; i < kTimedRuns; ++i) body();
  std::vector<OpTime> profile = stream.take_profile();
  for (OpTime& op : profile) op.seconds /= kTimedRuns;
  return profile;
}

}  // namespace

plan::LinearTime measure_linear(Stream& stream, const plan::LinearKind& kind, const Recipe& recipe,
                                const plan::LinearSetting& setting, const plan::LinearOps& ops) {
  plan::LinearRun run(stream, kind, recipe, setting, ops.capacity);
  run.micro_batch();  // makes its products known
  run.update_scales();
  run.cast_weight();
  kernels::GemmTuning tuning = train::gemm_tuning();
  tuning.progress = {};
  kernels::tune_gemms(stream, run.scratch(), tuning);
  plan::LinearOps timed;
  timed.micro_batch = profile_of(stream, [&] { run.micro_batch(); });
  timed.weight = profile_of(stream, [&] { run.cast_weight(); });
  return plan::measured_time(timed, kind, setting);
}

}  // namespace octet::app

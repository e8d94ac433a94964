#include "octet/plan/time_model.h"

#include <algorithm>
#include <functional>

#include "octet/base/math.h"
#include "octet/kernels/grouped_gemm/grouped_gemm.h"

namespace octet::plan {
namespace {

// The tile of large products on Hopper, and the shortest piece of K for which a split along K is worth the extra sum.
constexpr std::int64_t kTileM = 128, kTileN = 256, kPieceK = 512;

bool is_product(const OpTime& op) { return std::string_view(op.op).starts_with("gemm "); }

LinearTime add_up(const LinearOps& ops, const LinearKind& kind, const LinearSetting& setting,
                  const std::function<double(const OpTime&)>& seconds) {
  const double chunks = static_cast<double>(setting.tokens()) / static_cast<double>(tokens_at_a_time(kind, setting));
  LinearTime time;
  for (const OpTime& op : ops.micro_batch) (is_product(op) ? time.products_s : time.others_s) += chunks * seconds(op);
  for (const OpTime& op : ops.weight) time.others_s += seconds(op) / static_cast<double>(setting.micro_batches);
  return time;
}

}  // namespace

double fill_of(const std::array<std::int64_t, 3>& shape, std::int64_t multiprocessors) {
  const auto [m, n, k] = shape;
  const std::int64_t tiles = ceil_div(m, kTileM) * ceil_div(n, kTileN);
  const std::int64_t pieces = std::clamp<std::int64_t>(multiprocessors / tiles, 1, std::max<std::int64_t>(1, k / kPieceK));
  const std::int64_t units = tiles * pieces;
  return static_cast<double>(units) / static_cast<double>(multiprocessors * ceil_div(units, multiprocessors));
}

double predicted_seconds(const Machine& machine, const OpTime& op, int kernels) {
  const double memory_s = op.work.bytes / machine.copy_bytes_per_s;
  const double launches_s = static_cast<double>(op.calls) * machine.launch_s;
  if (!is_product(op) || machine.flops(op.op) == 0) return kernels * launches_s + memory_s;
  const double share = std::string_view(op.op).ends_with(kernels::kGroupedSuffix) ? kGroupedShare : 1;
  const double rate = machine.flops(op.op) * share * fill_of(op.work.shape, machine.multiprocessors);
  return launches_s + std::max(op.work.flops / rate, memory_s);
}

LinearTime predicted_time(const Machine& machine, const LinearOps& ops, const LinearKind& kind, const Recipe& recipe,
                          const LinearSetting& setting) {
  const int kernels = recipe.is_fp8() && kernels::needs_amax_first(recipe.x) ? 2 : 1;
  return add_up(ops, kind, setting, [&](const OpTime& op) { return predicted_seconds(machine, op, kernels); });
}

LinearTime measured_time(const LinearOps& ops, const LinearKind& kind, const LinearSetting& setting) {
  return add_up(ops, kind, setting, [](const OpTime& op) { return op.seconds; });
}

}  // namespace octet::plan

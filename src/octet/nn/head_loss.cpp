#include "octet/nn/head_loss.h"

#include <algorithm>

#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/nn/rmsnorm.h"

namespace octet::nn {
namespace {

// Logits held at a time: on a GPU enough of them to fill it; a multiple of 128 tokens, so that chunks cut no scale tile.
std::int64_t chunk_tokens(DeviceKind device, std::int64_t vocab) {
  const std::int64_t elements = std::int64_t{1} << (device == DeviceKind::cuda ? 29 : 25);
  return std::max<std::int64_t>(128, elements / vocab / 128 * 128);
}

Recipe head_recipe(const Recipe& recipe) {
  Recipe head = recipe;
  if (head.is_fp8() && !head.head_fp8) head.compute = Compute::bf16;
  return head;
}

}  // namespace

HeadLoss::HeadLoss(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : options_(options),
      head_({.parts = {"lm_head"},
             .out = options.vocab,
             .in = options.dim,
             .init_std = options.init_std,
             .shared_weight = options.tied},
            head_recipe(recipe), store, scales) {}

void HeadLoss::chunks(const Scope& scope, const Tensor& h, const Tensor& targets, double* total, const Tensor& gh) const {
  const std::int64_t tokens = h.rows(), step = chunk_tokens(scope.queue.target(), options_.vocab);
  for (std::int64_t begin = 0; begin < tokens; begin += step) {
    const std::int64_t end = std::min(tokens, begin + step);
    const ArenaScope kept(scope.stash);
    const ArenaScope temporaries(scope.scratch);
    const Tensor logits = allocate(scope.scratch, scope.dtype, {end - begin, options_.vocab});
    const Tensor loss = allocate(scope.scratch, statistics_dtype(scope.dtype), {end - begin});
    const Tensor chunk_targets = targets.slice_rows(begin, end);
    LinearSaved saved;
    head_.forward(scope, h.slice_rows(begin, end), {}, logits, gh ? &saved : nullptr);
    kernels::cross_entropy(scope.queue,
                           {.logits = logits,
                            .targets = chunk_targets,
                            .loss = loss,
                            .gradient = gh ? kernels::CrossEntropy::Gradient::in_place : kernels::CrossEntropy::Gradient::none});
    kernels::loss_sum(scope.queue, {.loss = loss, .targets = chunk_targets, .total = total});
    if (gh) head_.backward(scope, logits, saved, gh.slice_rows(begin, end));
  }
}

void HeadLoss::loss(const Scope& scope, const Tensor& h, const Tensor& targets, double* total) const {
  chunks(scope, h, targets, total, {});
}

void HeadLoss::loss_and_gradient(const Scope& scope, const Tensor& h, const Tensor& targets, double* total,
                                 const Tensor& gh) const {
  chunks(scope, h, targets, total, gh);
}

void HeadLoss::logits(const Scope& scope, const Tensor& h, const Tensor& logits) const {
  head_.forward(scope, h, {}, logits, nullptr);
}

}  // namespace octet::nn

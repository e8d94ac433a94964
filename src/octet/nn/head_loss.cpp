#include "octet/nn/head_loss.h"

#include <algorithm>

#include "octet/kernels/cross_entropy/cross_entropy.h"
#include "octet/nn/sequence.h"

namespace octet::nn {

std::int64_t head_chunk_tokens(DeviceKind device, std::int64_t vocab) {
  const std::int64_t elements = std::int64_t{1} << (device == DeviceKind::cuda ? 29 : 25);
  return std::max<std::int64_t>(128, elements / vocab / 128 * 128);
}

namespace {

// Targets of tokens [begin, end) of each rank's share, as gather_tokens orders them.
Tensor gather_targets(const Scope& scope, const Tensor& targets, std::int64_t begin, std::int64_t end) {
  if (scope.tensor.size() == 1) return targets.slice_rows(begin, end);
  const std::int64_t share = targets.rows() / scope.tensor.size(), count = end - begin;
  const Tensor result = allocate(scope.scratch, targets.dtype, {scope.tensor.size() * count});
  for (int rank = 0; rank < scope.tensor.size(); ++rank) {
    const Tensor from = targets.slice_rows(rank * share + begin, rank * share + end);
    scope.stream.copy(result.slice_rows(rank * count, (rank + 1) * count).data, from.data, from.bytes());
  }
  return result;
}

// Overwrites loss [T] and, if `gradient` says so, `logits` with the gradient. `vocab` is that of all ranks.
void cross_entropy(const Scope& scope, std::int64_t vocab, const Tensor& logits, const Tensor& targets, const Tensor& loss,
                   kernels::CrossEntropy::Gradient gradient) {
  if (scope.tensor.size() == 1) {
    return kernels::cross_entropy(scope.stream, {.logits = logits, .targets = targets, .loss = loss, .gradient = gradient});
  }
  const std::int64_t ranks = scope.tensor.size(), first = scope.tensor.rank() * logits.cols();
  const ArenaScope temporaries(scope.scratch);
  const Tensor all = allocate(scope.scratch, loss.dtype, {3 * ranks, logits.rows()});
  const Tensor own = all.slice_rows(3 * scope.tensor.rank(), 3 * scope.tensor.rank() + 3);
  kernels::softmax_statistics(scope.stream, {.logits = logits, .targets = targets, .first = first, .statistics = own});
  scope.tensor.all_gather(scope.stream, scope.scratch, {.x = own, .y = all});
  kernels::cross_entropy_of_part(scope.stream, {.logits = logits,
                                                .targets = targets,
                                                .first = first,
                                                .vocabulary = vocab,
                                                .statistics = all,
                                                .loss = loss,
                                                .gradient = gradient});
}

Recipe head_recipe(const Recipe& recipe) {
  Recipe head = recipe;
  if (head.is_fp8() && !head.head_fp8) head.compute = Compute::bf16;
  return head;
}

}  // namespace

HeadLoss::HeadLoss(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : head_({.parts = {options.name},
             .out = options.vocab,
             .in = options.dim,
             .cut = {.along = parallel::Cut::rows},
             .init_std = options.init_std,
             .shared_weight = options.tied},
            head_recipe(recipe), store, scales) {}

void HeadLoss::loss(const Scope& scope, const Tensor& h, const Tensor& targets, double* total, const Tensor& gh) const {
  const std::int64_t tokens = h.rows(), vocab = head_.weight().cut.global()[0];
  const std::int64_t step = head_chunk_tokens(scope.stream.target(), vocab);
  const Reads reads = gh ? Reads::fprop_and_wgrad : Reads::fprop;
  const auto gradient = gh ? kernels::CrossEntropy::Gradient::in_place : kernels::CrossEntropy::Gradient::none;
  for (std::int64_t begin = 0; begin < tokens; begin += step) {
    const std::int64_t end = std::min(tokens, begin + step);
    const ArenaScope kept(scope.stash);
    const ArenaScope temporaries(scope.scratch);
    const std::int64_t rows = scope.tensor.size() * (end - begin);
    const Tensor logits = allocate(scope.scratch, scope.dtype, {rows, head_.weight().spec.shape[0]});
    const Tensor loss = allocate(scope.scratch, statistics_dtype(scope.dtype), {rows});
    const Tensor chunk_targets = gather_targets(scope, targets, begin, end);
    const Operand x = linear_forward(scope, head_, {.values = h.slice_rows(begin, end)}, reads, {}, logits);
    cross_entropy(scope, vocab, logits, chunk_targets, loss, gradient);
    kernels::loss_sum(scope.stream, {.loss = loss, .targets = chunk_targets, .total = total});
    if (gh) linear_backward(begin == 0 ? scope : adding(scope), head_, {.values = logits}, x, gh.slice_rows(begin, end));
  }
}

void HeadLoss::logits(const Scope& scope, const Tensor& h, const Tensor& logits) const {
  linear_forward(scope, head_, {.values = h}, Reads::fprop, {}, logits);
}

}  // namespace octet::nn

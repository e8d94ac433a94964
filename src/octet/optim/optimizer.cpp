#include "octet/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "octet/base/rng.h"
#include "octet/kernels/adamw/fp8_moments.h"
#include "octet/kernels/norm/norm.h"

namespace octet::optim {
namespace {

// State::requests counts the ranks that ask to stop, those that are busy, those that failed, and those that ask for a snapshot, each
// in digits of its own. No run has 100,000 ranks, and rank 0 alone asks for snapshots, so a double holds the sum exactly.
constexpr double kStop = 1, kBusy = kStop * (1 << 17), kFailed = kBusy * (1 << 17), kSnapshot = kFailed * (1 << 17);

// The optimizer's state in device memory. The first four numbers are sums().
struct State {
  double sum_squares;
  double requests;
  double loss_total[2];
  kernels::StepScalars scalars;
  std::int32_t updates;
};

State* state_of(const Buffer& buffer) { return static_cast<State*>(buffer.data()); }

}  // namespace

Optimizer::Optimizer(Device& device, parallel::ParameterStore& store, const OptimizerOptions& options,
                     const parallel::UpdateWork& work)
    : store_(store), options_(options), state_(device.allocate(sizeof(State), MemoryCategory::state)) {
  for (const parallel::Parameter& p : store_.parameters()) {
    require(!p.held || p.spec.frozen || (p.grad_shard && p.moment1 && p.moment2), "optimizer: ", p.spec.name,
            " has no gradient or no moments");
  }
  for (const parallel::UnitRange units : work.units) squares_.push_back(squares_of(device, units));
  for (const std::vector<parallel::StatePiece>& pieces : work.pieces) updates_.push_back(lists_of(device, pieces));
}

Optimizer::Squares Optimizer::squares_of(Device& device, parallel::UnitRange units) const {
  std::vector<Tensor> gradients;
  for (const parallel::Parameter& p : store_.parameters()) {
    if (!units.contains(p.unit) || p.spec.frozen) continue;
    for (const parallel::TensorPiece& piece : p.own_pieces()) gradients.push_back(p.of_shard(p.grad_shard, piece));
  }
  return {units, {device, std::move(gradients)}};
}

std::vector<kernels::AdamWList> Optimizer::lists_of(Device& device, const std::vector<parallel::StatePiece>& pieces) const {
  std::vector<std::vector<kernels::AdamW>> lists;
  for (const parallel::StatePiece& state : pieces) {
    const parallel::Parameter& p = *state.parameter;
    for (const parallel::TensorPiece& piece : p.cut.pieces(state.first, state.elements)) {
      const bool copies = p.master && p.value_shard;
      const std::int64_t begin = piece.local - state.first, end = begin + piece.elements();
      const auto scales = [&](const Tensor& of) {
        return of ? of.slice_rows(begin / kernels::kMomentGroup, kernels::moment_scales(end)) : of;
      };
      const kernels::AdamW op{.grad = p.of_shard(p.grad_shard, piece),
                              .weight = state.weight.slice_rows(begin, end),
                              .moment1 = state.moment1.slice_rows(begin, end),
                              .moment2 = state.moment2.slice_rows(begin, end),
                              .value = copies ? p.of_shard(p.value_shard, piece) : Tensor{},
                              .moment1_scale = scales(state.moment1_scale),
                              .moment2_scale = scales(state.moment2_scale),
                              .beta1 = options_.beta1,
                              .beta2 = options_.beta2,
                              .epsilon = options_.epsilon,
                              .weight_decay = p.spec.decay ? options_.weight_decay : 0.0,
                              .seed = options_.seed,
                              .subject = name_id(p.spec.name),
                              .elements = piece.global_elements(p.cut.global()),
                              .scalars = &state_of(state_)->scalars};
      const auto same = std::find_if(lists.begin(), lists.end(), [&](const std::vector<kernels::AdamW>& list) {
        return list.front().grad.dtype == op.grad.dtype && list.front().weight.dtype == op.weight.dtype;
      });
      (same == lists.end() ? lists.emplace_back() : *same).push_back(op);
    }
  }
  std::vector<kernels::AdamWList> result;
  for (std::vector<kernels::AdamW>& list : lists) result.emplace_back(device, std::move(list));
  return result;
}

double* Optimizer::loss_total() const { return state_of(state_)->loss_total; }
const float* Optimizer::found_inf() const { return &state_of(state_)->scalars.found_inf; }
Tensor Optimizer::updates() const { return {&state_of(state_)->updates, DType::i32, {1}}; }

Tensor Optimizer::sums() const { return {state_of(state_), DType::f64, {4}}; }

void Optimizer::reset_sums(Stream& stream) { stream.zero(sums().data, sums().bytes()); }

void Optimizer::ask(Stream& stream, Requests requests) {
  const double number = (requests.stop ? kStop : 0) + (requests.busy ? kBusy : 0) + (requests.failed ? kFailed : 0) +
                        (requests.snapshot ? kSnapshot : 0);
  if (number > 0) stream.copy_to_device(&state_of(state_)->requests, &number, sizeof number);
}

void Optimizer::add_squares(Stream& stream, Arena& scratch, parallel::UnitRange units) {
  const auto squares = std::find_if(squares_.begin(), squares_.end(), [&](const Squares& known) { return known.units == units; });
  require(squares != squares_.end(), "optimizer: units ", units.begin, " to ", units.end, " are not added up together");
  kernels::sum_squares(stream, scratch, {.x = squares->gradients, .total = &state_of(state_)->sum_squares});
}

void Optimizer::add_up_ranks(Arena& scratch, const parallel::Groups& groups, parallel::Units& units) {
  Stream& params = units.params_stream();
  // Behind this exchange no rank gathers shards any more, so they may change.
  groups.shards->all_reduce(params, scratch, {.x = sums()});
  // The ranks of the tensor axis have seen the same tokens, so their losses are not added up.
  groups.tensor->all_reduce(params, scratch, {.x = sums().slice_rows(0, 2)});
  // Only the last stage knows the loss.
  units.exchange_of_stages([&] { groups.stages->all_reduce(params, scratch, {.x = sums()}); });
  // Replicas hold the same gradients, but NCCL may have added up their squares in another order in each of them. All of them take
  // the sum of the first, so that their weights stay equal to the bit.
  if (groups.replicas->rank() > 0) params.zero(sums().data, sizeof(double));
  groups.replicas->all_reduce(params, scratch, {.x = sums()});
}

void Optimizer::prepare(Stream& stream, const StepInput& input) {
  State* state = state_of(state_);
  kernels::prepare_step(stream, {.loss_total = state->loss_total,
                                 .sum_squares = &state->sum_squares,
                                 .max_grad_norm = options_.max_grad_norm,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .learning_rate = input.learning_rate,
                                 .step = input.step,
                                 .updates = &state->updates,
                                 .scalars = &state->scalars});
}

void Optimizer::update(Stream& stream, std::size_t number) {
  for (const kernels::AdamWList& list : updates_.at(number)) kernels::adamw(stream, list);
}

void Optimizer::read(Stream& stream, kernels::StepScalars& host) const {
  stream.copy_to_host(&host, &state_of(state_)->scalars, sizeof host);
}

kernels::StepScalars Optimizer::read(Stream& stream) const {
  kernels::StepScalars host{};
  read(stream, host);
  stream.synchronize();
  return host;
}

Requests Optimizer::requests(Stream& stream) const {
  double sum = 0.0;
  stream.copy_to_host(&sum, &state_of(state_)->requests, sizeof sum);
  stream.synchronize();
  const bool busy = std::fmod(sum, kFailed) >= kBusy;
  return {.stop = std::fmod(sum, kBusy) >= kStop,
          .snapshot = sum >= kSnapshot && !busy,
          .busy = busy,
          .failed = std::fmod(sum, kSnapshot) >= kFailed};
}

}  // namespace octet::optim

#include "octet/nn/moe.h"

#include <algorithm>
#include <utility>

#include "octet/base/math.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/experts/experts.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/router/router.h"
#include "octet/nn/expert_rounds.h"
#include "octet/nn/sequence.h"

namespace octet::nn {
namespace {

constexpr const char* kRouterBias = "e_score_correction_bias";  // the name that transformers gives it in DeepSeek-V3

// Returns the part of a scope that experts and exchanges read, on another stream, with another stash and other experts' ranks.
Scope scope_on(const Scope& scope, Stream& stream, Arena& stash, comm::Group& expert) {
  return {.stream = stream,
          .stash = stash,
          .scratch = scope.scratch,
          .dtype = scope.dtype,
          .record = scope.record,
          .pass = scope.pass,
          .checkpointing = scope.checkpointing,
          .overwrites = scope.overwrites,
          .watch = scope.watch,
          .deterministic = scope.deterministic,
          .context = scope.context,
          .tensor = scope.tensor,
          .expert = expert,
          .token_numbers = scope.token_numbers,
          .step = scope.step};
}

// The scope of the exchanges between the ranks that hold experts.
Scope exchange_scope(const Scope& scope) {
  return scope_on(scope, scope.stream_of(parallel::StreamId::experts), scope.stash, scope.expert);
}

// The scope of the experts' linears in a round.
Scope in_groups(const Scope& scope, const ExpertRoundSaved& round) {
  Scope result = scope;
  result.groups = &round.plan.groups;
  result.token_numbers = round.token_numbers;
  return result;
}

// Returns x in the dtype in which the router computes.
Tensor for_router(const Scope& scope, const Tensor& x) {
  if (x.dtype == statistics_dtype(scope.dtype)) return x;
  const Tensor result = allocate(scope.scratch, statistics_dtype(scope.dtype), x.shape);
  kernels::cast(scope.stream, {.x = x, .y = result});
  return result;
}

}  // namespace

Moe::Moe(const Options& options, const Recipe& recipe, parallel::ParameterStore& store, recipes::ScaleState& scales)
    : options_(options),
      place_(store.expert_place()),
      router_(&store.add({.name = options.mlp.name + ".gate.weight",
                          .shape = {options.mlp.experts, options.mlp.dim},
                          .init_std = options.mlp.init_std})),
      bias_(options.bias_rate ? &store.add({.name = options.mlp.name + ".gate." + kRouterBias,
                                            .shape = {options.mlp.experts},
                                            .init_std = 0.0,
                                            .decay = false,
                                            .tracked = true})
                              : nullptr),
      experts_(options.mlp, recipe, store, scales) {}

// If the tokens of several ranks are gathered, all of them are kept, not this share.
Operand Moe::input(const Scope& scope, std::int64_t tokens) const {
  const bool kept = scope.tensor.size() == 1 && scope.checkpointing != Checkpointing::selective;
  return {.values = allocate(kept ? scope.stash.get() : scope.scratch, scope.dtype, {tokens, options_.mlp.dim})};
}

// Computes logits, experts and weights, and the statistics that the losses of whole sequences need.
void Moe::route(const Scope& scope, const Operand& h, MoeSaved& saved) const {
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved = {};
  saved.h = gather_tokens(scope, keep ? scope.stash.get() : scope.scratch, h.values);
  const std::int64_t tokens = saved.h.rows(), k = options_.top_k;
  const DType dtype = statistics_dtype(scope.dtype);
  saved.logits = allocate(scope.stash, dtype, {tokens, options_.mlp.experts});
  saved.experts = allocate(scope.stash, DType::i32, {tokens, k});
  saved.weights = allocate(scope.stash, dtype, {tokens, k});
  saved.statistics = allocate(scope.stash, dtype, {scope.batch, 2 * options_.mlp.experts + 1});
  saved.rows = allocate(scope.stash, DType::i32, {tokens, k});
  // All ranks of the tensor axis must choose the same experts for a token.
  kernels::gemm(
      scope.stream, scope.scratch,
      {.a = {.values = saved.h}, .b = {.values = router_->value}, .d = saved.logits, .same_on_ranks = scope.tensor.size() > 1});
  kernels::router_forward(scope.stream, scope.scratch,
                          {.logits = saved.logits,
                           .bias = bias_ ? bias_->value : Tensor{},
                           .experts = saved.experts,
                           .weights = saved.weights,
                           .statistics = saved.statistics,
                           .normalise = options_.normalise});
  if (scope.context.size() > 1) scope.context.all_reduce(scope.stream, scope.scratch, {.x = saved.statistics});
  if (!scope.router_total || scope.context.rank() > 0) return;  // the other ranks have the statistics of the same sequences
  // A training step reports means over all tokens. An evaluation gives the loss whose gradient backward computes.
  kernels::router_losses(scope.stream, {.statistics = saved.statistics,
                                        .counted = scope.pass == Pass::evaluation ? scope.counted : Tensor{},
                                        .seq_len = tokens / scope.batch * scope.context.size(),
                                        .total = scope.router_total,
                                        .loads = scope.router_total + 2 + options_.number * options_.mlp.experts});
}

void Moe::update_bias(Stream& stream, const double* router_total, const float* found_inf) const {
  if (!bias_ || !bias_->held || !bias_->spec.saved) return;
  kernels::update_router_bias(stream, {.bias = bias_->value,
                                       .loads = router_total + 2 + options_.number * options_.mlp.experts,
                                       .rate = *options_.bias_rate,
                                       .found_inf = found_inf});
}

// On one rank, rows are in the order in which its experts multiply them, and the host does not wait.
void Moe::count_rows(const Scope& scope, MoeSaved& saved) const {
  const ArenaScope temporaries(scope.scratch);
  const bool alone = scope.expert.size() == 1;
  const std::int64_t rows = saved.rows.elements();
  if (alone) saved.rounds.push_back({.plan = {.groups = make_groups(scope, rows, rows)}});
  const Tensor counts =
      alone ? saved.rounds.front().plan.groups.counts : allocate(scope.scratch, DType::i32, {options_.mlp.experts});
  kernels::expert_order(scope.stream,
                        {.experts = saved.experts, .multiple = alone ? kGroupRows : 1, .counts = counts, .rows = saved.rows});
  if (alone) return kernels::group_rows(scope.stream, {saved.rounds.front().plan.groups});
  const int ranks = scope.expert.size();
  const Tensor all = allocate(scope.scratch, DType::i32, {ranks * options_.mlp.experts});
  scope.expert.all_gather(scope.stream, scope.scratch, {.x = counts, .y = all});
  const std::int64_t most = std::min(rows, ceil_div(2 * rows, std::int64_t{ranks}));
  std::vector<ExpertRound> rounds;
  if (scope.stream.kind() == DeviceKind::meta) {
    rounds.push_back(even_round(rows, ranks, scope.expert.rank(), own_count()));
  } else {
    std::vector<std::int32_t> host(static_cast<std::size_t>(all.elements()));
    scope.stream.copy_to_host(host.data(), all.data, all.bytes());
    scope.stream.synchronize();
    scope.expert.check();
    rounds = expert_rounds(host, ranks, scope.expert.rank(), most);
  }
  const Tensor places = allocate(scope.stash, DType::i32, {ranks * most, 1});
  const RowGroups groups = make_groups(scope, ranks * most, rows);
  for (ExpertRound& round : rounds) {
    round.groups = groups;
    round.device_places = places;
    saved.rounds.push_back({.plan = std::move(round)});
  }
  if (saved.rounds.size() == 1) announce(scope, saved.rounds.front().plan);
}

void Moe::announce(const Scope& scope, const ExpertRound& plan) const {
  scope.stream.copy_to_device(plan.device_places.data, plan.places.data(), plan.places.size() * sizeof plan.places.front());
  scope.stream.copy_to_device(plan.groups.counts.data, plan.counts.data(), plan.groups.counts.bytes());
  kernels::group_rows(scope.stream, {plan.groups});
}

Operand Moe::received(const Scope& scope, const MoeSaved& saved, const ExpertRoundSaved& round, const Quantizer& reader,
                      const Tensor& x, const Tensor& weights, const Tensor& memory) const {
  const DType dtype = dtype_sent(scope, round, reader);
  const Tensor result(memory.data, dtype, {round.plan.groups.rows(), options_.mlp.dim});
  if (scope.expert.size() == 1) {
    kernels::expert_scatter(scope.stream, {.x = x, .rows = saved.rows, .weights = weights, .y = result});
    kernels::clear_gaps(scope.stream, {round.plan.groups, result});
    return {.values = result};
  }
  const bool codes = dtype != scope.dtype;
  Tensor scales;
  if (codes && reader.scales_rows_sent()) {
    scales = allocate(scope.scratch, DType::f32, {options_.mlp.experts});
    scale_rows(scope, {.x = x, .experts = saved.experts, .weights = weights, .amax = scales}, reader.spec(scope));
  }
  const ArenaScope temporaries(scope.scratch);
  const Tensor rows = allocate(scope.scratch, dtype, {saved.rows.elements(), options_.mlp.dim});
  kernels::expert_scatter(scope.stream, {.x = x,
                                         .rows = saved.rows,
                                         .weights = weights,
                                         .y = codes ? Tensor{} : rows,
                                         .experts = saved.experts,
                                         .codes = codes ? reader.sent(scope, rows, scales) : kernels::QuantizeEpilogue{}});
  send_to_experts(scope, round.plan, rows, result);
  if (!codes) return {.values = result};
  Operand arrived;
  arrived.codes.rowwise = result;
  if (scales)
    arrived.scales = scales.slice_rows(place_.begin(options_.mlp.experts), place_.begin(options_.mlp.experts) + own_count());
  return arrived;
}

void Moe::number_rows(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const {
  const bool adapted = experts_.up().is_adapted() || experts_.down().is_adapted();
  if (!scope.token_numbers || !adapted) return;
  // A number travels as the bits of two BF16 values, which exchanges copy.
  const auto in_halves = [](const Tensor& numbers) { return Tensor(numbers.data, DType::bf16, {numbers.rows(), 2}); };
  round.token_numbers = allocate(scope.stash, DType::i32, {round.plan.groups.rows()});
  const kernels::ExpertScatter scatter{
      .x = in_halves(scope.token_numbers), .rows = saved.rows, .y = in_halves(round.token_numbers)};
  if (scope.expert.size() == 1) return kernels::expert_scatter(scope.stream, scatter);
  const ArenaScope temporaries(scope.scratch);
  kernels::ExpertScatter to_rows = scatter;
  to_rows.y = allocate(scope.scratch, DType::bf16, {saved.rows.elements(), 2});
  kernels::expert_scatter(scope.stream, to_rows);
  send_to_experts(scope, round.plan, to_rows.y, scatter.y);
}

void Moe::receive(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const {
  const Quantizer& x = experts_.up().x();
  Arena& arena = scope.checkpointing != Checkpointing::selective && x.keeps_values() ? scope.stash.get() : scope.scratch;
  round.in = received(scope, saved, round, x, saved.h, {}, allocate_rows(arena, round, dtype_sent(scope, round, x)));
}

void Moe::receive_gradients(const Scope& scope, const MoeSaved& saved, const MoeWork& work, ExpertRoundSaved& round) const {
  round.out = allocate_rows(scope.scratch, round, scope.dtype);
  round.gradient = received(scope, saved, round, experts_.down().g(), work.gy, saved.weights, round.out);
}

void Moe::run_experts(const Scope& outer, ExpertRoundSaved& round) const {
  if (!round.out) round.out = allocate_rows(outer.scratch, round, outer.dtype);
  const ArenaScope temporaries(outer.scratch);
  experts_.forward(in_groups(outer, round), round.in, {}, round.out, round.experts);
}

void Moe::run_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const {
  const ArenaScope temporaries(scope.scratch);
  announce(scope, round.plan);
  round.out = {};
  receive(scope, saved, round);
  number_rows(scope, saved, round);
  run_experts(scope, round);
  send_back(scope, round.plan, round.out, saved.returned);
}

void Moe::dispatch(const Scope& outer, MoeSaved& saved, MoeWork& work) const {
  const Scope scope = exchange_scope(outer);
  count_rows(scope, saved);
  work.mark = scope.scratch.used();
  const std::int64_t rows = scope.expert.size() > 1 ? saved.rows.elements() : saved.rounds.front().plan.groups.rows();
  saved.returned = allocate(scope.stash, scope.dtype, {rows, options_.mlp.dim});
  if (needs_room_for_rounds(scope)) {
    measure_rounds(scope, saved, [&](const Scope& uncounted, Rounds& rounds) { run_rounds(uncounted, saved, rounds); });
  }
  if (saved.rounds.size() > 1) return;
  ExpertRoundSaved& round = saved.rounds.front();
  saved.stash = &scope.stash.get();
  saved.kept = saved.stash->used();
  receive(scope, saved, round);
  number_rows(scope, saved, round);
  if (scope.expert.size() == 1) round.out = saved.returned;
}

void Moe::run_rounds(const Scope& scope, const MoeSaved& saved, Rounds& rounds) const {
  Scope forgetful = scope;
  forgetful.checkpointing = Checkpointing::selective;  // keeps the least
  for (ExpertRoundSaved& round : rounds) {
    const ArenaScope forgotten(scope.stash);
    run_round(forgetful, saved, round);
  }
}

void Moe::experts(const Scope& scope, MoeSaved& saved) const {
  if (saved.rounds.size() > 1) return run_rounds(scope, saved, saved.rounds);
  run_experts(scope, saved.rounds.front());
  saved.kept = saved.stash->used() - saved.kept;
}

void Moe::collect(const Scope& outer, MoeSaved& saved, const MoeWork& work) const {
  const Scope scope = exchange_scope(outer);
  const ExpertRoundSaved& round = saved.rounds.front();
  if (saved.rounds.size() == 1 && scope.expert.size() > 1) send_back(scope, round.plan, round.out, saved.returned);
  outer.scratch.release_to(work.mark);
}

void Moe::combine(const Scope& scope, const Tensor& residual, const Tensor& y, const MoeSaved& saved) const {
  if (!y) return;
  const ArenaScope temporaries(scope.scratch);
  PartialSum sum(scope, residual, y);
  kernels::expert_combine(scope.stream,
                          {.x = saved.returned, .rows = saved.rows, .weights = saved.weights, .residual = sum.c, .y = sum.d});
  sum.finish(scope);
}

void Moe::rebuild(const Scope& scope, const Operand& h, MoeSaved& saved) const {
  saved.h = gather_tokens(scope, scope.scratch, h.values);
}

void Moe::combine_backward(const Scope& scope, const Operand& share, const MoeSaved& saved, MoeWork& work) const {
  work.gy = gather_tokens(scope, scope.scratch, share.values);
  work.gweights = allocate(scope.scratch, saved.weights.dtype, saved.weights.shape);
  kernels::expert_dot(scope.stream, {.gy = work.gy, .x = saved.returned, .rows = saved.rows, .gweights = work.gweights});
}

void Moe::run_rounds_backward(const Scope& scope, const MoeSaved& saved, Rounds& rounds, const MoeWork& work) const {
  Scope recompute = without_record(scope);
  recompute.checkpointing = Checkpointing::none;
  for (ExpertRoundSaved& round : rounds) {
    const ArenaScope temporaries(scope.scratch), remade(scope.stash);
    run_round(recompute, saved, round);
    receive_gradients(scope, saved, work, round);
    const Scope products = in_groups(&round == &rounds.front() ? scope : adding(scope), round);
    experts_.backward(products, round.gradient, round.experts, round.out);
    send_back(scope, round.plan, round.out, work.rows);
  }
}

// Two ranks need one round, because a capacity is twice what balanced rows take.
bool Moe::needs_room_for_rounds(const Scope& scope) { return scope.stream.kind() == DeviceKind::meta && scope.expert.size() > 2; }

// Calls run(), which does what a pass does if there are several rounds, so that the scratch is planned for it. Returns the bytes
// that a round keeps in the stash. The work is not counted, because a plan expects one round.
std::size_t Moe::measure_rounds(const Scope& scope, const MoeSaved& saved,
                                const std::function<void(const Scope&, Rounds&)>& run) const {
  const ArenaScope temporaries(scope.scratch);
  const std::unique_ptr<Stream> uncounted = scope.stream.device().make_stream();
  const std::unique_ptr<comm::Group> silent = comm::make_silent_group("uncounted", scope.expert.rank(), scope.expert.size());
  Arena stash(scope.stream.device(), MemoryCategory::activations, 0);
  Rounds rounds = {saved.rounds.front()};
  rounds.front().plan.whole = false;
  run(scope_on(scope, *uncounted, stash, *silent), rounds);
  return stash.high_water();
}

void Moe::dispatch_gradients(const Scope& outer, MoeSaved& saved, MoeWork& work) const {
  const Scope scope = exchange_scope(outer);
  if (scope.expert.size() > 1) work.rows = allocate(scope.scratch, scope.dtype, saved.returned.shape);
  work.mark = scope.scratch.used();
  if (needs_room_for_rounds(scope)) {
    const std::size_t needed = measure_rounds(
        scope, saved, [&](const Scope& uncounted, Rounds& rounds) { run_rounds_backward(uncounted, saved, rounds, work); });
    // Rounds keep nothing until backward. In a pipeline what one round keeps lies in another stash.
    const std::size_t spared = saved.stash == &scope.stash.get() ? saved.kept : 0;
    const ArenaScope room(scope.stash);
    if (needed > spared) scope.stash.get().allocate(needed - spared);
  }
  if (saved.rounds.size() > 1) return;
  ExpertRoundSaved& round = saved.rounds.front();
  if (scope.checkpointing == Checkpointing::selective) receive(without_record(scope), saved, round);
  receive_gradients(scope, saved, work, round);
}

void Moe::experts_backward(const Scope& scope, MoeSaved& saved, const MoeWork& work) const {
  if (saved.rounds.size() > 1) return run_rounds_backward(scope, saved, saved.rounds, work);
  ExpertRoundSaved& round = saved.rounds.front();
  if (scope.checkpointing == Checkpointing::selective) {
    experts_.rebuild(in_groups(rebuild_scope(scope), round), round.in, round.experts);
  }
  experts_.backward(in_groups(scope, round), round.gradient, round.experts, round.out);
}

void Moe::collect_gradients(const Scope& outer, MoeSaved& saved, MoeWork& work) const {
  if (outer.expert.size() == 1) {
    work.rows = saved.rounds.front().out;
    return;
  }
  const ExpertRoundSaved& round = saved.rounds.front();
  if (saved.rounds.size() == 1) send_back(exchange_scope(outer), round.plan, round.out, work.rows);
  outer.scratch.release_to(work.mark);
}

// Overwrites gh with what the router's logits give. Each rank of the tensor axis has a part of `gweights`, and so a part of what
// follows from them.
void Moe::router_backward(const Scope& scope, const MoeSaved& saved, const Tensor& gweights, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const Tensor glogits = allocate(scope.scratch, saved.logits.dtype, saved.logits.shape);
  const bool losses = (options_.balance != 0 || options_.z != 0) && scope.tensor.rank() == 0;
  kernels::router_backward(scope.stream, {.logits = saved.logits,
                                          .experts = saved.experts,
                                          .weights = saved.weights,
                                          .gweights = gweights,
                                          .statistics = losses ? saved.statistics : Tensor{},
                                          .counted = scope.counted,
                                          .seq_len = saved.h.rows() / scope.batch * scope.context.size(),
                                          .balance = options_.balance,
                                          .z = options_.z,
                                          .normalise = options_.normalise,
                                          .glogits = glogits});
  // Both products have the router's dtype. They are rounded when they are copied to gh, and when they are added to the gradient.
  {
    const ArenaScope of_tokens(scope.scratch);
    const Tensor exact = gh.dtype == glogits.dtype ? gh : allocate(scope.scratch, glogits.dtype, gh.shape);
    const Tensor weight = for_router(scope, router_->value);
    kernels::gemm(scope.stream, scope.scratch, {.a = {.values = glogits}, .b = kernels::transposed_values(weight), .d = exact});
    if (exact.data != gh.data) kernels::cast(scope.stream, {.x = exact, .y = gh});
  }
  if (router_->spec.frozen) return;
  const Tensor gradient = allocate(scope.scratch, glogits.dtype, router_->grad.shape);
  const Tensor h = for_router(scope, saved.h);
  kernels::gemm(scope.stream, scope.scratch,
                {.a = kernels::transposed_values(glogits), .b = kernels::transposed_values(h), .d = gradient});
  kernels::add(scope.stream, {.x = gradient, .y = router_->grad});
}

void Moe::route_backward(const Scope& scope, const MoeSaved& saved, const MoeWork& work, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  PartialSum sum(scope, {}, gh);
  router_backward(scope, saved, work.gweights, sum.d);
  kernels::expert_combine(scope.stream, {.x = work.rows, .rows = saved.rows, .residual = sum.d, .y = sum.d});
  sum.finish(scope);
}

}  // namespace octet::nn

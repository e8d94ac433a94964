#include "octet/nn/moe.h"

#include <algorithm>
#include <utility>

#include "octet/base/math.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/kernels/experts/experts.h"
#include "octet/kernels/gemm/gemm.h"
#include "octet/kernels/router/router.h"
#include "octet/nn/expert_exchange.h"
#include "octet/nn/norm.h"
#include "octet/nn/sequence.h"

namespace octet::nn {
namespace {

// Returns what an Mlp reads of a scope, on another stream, with another stash and other groups.
Scope scope_on(const Scope& scope, Stream& stream, Arena& stash, comm::Group& tensor, comm::Group& expert) {
  return {.stream = stream,
          .stash = stash,
          .scratch = scope.scratch,
          .dtype = scope.dtype,
          .record = scope.record,
          .pass = scope.pass,
          .checkpointing = scope.checkpointing,
          .watch = scope.watch,
          .deterministic = scope.deterministic,
          .context = scope.context,
          .tensor = tensor,
          .expert = expert};
}

// Experts see whole rows of all ranks of the tensor axis, so nothing is gathered before them or scattered behind them.
Scope expert_scope(const Scope& scope, comm::Group& alone) {
  return scope_on(scope, scope.stream, scope.stash, alone, scope.expert);
}

// A scope of the meta device in which nothing is counted.
struct Uncounted {
  std::unique_ptr<Stream> stream;
  std::unique_ptr<comm::Group> expert;
  Arena stash;
  explicit Uncounted(const Scope& scope)
      : stream(scope.stream.device().make_stream()),
        expert(comm::make_silent_group("uncounted", scope.expert.rank(), scope.expert.size())),
        stash(scope.stream.device(), MemoryCategory::activations, 0) {}
  Scope scope(const Scope& of, Arena& where) { return scope_on(of, *stream, where, of.tensor, *expert); }
};

// Runs `usual`, and then fills the arena up to what any other distribution of rows could leave in it: the bytes of `most`, which gives
// one expert all that it can get, and for each allocation what alignment can add when every expert has some rows.
template <class Most, class Usual>
void at_least(Arena& arena, Most most, Usual usual) {
  const std::size_t before = arena.used();
  most();
  std::size_t wanted = arena.used();
  arena.release_to(before);
  const std::size_t allocations = arena.allocations();
  usual();
  wanted += (arena.allocations() - allocations) * Device::kAlignment;
  if (arena.used() < wanted) arena.allocate(wanted - arena.used());
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
      router_(&store.add(
          {.name = options.name + ".gate.weight", .shape = {options.experts, options.dim}, .init_std = options.init_std})),
      alone_(comm::make_silent_group("one expert")) {
  for (std::int64_t e = 0; e < options.experts; ++e) {
    experts_.push_back(std::make_unique<Mlp>(Mlp::Options{.name = concat(options.name, ".experts.", e),
                                                          .up = options.up,
                                                          .down = options.down,
                                                          .dim = options.dim,
                                                          .ffn = options.ffn,
                                                          .init_std = options.init_std,
                                                          .output_init_std = options.output_init_std,
                                                          .expert = {e, options.experts}},
                                             recipe, store, scales));
  }
}

std::vector<Linear*> Moe::linears() {
  std::vector<Linear*> result;
  for (const auto& expert : experts_) {
    result.push_back(&expert->up());
    result.push_back(&expert->down());
  }
  return result;
}

// If the tokens of several ranks are gathered, all of them are kept and not this share.
Operand Moe::input(const Scope& scope, std::int64_t tokens) const {
  const bool kept = scope.tensor.size() == 1 && scope.checkpointing != Checkpointing::selective;
  return {.values = allocate(kept ? scope.stash.get() : scope.scratch, scope.dtype, {tokens, options_.dim})};
}

Operand Moe::rebuild_input(const Scope& scope, std::int64_t tokens) const {
  return {.values = allocate(scope.scratch, scope.dtype, {tokens, options_.dim})};
}

// Computes logits, experts and weights, the places of the rows, and what the losses need of whole sequences.
void Moe::route(const Scope& scope, MoeSaved& saved) const {
  const std::int64_t tokens = saved.h.rows(), k = options_.top_k;
  const DType dtype = statistics_dtype(scope.dtype);
  saved.logits = allocate(scope.stash, dtype, {tokens, options_.experts});
  saved.experts = allocate(scope.stash, DType::i32, {tokens, k});
  saved.weights = allocate(scope.stash, dtype, {tokens, k});
  saved.statistics = allocate(scope.stash, dtype, {scope.batch, 2 * options_.experts + 1});
  saved.rows = allocate(scope.stash, DType::i32, {tokens, k});
  kernels::gemm(scope.stream, scope.scratch,
                {.a = {.values = saved.h}, .b = {.values = router_->value}, .c = {}, .d = saved.logits});
  kernels::router_forward(
      scope.stream, scope.scratch,
      {.logits = saved.logits, .experts = saved.experts, .weights = saved.weights, .statistics = saved.statistics});
  if (scope.context.size() > 1) scope.context.all_reduce(scope.stream, scope.scratch, {.x = saved.statistics});
  if (!scope.router_total || scope.context.rank() > 0) return;  // whose other ranks have the statistics of the same sequences
  kernels::router_losses(
      scope.stream,
      {.statistics = saved.statistics, .seq_len = tokens / scope.batch * scope.context.size(), .total = scope.router_total});
}

// Returns the number of rows that a rank may have for another one in a round.
std::int64_t Moe::quota(const Scope& scope, std::int64_t tokens) const {
  const std::int64_t all = tokens * options_.top_k;
  return std::min(all, ceil_div(2 * all, std::int64_t{scope.expert.size()}));
}

ExpertRound Moe::fullest(const Scope& scope, std::int64_t tokens) const {
  return fullest_round(quota(scope, tokens), tokens, scope.expert.size(), own_count());
}

// The host waits for nothing but the numbers of rows.
std::vector<ExpertRound> Moe::count_rounds(const Scope& scope, const MoeSaved& saved) const {
  const ArenaScope temporaries(scope.scratch);
  const int ranks = scope.expert.size();
  const std::int64_t tokens = saved.h.rows();
  const Tensor counts = allocate(scope.scratch, DType::i32, {options_.experts});
  const Tensor all = allocate(scope.scratch, DType::i32, {ranks * options_.experts});
  kernels::expert_order(
      scope.stream, {.experts = saved.experts, .multiple = ranks > 1 ? 1 : kExpertRows, .counts = counts, .rows = saved.rows});
  scope.expert.all_gather(scope.stream, scope.scratch, {.x = counts, .y = all});
  if (scope.stream.kind() == DeviceKind::meta)
    return {even_round(ceil_div(tokens * options_.top_k, std::int64_t{ranks}), ranks, own_count())};
  std::vector<std::int32_t> host(static_cast<std::size_t>(all.elements()));
  scope.stream.copy_to_host(host.data(), all.data, all.bytes());
  scope.stream.synchronize();
  scope.expert.check();
  return expert_rounds(host, ranks, scope.expert.rank(), quota(scope, tokens));
}

// With one rank, rows already have the order in which its experts multiply them.
std::int64_t Moe::rows_sent(const Scope& scope, const MoeSaved& saved, const ExpertRound& round) const {
  return scope.expert.size() > 1 ? saved.rows.elements() : round.total();
}

Tensor Moe::received(const Scope& scope, Arena& arena, const MoeSaved& saved, const ExpertRound& round, const Tensor& x,
                     const Tensor& weights) const {
  const Tensor result = allocate(arena, scope.dtype, {round.total(), options_.dim});
  if (scope.expert.size() == 1) {
    kernels::expert_scatter(scope.stream, {.x = x, .rows = saved.rows, .weights = weights, .y = result});
    fill_up(scope, round, result);
    return result;
  }
  const ArenaScope temporaries(scope.scratch);
  const Tensor rows = allocate(scope.scratch, scope.dtype, {saved.rows.elements(), options_.dim});
  kernels::expert_scatter(scope.stream, {.x = x, .rows = saved.rows, .weights = weights, .y = rows});
  send_to_experts(scope, round, rows, result);
  return result;
}

void Moe::run_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round, const Tensor& returned) const {
  const ArenaScope temporaries(scope.scratch);
  const bool alone = scope.expert.size() == 1;
  const Tensor x = received(scope, keeps_rows(scope) ? scope.stash.get() : scope.scratch, saved, round.plan, saved.h, {});
  const Tensor made = alone ? returned : allocate(scope.scratch, scope.dtype, x.shape);
  round.experts.assign(round.plan.rows.size(), {});
  for_experts(round.plan, [&](std::size_t e, std::int64_t begin, std::int64_t end) {
    const ArenaScope of_expert(scope.scratch);
    own(e).forward(scope, {.values = x.slice_rows(begin, end)}, {}, made.slice_rows(begin, end), round.experts[e]);
  });
  if (!alone) send_back(scope, round.plan, made, returned);
}

void Moe::run_forward(const Scope& scope, MoeSaved& saved, std::vector<ExpertRoundSaved>& rounds) const {
  saved.returned = allocate(scope.stash, scope.dtype, {rows_sent(scope, saved, rounds.front().plan), options_.dim});
  if (rounds.size() == 1) return run_round(scope, saved, rounds.front(), saved.returned);
  Scope forgetful = scope;
  forgetful.checkpointing = Checkpointing::selective;  // keeps the least
  for (ExpertRoundSaved& round : rounds) {
    const ArenaScope forgotten(scope.stash);
    run_round(forgetful, saved, round, saved.returned);
  }
}

void Moe::forward(const Scope& outer, const Operand& h, const Tensor& residual, const Tensor& y, MoeSaved& saved) const {
  const bool keep = outer.checkpointing != Checkpointing::selective;
  saved = {};
  saved.h = outer.tensor.size() == 1 ? h.values : gather_tokens(outer, keep ? outer.stash.get() : outer.scratch, h.values);
  route(outer, saved);
  const Scope scope = expert_scope(outer, *alone_);
  for (ExpertRound& round : count_rounds(scope, saved)) saved.rounds.push_back({.plan = std::move(round), .experts = {}});
  if (scope.stream.kind() == DeviceKind::meta) {
    Uncounted uncounted(scope);
    saved.fullest.push_back({.plan = fullest(scope, saved.h.rows()), .experts = {}});
    at_least(
        scope.stash, [&] { run_forward(uncounted.scope(scope, scope.stash), saved, saved.fullest); },
        [&] { run_forward(scope, saved, saved.rounds); });
  } else {
    run_forward(scope, saved, saved.rounds);
  }
  if (!y) return;
  const ArenaScope temporaries(outer.scratch);
  const PartialSum sum(outer, residual, y);
  kernels::expert_combine(outer.stream,
                          {.x = saved.returned, .rows = saved.rows, .weights = saved.weights, .residual = sum.c, .y = sum.d});
  sum.finish(outer);
}

void Moe::rebuild_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const {
  const Tensor x = received(scope, scope.scratch, saved, round.plan, saved.h, {});
  for_experts(round.plan, [&](std::size_t e, std::int64_t begin, std::int64_t end) {
    own(e).rebuild(scope, {.values = x.slice_rows(begin, end)}, round.experts[e]);
  });
}

// If there are several rounds, backward makes them again one by one.
void Moe::rebuild(const Scope& outer, const Operand& h, MoeSaved& saved) const {
  saved.h = gather_tokens(outer, outer.scratch, h.values);
  if (saved.rounds.size() > 1) return;
  const Scope scope = expert_scope(outer, *alone_);
  if (scope.stream.kind() != DeviceKind::meta) return rebuild_round(scope, saved, saved.rounds.front());
  Uncounted uncounted(scope);
  at_least(
      scope.scratch, [&] { rebuild_round(uncounted.scope(scope, scope.stash), saved, saved.fullest.front()); },
      [&] { rebuild_round(scope, saved, saved.rounds.front()); });
}

Tensor Moe::backward_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round, const Tensor& gy) const {
  const Tensor g = received(scope, scope.scratch, saved, round.plan, gy, saved.weights);
  for_experts(round.plan, [&](std::size_t e, std::int64_t begin, std::int64_t end) {
    const Tensor rows = g.slice_rows(begin, end);
    own(e).backward(scope, {.values = rows}, round.experts[e], rows);
  });
  return g;
}

// Returns the gradients of all rows [S, D], in the scratch.
Tensor Moe::run_backward(const Scope& scope, const MoeSaved& saved, std::vector<ExpertRoundSaved>& rounds, const Tensor& gy,
                         bool again) const {
  if (scope.expert.size() == 1) return backward_round(scope, saved, rounds.front(), gy);
  const Tensor result = allocate(scope.scratch, scope.dtype, saved.returned.shape);
  Scope recompute = scope;
  recompute.record = Record::nothing;
  recompute.checkpointing = Checkpointing::none;
  for (ExpertRoundSaved& round : rounds) {
    const ArenaScope temporaries(scope.scratch), remade(scope.stash);
    if (again) run_round(recompute, saved, round, saved.returned);
    send_back(scope, round.plan, backward_round(scope, saved, round, gy), result);
  }
  return result;
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
                                          .seq_len = saved.h.rows() / scope.batch * scope.context.size(),
                                          .balance = options_.balance,
                                          .z = options_.z,
                                          .glogits = glogits});
  // Both products in the router's dtype, and rounded where they go.
  {
    const ArenaScope of_tokens(scope.scratch);
    const Tensor exact = gh.dtype == glogits.dtype ? gh : allocate(scope.scratch, glogits.dtype, gh.shape);
    const Tensor weight = for_router(scope, router_->value);
    kernels::gemm(scope.stream, scope.scratch,
                  {.a = {.values = glogits}, .b = kernels::transposed_values(weight), .c = {}, .d = exact});
    if (exact.data != gh.data) kernels::cast(scope.stream, {.x = exact, .y = gh});
  }
  const Tensor gradient = allocate(scope.scratch, glogits.dtype, router_->grad.shape);
  const Tensor h = for_router(scope, saved.h);
  kernels::gemm(scope.stream, scope.scratch,
                {.a = kernels::transposed_values(glogits), .b = kernels::transposed_values(h), .c = {}, .d = gradient});
  kernels::add(scope.stream, {.x = gradient, .y = router_->grad});
}

void Moe::backward(const Scope& outer, const Operand& share, MoeSaved& saved, const Tensor& gh) const {
  const ArenaScope temporaries(outer.scratch);
  const Scope scope = expert_scope(outer, *alone_);
  const Tensor gy = gather_tokens(outer, outer.scratch, share.values);
  const Tensor gweights = allocate(outer.scratch, saved.weights.dtype, saved.weights.shape);
  kernels::expert_dot(outer.stream, {.gy = gy, .x = saved.returned, .rows = saved.rows, .gweights = gweights});
  if (scope.stream.kind() == DeviceKind::meta) {
    const ArenaScope most(scope.scratch);
    Uncounted uncounted(scope);
    run_backward(uncounted.scope(scope, uncounted.stash), saved, saved.fullest, gy, true);
  }
  const Tensor rows = run_backward(scope, saved, saved.rounds, gy, saved.rounds.size() > 1);
  const PartialSum sum(outer, {}, gh);
  router_backward(outer, saved, gweights, sum.d);
  kernels::expert_combine(outer.stream, {.x = rows, .rows = saved.rows, .weights = {}, .residual = sum.d, .y = sum.d});
  sum.finish(outer);
}

}  // namespace octet::nn

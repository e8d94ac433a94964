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
          .begins = scope.begins,
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

// The scope of the exchanges between the ranks that hold experts.
Scope exchange_scope(const Scope& scope) {
  return scope_on(scope, scope.expert_stream ? *scope.expert_stream : scope.stream, scope.stash, scope.tensor, scope.expert);
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

// Fills an arena of the meta device up to what any distribution of rows could leave in it: the bytes of the distribution that
// gives one expert all that it can get, and for each allocation what alignment can add when every expert has some rows.
class Headroom {
 public:
  // `alignment`: what an allocation can lose, or 0 if its size is a multiple of Device::kAlignment in all distributions.
  Headroom(Arena& arena, std::size_t alignment) : arena_(arena), alignment_(alignment), before_(arena.used()) {}
  // Call it between the run of the distribution that needs most memory and the run of the usual one. Frees the first one's
  // memory.
  void begin_usual() {
    most_ = arena_.used();
    arena_.release_to(before_);
    allocations_ = arena_.allocations();
  }
  void fill() {
    const std::size_t wanted = most_ + (arena_.allocations() - allocations_) * alignment_;
    if (arena_.used() < wanted) arena_.allocate(wanted - arena_.used());
  }

 private:
  Arena& arena_;
  std::size_t alignment_, before_, most_ = 0, allocations_ = 0;
};

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

// Computes logits, experts and weights, and what the losses need of whole sequences.
void Moe::route(const Scope& scope, const Operand& h, MoeSaved& saved) const {
  const bool keep = scope.checkpointing != Checkpointing::selective;
  saved = {};
  saved.h = scope.tensor.size() == 1 ? h.values : gather_tokens(scope, keep ? scope.stash.get() : scope.scratch, h.values);
  const std::int64_t tokens = saved.h.rows(), k = options_.top_k;
  const DType dtype = statistics_dtype(scope.dtype);
  saved.logits = allocate(scope.stash, dtype, {tokens, options_.experts});
  saved.experts = allocate(scope.stash, DType::i32, {tokens, k});
  saved.weights = allocate(scope.stash, dtype, {tokens, k});
  saved.statistics = allocate(scope.stash, dtype, {scope.batch, 2 * options_.experts + 1});
  saved.rows = allocate(scope.stash, DType::i32, {tokens, k});
  kernels::gemm(scope.stream, scope.scratch,
                {.a = {.values = saved.h}, .b = {.values = router_->value}, .c = {}, .d = saved.logits});
  kernels::router_forward(scope.stream, scope.scratch,
                          {.logits = saved.logits,
                           .experts = saved.experts,
                           .weights = saved.weights,
                           .statistics = saved.statistics,
                           .normalise = options_.normalise});
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

template <class Body>
void Moe::with_rounds(const Scope& scope, MoeSaved& saved, std::size_t alignment, Body body) const {
  if (scope.stream.kind() != DeviceKind::meta) return body(scope, saved.rounds);
  Uncounted uncounted(scope);
  Headroom stash(scope.stash, Device::kAlignment), scratch(scope.scratch, alignment);
  body(uncounted.scope(scope, scope.stash), saved.fullest);
  stash.begin_usual();
  scratch.begin_usual();
  body(scope, saved.rounds);
  stash.fill();
  scratch.fill();
}

void Moe::receive(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const {
  round.in = received(scope, keeps_rows(scope) ? scope.stash.get() : scope.scratch, saved, round.plan, saved.h, {});
  round.out = scope.expert.size() == 1 ? saved.returned : Tensor{};
}

void Moe::run_experts(const Scope& scope, ExpertRoundSaved& round) const {
  if (!round.out) round.out = allocate(scope.scratch, scope.dtype, round.in.shape);
  round.experts.assign(round.plan.rows.size(), {});
  for_experts(round.plan, [&](std::size_t e, std::int64_t begin, std::int64_t end) {
    const ArenaScope of_expert(scope.scratch);
    own(e).forward(scope, {.values = round.in.slice_rows(begin, end)}, {}, round.out.slice_rows(begin, end), round.experts[e]);
  });
}

void Moe::run_round(const Scope& scope, const MoeSaved& saved, ExpertRoundSaved& round) const {
  const ArenaScope temporaries(scope.scratch);
  receive(scope, saved, round);
  run_experts(scope, round);
  send_back(scope, round.plan, round.out, saved.returned);
}

void Moe::dispatch(const Scope& outer, MoeSaved& saved, MoeWork& work) const {
  const Scope scope = exchange_scope(outer);
  for (ExpertRound& round : count_rounds(scope, saved)) saved.rounds.push_back({.plan = std::move(round)});
  if (scope.stream.kind() == DeviceKind::meta) saved.fullest.push_back({.plan = fullest(scope, saved.h.rows())});
  work.before = scope.scratch.used();
  with_rounds(scope, saved, 0, [&](const Scope& s, Rounds& rounds) {
    saved.returned = allocate(s.stash, s.dtype, {rows_sent(s, saved, rounds.front().plan), options_.dim});
    if (rounds.size() == 1) receive(s, saved, rounds.front());
  });
}

void Moe::experts(const Scope& outer, MoeSaved& saved) const {
  with_rounds(expert_scope(outer, *alone_), saved, 0, [&](const Scope& s, Rounds& rounds) {
    if (rounds.size() == 1) return run_experts(s, rounds.front());
    Scope forgetful = s;
    forgetful.checkpointing = Checkpointing::selective;  // keeps the least
    for (ExpertRoundSaved& round : rounds) {
      const ArenaScope forgotten(s.stash);
      run_round(forgetful, saved, round);
    }
  });
}

void Moe::collect(const Scope& outer, MoeSaved& saved, const MoeWork& work) const {
  with_rounds(exchange_scope(outer), saved, 0, [&](const Scope& s, Rounds& rounds) {
    if (rounds.size() == 1 && s.expert.size() > 1) send_back(s, rounds.front().plan, rounds.front().out, saved.returned);
  });
  outer.scratch.release_to(work.before);
}

void Moe::combine(const Scope& scope, const Tensor& residual, const Tensor& y, const MoeSaved& saved) const {
  if (!y) return;
  const ArenaScope temporaries(scope.scratch);
  const PartialSum sum(scope, residual, y);
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

void Moe::rebuild_experts(const Scope& scope, ExpertRoundSaved& round) const {
  const Scope again = rebuild_scope(scope);
  for_experts(round.plan, [&](std::size_t e, std::int64_t begin, std::int64_t end) {
    own(e).rebuild(again, {.values = round.in.slice_rows(begin, end)}, round.experts[e]);
  });
}

void Moe::run_experts_backward(const Scope& scope, ExpertRoundSaved& round) const {
  for_experts(round.plan, [&](std::size_t e, std::int64_t begin, std::int64_t end) {
    const Tensor rows = round.out.slice_rows(begin, end);
    own(e).backward(scope, {.values = rows}, round.experts[e], rows);
  });
  for (std::size_t e = 0; e < round.plan.rows.size(); ++e) {
    if (round.plan.rows[e] > 0) continue;
    for (const Linear* linear : own(e).linears()) linear->wgrad_of_nothing(scope);
  }
}

void Moe::run_rounds_backward(const Scope& scope, const MoeSaved& saved, Rounds& rounds, const MoeWork& work) const {
  Scope recompute = without_record(scope);
  recompute.checkpointing = Checkpointing::none;
  for (ExpertRoundSaved& round : rounds) {
    const ArenaScope temporaries(scope.scratch), remade(scope.stash);
    run_round(recompute, saved, round);
    round.out = received(scope, scope.scratch, saved, round.plan, work.gy, saved.weights);
    run_experts_backward(&round == &rounds.front() ? scope : adding(scope), round);
    send_back(scope, round.plan, round.out, work.rows);
  }
}

void Moe::dispatch_gradients(const Scope& outer, MoeSaved& saved, MoeWork& work) const {
  const Scope scope = exchange_scope(outer);
  if (scope.expert.size() > 1) work.rows = allocate(scope.scratch, scope.dtype, saved.returned.shape);
  work.before = scope.scratch.used();
  // If there are several rounds, backward recomputes each of them. This measures that for the largest round.
  if (scope.stream.kind() == DeviceKind::meta && scope.expert.size() > 1) {
    const ArenaScope most(scope.scratch);
    Uncounted uncounted(scope);
    run_rounds_backward(uncounted.scope(expert_scope(outer, *alone_), uncounted.stash), saved, saved.fullest, work);
  }
  with_rounds(scope, saved, 0, [&](const Scope& s, Rounds& rounds) {
    if (rounds.size() > 1) return;
    ExpertRoundSaved& round = rounds.front();
    if (s.checkpointing == Checkpointing::selective) round.in = received(s, s.scratch, saved, round.plan, saved.h, {});
    round.out = received(s, s.scratch, saved, round.plan, work.gy, saved.weights);
  });
}

void Moe::experts_backward(const Scope& outer, MoeSaved& saved, const MoeWork& work) const {
  const Scope scope = expert_scope(outer, *alone_);
  if (scope.checkpointing == Checkpointing::selective) {
    with_rounds(without_record(scope), saved, Device::kAlignment, [&](const Scope& s, Rounds& rounds) {
      if (rounds.size() == 1) rebuild_experts(s, rounds.front());
    });
  }
  with_rounds(scope, saved, 0, [&](const Scope& s, Rounds& rounds) {
    if (rounds.size() == 1) return run_experts_backward(s, rounds.front());
    run_rounds_backward(s, saved, rounds, work);
  });
}

void Moe::collect_gradients(const Scope& outer, MoeSaved& saved, MoeWork& work) const {
  if (outer.expert.size() == 1) {
    work.rows = saved.rounds.front().out;
    return;
  }
  with_rounds(exchange_scope(outer), saved, 0, [&](const Scope& s, Rounds& rounds) {
    if (rounds.size() == 1) send_back(s, rounds.front().plan, rounds.front().out, work.rows);
  });
  outer.scratch.release_to(work.before);
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
                                          .normalise = options_.normalise,
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

void Moe::route_backward(const Scope& scope, const MoeSaved& saved, const MoeWork& work, const Tensor& gh) const {
  const ArenaScope temporaries(scope.scratch);
  const PartialSum sum(scope, {}, gh);
  router_backward(scope, saved, work.gweights, sum.d);
  kernels::expert_combine(scope.stream, {.x = work.rows, .rows = saved.rows, .weights = {}, .residual = sum.d, .y = sum.d});
  sum.finish(scope);
}

}  // namespace octet::nn

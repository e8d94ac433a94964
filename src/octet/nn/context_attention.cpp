#include "octet/nn/context_attention.h"

#include <array>
#include <vector>

#include "octet/kernels/elementwise/elementwise.h"
#include "octet/parallel/context.h"

namespace octet::nn {
namespace {

using parallel::TokenRange;

// The columns of packed QKV, and of K and V beside each other.
struct Columns {
  std::int64_t q, kv;
  explicit Columns(const kernels::AttentionShape& s) : q(s.heads * s.head_dim), kv(s.kv_heads * s.head_dim) {}
  Tensor q_of(const Tensor& qkv) const { return qkv.slice_cols(0, q); }
  Tensor kv_of(const Tensor& qkv) const { return qkv.slice_cols(q, q + 2 * kv); }
  Tensor k_of(const Tensor& both) const { return both.slice_cols(0, kv); }
  Tensor v_of(const Tensor& both) const { return both.slice_cols(kv, 2 * kv); }
};

// [calls H, tokens of a call]
Tensor by_calls(const Tensor& lse, std::int64_t tokens) { return lse.reshape({lse.elements() / tokens, tokens}); }

// One range of one sequence: tokens [begin, end) of this rank, which see its tokens `keys`.
struct Call {
  std::int64_t number, begin, end;
  TokenRange keys;
  std::int64_t keys_before() const { return keys.end - (end - begin); }
  Tensor seen(const Tensor& sequence) const { return sequence.slice_rows(keys.begin, keys.end); }
  Tensor tokens(const Tensor& x) const { return x ? x.slice_rows(begin, end) : x; }
  Tensor statistics(const Tensor& lse) const {
    return by_calls(lse, end - begin).slice_rows(number * lse.rows(), (number + 1) * lse.rows());
  }
};

// Where tokens are. K and V of all ranks [B S, 2 G K] lie by rank, [c, B, S / c], or by sequence, [B, S].
struct Layout {
  const comm::Group& group;
  kernels::AttentionShape shape;
  std::int64_t batch, held, seq_len;  // sequences; tokens that a rank holds of each; tokens of each

  Layout(const comm::Group& context, const kernels::AttentionShape& attention, std::int64_t tokens)
      : group(context), shape(attention), batch(shape.batch), held(tokens / shape.batch), seq_len(held * context.size()) {}

  std::array<Call, 2> calls(std::int64_t sequence) const {
    const std::vector<TokenRange> ranges = parallel::context_ranges(seq_len, group.rank(), group.size());
    const std::int64_t first = sequence * held, middle = first + ranges[0].count();
    const auto keys = [&](const TokenRange& range) {
      return TokenRange{kernels::attention_unseen_keys(shape, range.count(), range.end), range.end};
    };
    return {Call{2 * sequence, first, middle, keys(ranges[0])}, Call{2 * sequence + 1, middle, first + held, keys(ranges[1])}};
  }
  Tensor own(const Tensor& by_rank) const {
    return by_rank.slice_rows(group.rank() * batch * held, (group.rank() + 1) * batch * held);
  }
  Tensor sequence(const Tensor& by_sequence, std::int64_t i) const {
    return by_sequence.slice_rows(i * seq_len, (i + 1) * seq_len);
  }
  // visit(rows by rank, the same rows of the sequence) for each range of each rank.
  template <class Visit>
  void each_range(std::int64_t sequence, const Tensor& by_rank, const Tensor& rows, Visit&& visit) const {
    for (int rank = 0; rank < group.size(); ++rank) {
      std::int64_t at = (rank * batch + sequence) * held;
      for (const TokenRange& range : parallel::context_ranges(seq_len, rank, group.size())) {
        visit(by_rank.slice_rows(at, at + range.count()), rows.slice_rows(range.begin, range.end));
        at += range.count();
      }
    }
  }
};

void copy_rows(Queue& queue, const Tensor& from, const Tensor& to) { queue.copy(to.data, from.data, from.bytes()); }

// K and V of all ranks: both are overwritten.
void gather(const Scope& scope, Queue& queue, const Layout& layout, const Tensor& kv, const Tensor& by_rank,
            const Tensor& by_sequence) {
  const TraceRange range(queue, "gather keys");
  kernels::cast(queue, {.x = kv, .y = layout.own(by_rank)});
  scope.context.all_gather(queue, scope.scratch, {.x = layout.own(by_rank), .y = by_rank});
  for (std::int64_t i = 0; i < layout.batch; ++i) {
    layout.each_range(i, by_rank, layout.sequence(by_sequence, i),
                      [&](const Tensor& from, const Tensor& to) { copy_rows(queue, from, to); });
  }
}

// The same where every rank's own K and V are within reach. Those of forward have long been there.
void fetch(const Scope& scope, Queue& queue, const Layout& layout, const Tensor& kv, const Tensor& by_sequence) {
  const std::int64_t chunk = layout.held / 2;
  for (std::int64_t part = 0; part < 2 * layout.batch; ++part) {
    comm::Fetch op{.x = kv.slice_rows(part * chunk, (part + 1) * chunk), .y = {}};
    for (int rank = 0; rank < layout.group.size(); ++rank) {
      const TokenRange range =
          parallel::context_ranges(layout.seq_len, rank, layout.group.size())[static_cast<std::size_t>(part % 2)];
      op.y.push_back(layout.sequence(by_sequence, part / 2).slice_rows(range.begin, range.end));
    }
    scope.context.fetch(queue, op);
  }
}

kernels::AttentionShape of_one_sequence(kernels::AttentionShape shape) {
  shape.batch = 1;
  return shape;
}

// Backward where every query sees all keys before its own. What the queries of a range see of its own keys, which are here.
void backward_in_ranges(const Scope& scope, const Layout& layout, const ContextAttentionBackward& op) {
  const Columns columns(op.shape);
  kernels::AttentionShape shape = op.shape;
  shape.batch = 2 * layout.batch;
  const Tensor kv = columns.kv_of(op.qkv), gkv = columns.kv_of(op.gqkv);
  kernels::attention_backward(scope.queue, scope.scratch,
                              {.shape = shape,
                               .q = columns.q_of(op.qkv),
                               .k = columns.k_of(kv),
                               .v = columns.v_of(kv),
                               .o = op.o,
                               .lse = by_calls(op.lse, layout.held / 2),
                               .go = op.go,
                               .gq = columns.q_of(op.gqkv),
                               .gk = columns.k_of(gkv),
                               .gv = columns.v_of(gkv)});
}

// The rest: what both ranges of a sequence see in one call, then what the later one alone does. gq is added to; gkv [S, 2 G K] by
// sequence, overwritten.
void backward_before_ranges(const Scope& scope, const ContextAttentionBackward& op, const std::array<Call, 2>& calls,
                            const Tensor& kv, const Tensor& gkv) {
  const Columns columns(op.shape);
  kernels::AttentionShape shape = of_one_sequence(op.shape);
  shape.window = 0;
  shape.visible = kernels::Visible::all;
  const auto backward = [&](std::int64_t begin, std::int64_t end, const Tensor& lse, const TokenRange& keys) {
    const ArenaScope temporaries(scope.scratch);
    const Tensor seen = kv.slice_rows(keys.begin, keys.end), gseen = gkv.slice_rows(keys.begin, keys.end);
    const Tensor share = allocate(scope.scratch, op.gqkv.dtype, {end - begin, columns.q});
    kernels::attention_backward(scope.queue, scope.scratch,
                                {.shape = shape,
                                 .q = columns.q_of(op.qkv.slice_rows(begin, end)),
                                 .k = columns.k_of(seen),
                                 .v = columns.v_of(seen),
                                 .o = op.o.slice_rows(begin, end),
                                 .lse = lse,
                                 .go = op.go.slice_rows(begin, end),
                                 .gq = share,
                                 .gk = columns.k_of(gseen),
                                 .gv = columns.v_of(gseen)});
    kernels::add(scope.queue, {.x = share, .y = columns.q_of(op.gqkv.slice_rows(begin, end))});
  };
  const auto& [earlier, later] = calls;
  if (earlier.keys_before() > 0) {
    const ArenaScope temporaries(scope.scratch);
    const std::int64_t middle = earlier.end - earlier.begin;
    const Tensor both = allocate(scope.scratch, op.lse.dtype, {op.lse.rows(), 2 * middle});
    kernels::cast(scope.queue, {.x = earlier.statistics(op.lse), .y = both.slice_cols(0, middle)});
    kernels::cast(scope.queue, {.x = later.statistics(op.lse), .y = both.slice_cols(middle, 2 * middle)});
    backward(earlier.begin, later.end, both, {0, earlier.keys_before()});
  }
  backward(later.begin, later.end, later.statistics(op.lse), {earlier.keys_before(), later.keys_before()});
  const Tensor unseen = gkv.slice_rows(later.keys_before(), gkv.rows());
  scope.queue.zero(unseen.data, unseen.bytes());
}

// Backward of one sequence with a window or documents, each range with all keys that it sees. gq in its columns of op.gqkv; gkv
// [S, 2 G K] by sequence, overwritten.
void backward_by_range(const Scope& scope, const ContextAttentionBackward& op, const std::array<Call, 2>& calls, const Tensor& kv,
                       const Tensor& gkv) {
  const Columns columns(op.shape);
  const auto backward = [&](const Call& call, const Tensor& gseen) {
    const Tensor qkv = call.tokens(op.qkv), seen = call.seen(kv);
    kernels::attention_backward(scope.queue, scope.scratch,
                                {.shape = of_one_sequence(op.shape),
                                 .q = columns.q_of(qkv),
                                 .k = columns.k_of(seen),
                                 .v = columns.v_of(seen),
                                 .first_keys = call.tokens(scope.first_keys),
                                 .keys_before = call.keys.begin,
                                 .documents = scope.documents,
                                 .o = call.tokens(op.o),
                                 .lse = call.statistics(op.lse),
                                 .go = call.tokens(op.go),
                                 .gq = columns.q_of(call.tokens(op.gqkv)),
                                 .gk = columns.k_of(gseen),
                                 .gv = columns.v_of(gseen)});
  };
  // The later range sees most keys: it writes, what it does not see is zero, and the other's share is added.
  const auto& [earlier, later] = calls;
  backward(later, later.seen(gkv));
  for (const Tensor& unseen : {gkv.slice_rows(0, later.keys.begin), gkv.slice_rows(later.keys.end, gkv.rows())})
    scope.queue.zero(unseen.data, unseen.bytes());
  const ArenaScope temporaries(scope.scratch);
  const Tensor share = allocate(scope.scratch, gkv.dtype, {earlier.keys.count(), gkv.cols()});
  backward(earlier, share);
  kernels::add(scope.queue, {.x = share, .y = earlier.seen(gkv)});
}

}  // namespace

void context_attention_forward(const Scope& scope, const ContextAttentionForward& op, const std::function<void()>& gathered) {
  const Columns columns(op.shape);
  const Tensor own_kv = columns.kv_of(op.qkv);
  if (scope.context.size() == 1) {
    gathered();
    return kernels::attention_forward(scope.queue, scope.scratch,
                                      {.shape = op.shape,
                                       .q = columns.q_of(op.qkv),
                                       .k = columns.k_of(own_kv),
                                       .v = columns.v_of(own_kv),
                                       .first_keys = scope.first_keys,
                                       .documents = scope.documents,
                                       .o = op.o,
                                       .lse = by_calls(op.lse, op.qkv.rows() / op.shape.batch)});
  }
  const Layout layout(scope.context, op.shape, op.qkv.rows());
  const ArenaScope temporaries(scope.scratch);
  const Shape whole{layout.batch * layout.seq_len, own_kv.cols()};
  const Tensor kv = allocate(scope.scratch, op.qkv.dtype, whole);
  {
    const ArenaScope until_ordered(scope.scratch);
    gather(scope, scope.queue, layout, own_kv, allocate(scope.scratch, op.qkv.dtype, whole), kv);
  }
  gathered();
  for (std::int64_t i = 0; i < layout.batch; ++i) {
    for (const Call& call : layout.calls(i)) {
      const Tensor seen = call.seen(layout.sequence(kv, i));
      kernels::attention_forward(scope.queue, scope.scratch,
                                 {.shape = of_one_sequence(op.shape),
                                  .q = columns.q_of(call.tokens(op.qkv)),
                                  .k = columns.k_of(seen),
                                  .v = columns.v_of(seen),
                                  .first_keys = call.tokens(scope.first_keys),
                                  .keys_before = call.keys.begin,
                                  .documents = scope.documents,
                                  .o = call.tokens(op.o),
                                  .lse = call.statistics(op.lse)});
    }
  }
}

WholeKv gather_ahead(const Scope& scope, const kernels::AttentionShape& shape, const Tensor& qkv) {
  if (scope.context.size() == 1) return {};
  const Layout layout(scope.context, shape, qkv.rows());
  const Tensor kv = Columns(shape).kv_of(qkv);
  const Shape whole{layout.batch * layout.seq_len, kv.cols()};
  WholeKv result{allocate(scope.scratch, qkv.dtype, whole), allocate(scope.scratch, qkv.dtype, whole), nullptr};
  Queue& wire = scope.wire_or_queue();
  wire.wait(*scope.queue.record());  // whose memory this was
  if (scope.context.reaches(kv)) {
    fetch(scope, wire, layout, kv, result.by_sequence);
  } else {
    gather(scope, wire, layout, kv, result.by_rank, result.by_sequence);
  }
  result.ready = wire.record();
  return result;
}

void context_attention_backward(const Scope& scope, const ContextAttentionBackward& op, const std::function<void()>& meanwhile) {
  const Columns columns(op.shape);
  const Tensor own_kv = columns.kv_of(op.qkv), own_gkv = columns.kv_of(op.gqkv);
  if (scope.context.size() == 1) {
    return kernels::attention_backward(scope.queue, scope.scratch,
                                       {.shape = op.shape,
                                        .q = columns.q_of(op.qkv),
                                        .k = columns.k_of(own_kv),
                                        .v = columns.v_of(own_kv),
                                        .first_keys = scope.first_keys,
                                        .documents = scope.documents,
                                        .o = op.o,
                                        .lse = by_calls(op.lse, op.qkv.rows() / op.shape.batch),
                                        .go = op.go,
                                        .gq = columns.q_of(op.gqkv),
                                        .gk = columns.k_of(own_gkv),
                                        .gv = columns.v_of(own_gkv)});
  }
  const Layout layout(scope.context, op.shape, op.qkv.rows());
  const Tensor& by_rank = op.kv.by_rank;  // of gradients from here on
  const bool all_before = !scope.first_keys && !kernels::attention_hides_keys(op.shape, layout.seq_len);
  if (all_before) backward_in_ranges(scope, layout, op);
  scope.queue.wait_for_ranks(*op.kv.ready);
  {
    const ArenaScope until_summed(scope.scratch);
    const Tensor gkv = allocate(scope.scratch, op.qkv.dtype, {layout.seq_len, own_kv.cols()});
    for (std::int64_t i = 0; i < layout.batch; ++i) {
      const Tensor kv = layout.sequence(op.kv.by_sequence, i);
      if (all_before) {
        backward_before_ranges(scope, op, layout.calls(i), kv, gkv);
      } else {
        backward_by_range(scope, op, layout.calls(i), kv, gkv);
      }
      layout.each_range(i, by_rank, gkv, [&](const Tensor& to, const Tensor& from) { copy_rows(scope.queue, from, to); });
    }
  }
  Queue& wire = scope.wire_or_queue();
  wire.wait(*scope.queue.record());
  scope.context.reduce_scatter(wire, scope.scratch, {.x = by_rank, .y = layout.own(by_rank)});
  const std::unique_ptr<Event> summed = wire.record();
  meanwhile();
  scope.queue.wait_for_ranks(*summed);
  if (all_before) {
    kernels::add(scope.queue, {.x = layout.own(by_rank), .y = own_gkv});
  } else {
    kernels::cast(scope.queue, {.x = layout.own(by_rank), .y = own_gkv});
  }
}

}  // namespace octet::nn

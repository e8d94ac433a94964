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

Tensor rows_of(const Tensor& x, const TokenRange& rows) { return x.slice_rows(rows.begin, rows.end); }

// One range of one sequence: tokens [begin, end) of this rank, which see its tokens `keys`.
struct Call {
  std::int64_t number, begin, end;
  TokenRange keys;
  Tensor tokens(const Tensor& x) const { return x ? x.slice_rows(begin, end) : x; }
  Tensor statistics(const Tensor& lse) const {
    return by_calls(lse, end - begin).slice_rows(number * lse.rows(), (number + 1) * lse.rows());
  }
};

// The layout of tokens, and of the keys of all ranks or their gradients, [B n, 2 G K]. Each sequence has its second half with the
// chunks backwards, its first half, and room for what follows it. Rank r holds the r-th chunk of either half. Before its earlier
// range come the first r chunks of the first half. Before its later range comes all of the second half behind the chunk that it
// holds itself, and all of the first half: one stretch. Without a mask the order of keys in it means nothing.
struct Layout {
  const comm::Group& group;
  kernels::AttentionShape shape;
  std::int64_t batch, held, seq_len, chunk;  // sequences; tokens that a rank holds of each; tokens of each; half of held
  bool ordered;                              // keeps_keys_in_order(), or there are documents

  Layout(const Scope& scope, const kernels::AttentionShape& attention, std::int64_t tokens)
      : group(scope.context),
        shape(attention),
        batch(shape.batch),
        held(tokens / shape.batch),
        seq_len(held * group.size()),
        chunk(held / 2),
        ordered(scope.first_keys || keeps_keys_in_order(shape, seq_len, group.size())) {}

  Tensor allocate_keys(Arena& arena, const Tensor& kv, std::int64_t room) const {
    return allocate(arena, kv.dtype, {batch * (seq_len + room), kv.cols()});
  }
  Tensor of_sequence(const Tensor& keys, std::int64_t i) const {
    const std::int64_t rows = keys.rows() / batch;
    return keys.slice_rows(i * rows, (i + 1) * rows);
  }
  // Stretches of one sequence's keys.
  Tensor first_half(const Tensor& keys) const { return keys.slice_rows(seq_len / 2, seq_len); }
  Tensor second_half(const Tensor& keys) const { return keys.slice_rows(0, seq_len / 2); }
  Tensor room(const Tensor& keys) const { return keys.slice_rows(seq_len, keys.rows()); }
  Tensor in_order(const Tensor& keys) const { return keys.slice_rows(seq_len / 2, seq_len + seq_len / 2); }
  TokenRange before(int range) const {
    const std::int64_t rank = group.rank();
    return range == 0 ? TokenRange{seq_len / 2, seq_len / 2 + rank * chunk} : TokenRange{(rank + 1) * chunk, seq_len};
  }
  Tensor of_rank(const Tensor& half, int rank) const { return half.slice_rows(rank * chunk, (rank + 1) * chunk); }
  Tensor own(const Tensor& half) const { return of_rank(half, group.rank()); }

  // visit(own tokens of a half of a sequence, that half of all ranks)
  template <class Visit>
  void each_half(const Tensor& own_rows, const Tensor& keys, Visit&& visit) const {
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t first = i * held, middle = first + chunk;
      visit(own_rows.slice_rows(first, middle), first_half(of_sequence(keys, i)));
      visit(own_rows.slice_rows(middle, first + held), second_half(of_sequence(keys, i)));
    }
  }
  std::array<Call, 2> calls(std::int64_t sequence) const {
    const std::vector<TokenRange> ranges = parallel::zigzag_chunks(seq_len, group.rank(), group.size());
    const std::int64_t first = sequence * held, middle = first + chunk;
    const auto keys = [&](const TokenRange& range) {
      return TokenRange{kernels::attention_unseen_keys(shape, range.count(), range.end), range.end};
    };
    return {Call{2 * sequence, first, middle, keys(ranges[0])}, Call{2 * sequence + 1, middle, first + held, keys(ranges[1])}};
  }
};

void copy_rows(Stream& stream, const Tensor& from, const Tensor& to) { stream.copy(to.data, from.data, from.bytes()); }

// Chunks of `to`, the last one first: a second half as ranks exchange it from one in the order of the sequence, or the other way.
void copy_backwards(Stream& stream, const Layout& layout, const Tensor& from, const Tensor& to) {
  const int ranks = layout.group.size();
  for (int rank = 0; rank < ranks; ++rank) copy_rows(stream, layout.of_rank(from, rank), layout.of_rank(to, ranks - 1 - rank));
}

// K and V of all ranks; with layout.ordered also in the order of the sequence.
void gather(const Scope& scope, Stream& stream, const Layout& layout, const Tensor& kv, const Tensor& keys) {
  const TraceRange range(stream, "gather keys");
  layout.each_half(kv, keys,
                   [&](const Tensor& from, const Tensor& half) { kernels::cast(stream, {.x = from, .y = layout.own(half)}); });
  {
    const comm::Batch batch(scope.context, stream);
    layout.each_half(kv, keys, [&](const Tensor&, const Tensor& half) {
      scope.context.all_gather(stream, scope.scratch, {.x = layout.own(half), .y = half});
    });
  }
  for (std::int64_t i = 0; layout.ordered && i < layout.batch; ++i) {
    const Tensor of_sequence = layout.of_sequence(keys, i);
    copy_backwards(stream, layout, layout.second_half(of_sequence), layout.room(of_sequence));
  }
}

// Fetches the same directly from the other ranks' memory, where their forward pass has left it long ago. With layout.ordered only
// in the order of the sequence.
void fetch(const Scope& scope, Stream& stream, const Layout& layout, const Tensor& kv, const Tensor& keys) {
  const int ranks = layout.group.size();
  for (std::int64_t part = 0; part < 2 * layout.batch; ++part) {
    const Tensor of_sequence = layout.of_sequence(keys, part / 2);
    const bool second = part % 2 == 1, backwards = second && layout.ordered;
    const Tensor to = backwards ? layout.room(of_sequence)
                      : second  ? layout.second_half(of_sequence)
                                : layout.first_half(of_sequence);
    comm::Fetch op{.x = kv.slice_rows(part * layout.chunk, (part + 1) * layout.chunk), .y = {}};
    for (int rank = 0; rank < ranks; ++rank) op.y.push_back(layout.of_rank(to, backwards ? ranks - 1 - rank : rank));
    scope.context.fetch(stream, op);
  }
}

kernels::AttentionShape of_one_sequence(kernels::AttentionShape shape) {
  shape.batch = 1;
  return shape;
}

// Backward without a mask. What the queries of a range see of its own keys, which are here.
void backward_in_ranges(const Scope& scope, const Layout& layout, const ContextAttentionBackward& op) {
  const Columns columns(op.shape);
  kernels::AttentionShape shape = op.shape;
  shape.batch = 2 * layout.batch;
  const Tensor kv = columns.kv_of(op.qkv), gkv = columns.kv_of(op.gqkv);
  kernels::attention_backward(scope.stream, scope.scratch,
                              {.shape = shape,
                               .q = columns.q_of(op.qkv),
                               .k = columns.k_of(kv),
                               .v = columns.v_of(kv),
                               .o = op.o,
                               .lse = by_calls(op.lse, layout.chunk),
                               .go = op.go,
                               .gq = columns.q_of(op.gqkv),
                               .gk = columns.k_of(gkv),
                               .gv = columns.v_of(gkv)});
}

// The rest: what the ranges of a sequence see before them. gq is added to; gkv, of its keys, overwritten.
void backward_before_ranges(const Scope& scope, const Layout& layout, const ContextAttentionBackward& op,
                            const std::array<Call, 2>& calls, const Tensor& kv, const Tensor& gkv) {
  const Columns columns(op.shape);
  kernels::AttentionShape shape = of_one_sequence(op.shape);
  shape.window = 0;
  shape.visible = kernels::Visible::all;
  const auto backward = [&](const Call& call, const Tensor& seen, const Tensor& gseen) {
    const ArenaScope temporaries(scope.scratch);
    const Tensor share = allocate(scope.scratch, op.gqkv.dtype, {call.end - call.begin, columns.q});
    kernels::attention_backward(scope.stream, scope.scratch,
                                {.shape = shape,
                                 .q = columns.q_of(call.tokens(op.qkv)),
                                 .k = columns.k_of(seen),
                                 .v = columns.v_of(seen),
                                 .o = call.tokens(op.o),
                                 .lse = call.statistics(op.lse),
                                 .go = call.tokens(op.go),
                                 .gq = share,
                                 .gk = columns.k_of(gseen),
                                 .gv = columns.v_of(gseen)});
    kernels::add(scope.stream, {.x = share, .y = columns.q_of(call.tokens(op.gqkv))});
  };
  // The later range sees most keys: it writes, what it does not see is zero, and the other's share is added.
  const auto& [earlier, later] = calls;
  const TokenRange before_earlier = layout.before(0), before_later = layout.before(1);
  backward(later, rows_of(kv, before_later), rows_of(gkv, before_later));
  const Tensor unseen = gkv.slice_rows(0, before_later.begin);
  scope.stream.zero(unseen.data, unseen.bytes());
  if (before_earlier.count() == 0) return;
  const ArenaScope temporaries(scope.scratch);
  const Tensor share = allocate(scope.scratch, gkv.dtype, {before_earlier.count(), gkv.cols()});
  backward(earlier, rows_of(kv, before_earlier), share);
  kernels::add(scope.stream, {.x = share, .y = rows_of(gkv, before_earlier)});
}

// Backward of one sequence with keys in its order, each range with all keys that it sees. gq in its columns of op.gqkv; gkv, of
// its keys, overwritten.
void backward_by_range(const Scope& scope, const Layout& layout, const ContextAttentionBackward& op,
                       const std::array<Call, 2>& calls, const Tensor& kv, const Tensor& gkv) {
  const Columns columns(op.shape);
  const Tensor keys = layout.in_order(kv), gkeys = layout.in_order(gkv);
  const auto backward = [&](const Call& call, const Tensor& gseen) {
    const Tensor qkv = call.tokens(op.qkv), seen = rows_of(keys, call.keys);
    kernels::attention_backward(scope.stream, scope.scratch,
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
  // The later range writes and the earlier one adds, as without a mask.
  const auto& [earlier, later] = calls;
  backward(later, rows_of(gkeys, later.keys));
  for (const Tensor& unseen : {gkeys.slice_rows(0, later.keys.begin), gkeys.slice_rows(later.keys.end, gkeys.rows())})
    scope.stream.zero(unseen.data, unseen.bytes());
  {
    const ArenaScope temporaries(scope.scratch);
    const Tensor share = allocate(scope.scratch, gkv.dtype, {earlier.keys.count(), gkv.cols()});
    backward(earlier, share);
    kernels::add(scope.stream, {.x = share, .y = rows_of(gkeys, earlier.keys)});
  }
  copy_backwards(scope.stream, layout, layout.room(gkv), layout.second_half(gkv));
}

}  // namespace

bool keeps_keys_in_order(const kernels::AttentionShape& shape, std::int64_t seq_len, int ranks) {
  if (kernels::attention_hides_keys(shape, seq_len)) return true;
  const std::int64_t chunk = seq_len / (2 * ranks);
  // The calls of all ranks: all must exchange keys in the same order.
  for (std::int64_t keys = chunk; keys < seq_len; keys += chunk) {
    if (!kernels::attention_is_safe_without_mask(keys)) return true;
  }
  return false;
}

Tensor gather_keys(const Scope& scope, const kernels::AttentionShape& shape, const Tensor& qkv) {
  if (scope.context.size() == 1) return {};
  const Layout layout(scope, shape, qkv.rows());
  const Tensor kv = Columns(shape).kv_of(qkv);
  const Tensor keys = layout.allocate_keys(scope.scratch, kv, layout.ordered ? layout.seq_len / 2 : layout.chunk);
  gather(scope, scope.stream, layout, kv, keys);
  return keys;
}

void context_attention_forward(const Scope& scope, const ContextAttentionForward& op) {
  const Columns columns(op.shape);
  if (scope.context.size() == 1) {
    const Tensor kv = columns.kv_of(op.qkv);
    return kernels::attention_forward(scope.stream, scope.scratch,
                                      {.shape = op.shape,
                                       .q = columns.q_of(op.qkv),
                                       .k = columns.k_of(kv),
                                       .v = columns.v_of(kv),
                                       .first_keys = scope.first_keys,
                                       .documents = scope.documents,
                                       .o = op.o,
                                       .lse = by_calls(op.lse, op.qkv.rows() / op.shape.batch)});
  }
  const Layout layout(scope, op.shape, op.qkv.rows());
  for (std::int64_t i = 0; i < layout.batch; ++i) {
    const Tensor kv = layout.of_sequence(op.keys, i);
    // A causal mask wants a range's own keys behind those before it.
    if (!layout.ordered) copy_rows(scope.stream, layout.own(layout.second_half(kv)), layout.room(kv));
    const std::array<Call, 2> calls = layout.calls(i);
    for (int range = 0; range < 2; ++range) {
      const Call& call = calls[static_cast<std::size_t>(range)];
      const TokenRange before = layout.before(range);
      const Tensor seen =
          layout.ordered ? rows_of(layout.in_order(kv), call.keys) : kv.slice_rows(before.begin, before.end + layout.chunk);
      kernels::attention_forward(scope.stream, scope.scratch,
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

Arriving gather_keys_ahead(const Scope& scope, const kernels::AttentionShape& shape, const Tensor& qkv) {
  if (scope.context.size() == 1) return {};
  const Layout layout(scope, shape, qkv.rows());
  const Tensor kv = Columns(shape).kv_of(qkv);
  Arriving result{layout.allocate_keys(scope.scratch, kv, layout.ordered ? layout.seq_len / 2 : 0), nullptr};
  Stream& stream = scope.params_stream ? *scope.params_stream : scope.stream;
  stream.wait(*scope.stream.record());  // behind whoever used this memory before
  if (scope.context.reaches(kv)) {
    fetch(scope, stream, layout, kv, result.tensor);
  } else {
    gather(scope, stream, layout, kv, result.tensor);
  }
  result.ready = stream.record();
  return result;
}

void context_attention_backward_own(const Scope& scope, const ContextAttentionBackward& op) {
  const Columns columns(op.shape);
  if (scope.context.size() == 1) {
    const Tensor kv = columns.kv_of(op.qkv), gkv = columns.kv_of(op.gqkv);
    return kernels::attention_backward(scope.stream, scope.scratch,
                                       {.shape = op.shape,
                                        .q = columns.q_of(op.qkv),
                                        .k = columns.k_of(kv),
                                        .v = columns.v_of(kv),
                                        .first_keys = scope.first_keys,
                                        .documents = scope.documents,
                                        .o = op.o,
                                        .lse = by_calls(op.lse, op.qkv.rows() / op.shape.batch),
                                        .go = op.go,
                                        .gq = columns.q_of(op.gqkv),
                                        .gk = columns.k_of(gkv),
                                        .gv = columns.v_of(gkv)});
  }
  const Layout layout(scope, op.shape, op.qkv.rows());
  if (!layout.ordered) backward_in_ranges(scope, layout, op);
}

Tensor context_attention_backward_rest(const Scope& scope, const ContextAttentionBackward& op, const Arriving& keys) {
  const Layout layout(scope, op.shape, op.qkv.rows());
  scope.stream.wait_for_ranks(*keys.ready);
  // The rows behind a sequence's gradients are where those of the next are written afterwards.
  const std::int64_t rows = layout.batch * layout.seq_len, room = layout.ordered ? layout.seq_len / 2 : 0;
  const Tensor memory = allocate(scope.scratch, op.gqkv.dtype, {rows + room, Columns(op.shape).kv_of(op.gqkv).cols()});
  for (std::int64_t i = 0; i < layout.batch; ++i) {
    const TraceRange range(scope.stream, "gradients of keys");
    const auto backward = layout.ordered ? backward_by_range : backward_before_ranges;
    const Tensor gkv = memory.slice_rows(i * layout.seq_len, (i + 1) * layout.seq_len + room);
    backward(scope, layout, op, layout.calls(i), layout.of_sequence(keys.tensor, i), gkv);
  }
  return memory.slice_rows(0, rows);
}

Arriving sum_key_gradients(const Scope& scope, const ContextAttentionBackward& op, const Tensor& gradients) {
  const Layout layout(scope, op.shape, op.qkv.rows());
  Stream& stream = scope.context_stream ? *scope.context_stream : scope.stream;
  stream.wait(*scope.stream.record());
  {
    const TraceRange range(stream, "sum gradients of keys");
    const comm::Batch batch(scope.context, stream);
    layout.each_half(Columns(op.shape).kv_of(op.gqkv), gradients, [&](const Tensor&, const Tensor& half) {
      scope.context.reduce_scatter(stream, scope.scratch, {.x = half, .y = layout.own(half)});
    });
  }
  return {gradients, stream.record()};
}

void take_key_gradients(const Scope& scope, const ContextAttentionBackward& op, const Arriving& sums) {
  const Layout layout(scope, op.shape, op.qkv.rows());
  scope.stream.wait_for_ranks(*sums.ready);
  const TraceRange range(scope.stream, "take summed gradients of keys");
  layout.each_half(Columns(op.shape).kv_of(op.gqkv), sums.tensor, [&](const Tensor& to, const Tensor& half) {
    if (layout.ordered) {
      kernels::cast(scope.stream, {.x = layout.own(half), .y = to});
    } else {
      kernels::add(scope.stream, {.x = layout.own(half), .y = to});
    }
  });
}

}  // namespace octet::nn

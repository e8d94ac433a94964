// The parts of Attention that look at other tokens: causal attention of packed, rotated QKV over sequences that the c ranks of
// scope.context share (parallel/context.h). docs/parallelism.md explains what they exchange. On one rank these are
// kernels::attention_forward and _backward.
//
// A rank has two ranges of each sequence. A range is one call on the keys up to its end, from the first that its window shows,
// aligned to the bottom right. Backward without a window or documents is three calls instead: all ranges on their own keys, which
// need not be gathered, and each range on the keys before it. cuDNN 9.19 works through a rectangle whose corner is masked as if
// it were not: on an H100, chunks 3 and 4 of 8 of a sequence of 16,384 tokens take 3.06 ms as one call each. The gradients of the
// two parts are rounded before they are added.
//
// Scratch beside that of the kernels, if a rank's K and V are n and those of whole sequences N = c n: forward N + n / 2; backward
// 2 N, and while it runs less than N / 2 B and half of o of a sequence; with a window or documents 1.5 N, and 2.5 N and at most N
// / B.
#include <array>

#include "octet/kernels/attention/attention.h"
#include "octet/kernels/elementwise/elementwise.h"
#include "octet/nn/attention.h"
#include "octet/parallel/context.h"

namespace octet::nn {
namespace {

using parallel::TokenRange;

Tensor rows_of(const Tensor& x, const TokenRange& rows) { return x.slice_rows(rows.begin, rows.end); }

// A call of the kernels: tokens [begin, end) of this rank, which are `count` sequences, or ranges of sequences, of equal length.
// Each has a stretch of the memory of the lse.
struct Call {
  std::int64_t number;  // the index of the first of these stretches in the lse
  std::int64_t count;   // how many stretches there are
  std::int64_t begin, end;
  std::int64_t keys_before = 0;  // keys of the sequence before the first that the call sees
  TokenRange keys = {};  // the rows of a sequence's gathered keys that it sees; backward without a mask leaves out its own keys
  Tensor tokens(const Tensor& x) const { return x ? x.slice_rows(begin, end) : x; }
  Tensor statistics(const Tensor& lse) const {
    const std::int64_t length = (end - begin) / count;
    return lse.reshape({lse.elements() / length, length}).slice_rows(number * lse.rows(), (number + count) * lse.rows());
  }
};

void attend(const Scope& scope, kernels::AttentionShape shape, const AttentionSaved& saved, const Call& call, const Tensor& kv) {
  const QkvColumns columns(shape);
  shape.batch = call.count;
  kernels::attention_forward(scope.stream, scope.scratch,
                             {.shape = shape,
                              .q = columns.q_of(call.tokens(saved.qkv)),
                              .k = columns.k_of(kv),
                              .v = columns.v_of(kv),
                              .first_keys = call.tokens(scope.first_keys),
                              .keys_before = call.keys_before,
                              .documents = scope.documents,
                              .o = call.tokens(saved.o),
                              .lse = call.statistics(saved.lse)});
}

// Overwrites gq and gkv.
void attend_backward(const Scope& scope, kernels::AttentionShape shape, const AttentionSaved& saved, const Tensor& go,
                     const Call& call, const Tensor& kv, const Tensor& gq, const Tensor& gkv) {
  const QkvColumns columns(shape);
  shape.batch = call.count;
  kernels::attention_backward(scope.stream, scope.scratch,
                              {.shape = shape,
                               .q = columns.q_of(call.tokens(saved.qkv)),
                               .k = columns.k_of(kv),
                               .v = columns.v_of(kv),
                               .first_keys = call.tokens(scope.first_keys),
                               .keys_before = call.keys_before,
                               .documents = scope.documents,
                               .o = call.tokens(saved.o),
                               .lse = call.statistics(saved.lse),
                               .go = call.tokens(go),
                               .gq = gq,
                               .gk = columns.k_of(gkv),
                               .gv = columns.v_of(gkv)});
}

// The layout of tokens, and of the keys of all ranks or their gradients, [B n, 2 G K]. The memory of a sequence's keys is its
// second half, last chunk first; then its first half; then spare rows. Rank r holds the r-th chunk of either half. Before its
// earlier range come the first r chunks of the first half. Before its later range comes all of the second half behind the chunk
// that it holds itself, and all of the first half: one contiguous range. Without a mask the order of keys in it means nothing.
struct KeyLayout {
  const comm::Group& group;
  kernels::AttentionShape shape;
  std::int64_t batch, held, seq_len, chunk;  // sequences; tokens that a rank holds of each; tokens of each; half of held
  bool ordered;                              // keeps_keys_in_order(), or there are documents

  KeyLayout(const Scope& scope, const kernels::AttentionShape& attention, std::int64_t tokens)
      : group(scope.context),
        shape(attention),
        batch(shape.batch),
        held(tokens / shape.batch),
        seq_len(held * group.size()),
        chunk(held / 2),
        ordered(scope.first_keys || keeps_keys_in_order(shape, seq_len, group.size())) {}

  // `spare`: unused rows after each sequence, if keys are not kept in order.
  Tensor allocate_keys(Arena& arena, DType dtype, std::int64_t spare) const {
    return allocate(arena, dtype, {batch * (seq_len + (ordered ? seq_len / 2 : spare)), 2 * QkvColumns(shape).kv});
  }
  Tensor of_sequence(const Tensor& keys, std::int64_t i) const {
    const std::int64_t rows = keys.rows() / batch;
    return keys.slice_rows(i * rows, (i + 1) * rows);
  }
  // Stretches of one sequence's keys. In order they begin with the first half.
  Tensor first_half(const Tensor& keys) const { return keys.slice_rows(seq_len / 2, seq_len); }
  Tensor second_half(const Tensor& keys) const { return keys.slice_rows(0, seq_len / 2); }
  Tensor room(const Tensor& keys) const { return keys.slice_rows(seq_len, keys.rows()); }
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
  // The earlier and the later range of a sequence.
  std::array<Call, 2> calls(std::int64_t sequence) const {
    const std::int64_t half = seq_len / 2, rank = group.rank();
    const auto call = [&](std::int64_t range, std::int64_t end, const TokenRange& before) {
      const std::int64_t begin = sequence * held + range * chunk, unseen = kernels::attention_unseen_keys(shape, chunk, end);
      return Call{.number = 2 * sequence + range,
                  .count = 1,
                  .begin = begin,
                  .end = begin + chunk,
                  .keys_before = unseen,
                  .keys = ordered ? TokenRange{half + unseen, half + end} : before};
    };
    return {call(0, (rank + 1) * chunk, {half, half + rank * chunk}),
            call(1, seq_len - rank * chunk, {(rank + 1) * chunk, seq_len})};
  }
};

void copy_rows(Stream& stream, const Tensor& from, const Tensor& to) { stream.copy(to.data, from.data, from.bytes()); }

// Chunks of `to`, the last one first: a second half as ranks exchange it from one in the order of the sequence, or the other way.
void copy_backwards(Stream& stream, const KeyLayout& layout, const Tensor& from, const Tensor& to) {
  const int ranks = layout.group.size();
  for (int rank = 0; rank < ranks; ++rank) copy_rows(stream, layout.of_rank(from, rank), layout.of_rank(to, ranks - 1 - rank));
}

// Gathers K and V of all ranks into `keys`. If layout.ordered, copies them into the order of the sequence, too.
void gather(const Scope& scope, Stream& stream, const KeyLayout& layout, const Tensor& kv, const Tensor& keys) {
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
void fetch(const Scope& scope, Stream& stream, const KeyLayout& layout, const Tensor& kv, const Tensor& keys) {
  const int ranks = layout.group.size();
  for (std::int64_t part = 0; part < 2 * layout.batch; ++part) {
    const Tensor of_sequence = layout.of_sequence(keys, part / 2);
    const bool second = part % 2 == 1, backwards = second && layout.ordered;
    const Tensor to = backwards ? layout.room(of_sequence)
                      : second  ? layout.second_half(of_sequence)
                                : layout.first_half(of_sequence);
    const Tensor chunk = kv.slice_rows(part * layout.chunk, (part + 1) * layout.chunk);
    for (const int rank : scope.context.ring()) {
      scope.context.fetch(stream, {.x = chunk, .y = layout.of_rank(to, backwards ? ranks - 1 - rank : rank), .from = rank});
    }
  }
}

// Backward of one sequence's ranges on the keys of all ranks. gkv of all its keys is overwritten. If keys are in order, gq is
// overwritten; otherwise each range sees only the keys before it, and its share is added to gq.
void backward_of_sequence(const Scope& scope, const KeyLayout& layout, const AttentionSaved& saved, const AttentionBackward& work,
                          const std::array<Call, 2>& calls, const Tensor& kv, const Tensor& gkv) {
  kernels::AttentionShape shape = layout.shape;
  if (!layout.ordered) {
    shape.window = 0;
    shape.visible = kernels::Visible::all;
  }
  const auto backward = [&](const Call& call, const Tensor& gseen) {
    const ArenaScope temporaries(scope.scratch);
    const Tensor gq = QkvColumns(shape).q_of(call.tokens(work.gqkv));
    const Tensor share = layout.ordered ? gq : allocate(scope.scratch, gq.dtype, gq.shape);
    attend_backward(scope, shape, saved, work.go, call, rows_of(kv, call.keys), share, gseen);
    if (!layout.ordered) kernels::add(scope.stream, {.x = share, .y = gq});
  };
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    const Tensor unseen = gkv.slice_rows(begin, end);
    scope.stream.zero(unseen.data, unseen.bytes());
  };
  // The later range sees most keys. It overwrites the gradients; keys that it does not see get zero. The other range adds its
  // share.
  const auto& [earlier, later] = calls;
  backward(later, rows_of(gkv, later.keys));
  zero(layout.ordered ? layout.seq_len / 2 : 0, later.keys.begin);
  if (layout.ordered) zero(later.keys.end, gkv.rows());
  if (earlier.keys.count() == 0) return;
  {
    const ArenaScope temporaries(scope.scratch);
    const Tensor share = allocate(scope.scratch, gkv.dtype, {earlier.keys.count(), gkv.cols()});
    backward(earlier, share);
    kernels::add(scope.stream, {.x = share, .y = rows_of(gkv, earlier.keys)});
  }
  if (layout.ordered) copy_backwards(scope.stream, layout, layout.room(gkv), layout.second_half(gkv));
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

Tensor Attention::gather_keys(const Scope& scope, const AttentionSaved& saved) const {
  if (scope.context.size() == 1) return {};
  const KeyLayout layout(scope, shape(scope), saved.qkv.rows());
  const Tensor keys = layout.allocate_keys(scope.scratch, scope.dtype, layout.chunk);
  gather(scope, scope.stream, layout, columns_.kv_of(saved.qkv), keys);
  return keys;
}

void Attention::forward_attention(const Scope& scope, const Tensor& keys, AttentionSaved& saved) const {
  const kernels::AttentionShape of_all = shape(scope);
  if (is_fp8(scope)) {
    attend_on_codes(scope, saved);
  } else if (scope.context.size() == 1) {
    const Call all{.number = 0, .count = of_all.batch, .begin = 0, .end = saved.qkv.rows()};
    attend(scope, of_all, saved, all, columns_.kv_of(saved.qkv));
  } else {
    const KeyLayout layout(scope, of_all, saved.qkv.rows());
    for (std::int64_t i = 0; i < layout.batch; ++i) {
      const Tensor kv = layout.of_sequence(keys, i);
      // A causal mask requires a range's own keys after the earlier ones.
      if (!layout.ordered) copy_rows(scope.stream, layout.own(layout.second_half(kv)), layout.room(kv));
      for (const Call& call : layout.calls(i)) {
        attend(scope, of_all, saved, call, kv.slice_rows(call.keys.begin, call.keys.end + (layout.ordered ? 0 : layout.chunk)));
      }
    }
  }
  if (scope.watch) scope.watch->attention(scope, options_.name, saved.lse);
}

void Attention::gather_keys_ahead(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const {
  const KeyLayout layout(scope, shape(scope), saved.qkv.rows());
  const Tensor kv = columns_.kv_of(saved.qkv);
  Stream& stream = scope.stream_of(parallel::StreamId::params);
  work.keys = layout.allocate_keys(scope.scratch, scope.dtype, 0);
  if (scope.context.reaches(kv)) {
    fetch(scope, stream, layout, kv, work.keys);
  } else {
    gather(scope, stream, layout, kv, work.keys);
  }
}

void Attention::backward_attention(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const {
  const kernels::AttentionShape of_all = shape(scope);
  work.gqkv = allocate(scope.scratch, scope.dtype, {work.go.rows(), columns_.all()});
  if (is_fp8(scope)) return backward_from_codes(scope, saved, work);
  Call own{.number = 0, .count = of_all.batch, .begin = 0, .end = saved.qkv.rows()};
  if (scope.context.size() > 1) {
    if (KeyLayout(scope, of_all, saved.qkv.rows()).ordered) return;
    own.count *= 2;  // ranges
  }
  attend_backward(scope, of_all, saved, work.go, own, columns_.kv_of(saved.qkv), columns_.q_of(work.gqkv),
                  columns_.kv_of(work.gqkv));
  if (casts_gradients()) calibrate_gradients(scope, saved, work);
}

void Attention::backward_attention_rest(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const {
  const KeyLayout layout(scope, shape(scope), saved.qkv.rows());
  work.key_gradients_mark = scope.scratch.used();
  // The gradients of the next sequence are written afterwards, to the rows that follow this one's.
  const std::int64_t rows = layout.batch * layout.seq_len, room = layout.ordered ? layout.seq_len / 2 : 0;
  const Tensor memory = allocate(scope.scratch, scope.dtype, {rows + room, 2 * columns_.kv});
  for (std::int64_t i = 0; i < layout.batch; ++i) {
    const TraceRange range(scope.stream, "gradients of keys");
    const Tensor gkv = memory.slice_rows(i * layout.seq_len, (i + 1) * layout.seq_len + room);
    backward_of_sequence(scope, layout, saved, work, layout.calls(i), layout.of_sequence(work.keys, i), gkv);
  }
  work.key_gradients = memory.slice_rows(0, rows);
}

void Attention::sum_key_gradients(const Scope& scope, const AttentionSaved& saved, AttentionBackward& work) const {
  const KeyLayout layout(scope, shape(scope), saved.qkv.rows());
  Stream& stream = scope.stream_of(parallel::StreamId::context);
  const TraceRange range(stream, "sum gradients of keys");
  const comm::Batch batch(scope.context, stream);
  layout.each_half(work.gqkv, work.key_gradients, [&](const Tensor&, const Tensor& half) {
    scope.context.reduce_scatter(stream, scope.scratch, {.x = half, .y = layout.own(half)});
  });
}

// Takes the sums of this rank's own keys to gqkv.
void Attention::take_key_gradients(const Scope& scope, AttentionBackward& work) const {
  const KeyLayout layout(scope, shape(scope), work.gqkv.rows());
  const TraceRange range(scope.stream, "take summed gradients of keys");
  layout.each_half(columns_.kv_of(work.gqkv), work.key_gradients, [&](const Tensor& to, const Tensor& half) {
    if (layout.ordered) {
      kernels::cast(scope.stream, {.x = layout.own(half), .y = to});
    } else {
      kernels::add(scope.stream, {.x = layout.own(half), .y = to});
    }
  });
}

}  // namespace octet::nn

#include "support/shard_traffic.h"

namespace octet::testing {

ShardTraffic shard_traffic(const train::EngineOptions& options, std::int64_t micro_batches) {
  using parallel::Axis;
  const models::DecoderConfig& m = options.model;
  const Recipe& recipe = options.recipe;
  const parallel::Layout& layout = options.layout;
  const std::int64_t parts = layout.mesh.size(Axis::shard) * layout.mesh.size(Axis::context), layers = m.layers;
  const std::vector<std::pair<std::int64_t, std::int64_t>> linears = {
      {(m.heads + 2 * m.kv_heads) * m.head_dim, m.dim}, {m.dim, m.heads * m.head_dim}, {2 * m.ffn, m.dim}, {m.dim, m.ffn}};
  const double value = recipe.compute == Compute::fp32 ? 4 : 2, weight = recipe.is_fp8() ? 1 : value;
  // Each rank sends its shard to each of the others.
  const auto add = [&](comm::Traffic& traffic, std::int64_t times, std::int64_t elements, double width) {
    traffic.bytes += static_cast<double>(times * (parts - 1) * round_up(ceil_div(elements, parts), 128)) * width;
    traffic.messages += times;
  };
  // Adds the linears of `of_linears` blocks, the norms of `of_norms` blocks, and `edge_times` times the embedding, the head and the final
  // norm.
  const auto add_model = [&](comm::Traffic& traffic, std::int64_t of_linears, std::int64_t of_norms, std::int64_t edge_times,
                             double linear_width, double width) {
    for (const auto& [rows, cols] : linears) add(traffic, of_linears, rows * cols, linear_width);
    add(traffic, 2 * of_norms, m.dim, width);
    add(traffic, 2 * edge_times, m.vocab * m.dim, width);
    add(traffic, edge_times, m.dim, width);
  };
  ShardTraffic result;

  // Where forward ends and backward begins, and where backward ends and the next forward begins, two blocks are still in their slots and
  // need not be gathered again. With row and MX scales they must be, because the other pass needs other codes.
  const bool kept = layout.weights == parallel::Weights::kept, by_row = recipe.w.tile == ScaleTile::row,
             by_mx = recipe.w.tile == ScaleTile::mx_1x32, two_copies = recipe.is_fp8() && (by_row || by_mx);
  const std::int64_t blocks = kept ? layers : layers + (2 * micro_batches - 1) * (layers - 2);
  const std::int64_t weights = !two_copies ? blocks : 2 * layers * (kept ? 1 : micro_batches);
  add_model(result.all_gather, weights, blocks, kept ? 1 : micro_batches, weight, value);

  const std::int64_t reductions = layout.gradients == parallel::Gradients::whole ? 1 : micro_batches;
  const auto width = static_cast<double>(size_of(layout.reduce));
  add_model(result.reduce_scatter, reductions * layers, reductions * layers, reductions, width, width);

  const auto add_sum = [&](std::int64_t messages, double bytes) {
    result.all_reduce.bytes += 2.0 * static_cast<double>(parts - 1) / static_cast<double>(parts) * bytes;
    result.all_reduce.messages += messages;
  };
  add_sum(1, 4 * sizeof(double));  // the sum of squares of the gradients, the request to stop, the loss and the number of tokens
  if (!recipe.is_fp8()) return result;
  if (recipe.delayed()) {
    // Q, K and V; the gradients of these, of O and of scores
    const std::int64_t of_attention = recipe.attention == AttentionPrecision::bf16  ? 0
                                      : recipe.attention == AttentionPrecision::fp8 ? 8
                                                                                    : 3;
    add_sum(1, static_cast<double>(layers * (4 * 3 + of_attention)) * sizeof(float));
    return result;
  }
  const auto tiles_of = [&](std::int64_t rows, std::int64_t cols) {
    if (recipe.w.tile == ScaleTile::tensor) return std::int64_t{1};
    if (by_row) return rows + cols;
    if (by_mx) return rows * ceil_div(cols, 32) + cols * ceil_div(rows, 32);
    return ceil_div(rows, 128) * ceil_div(cols, 128);
  };
  std::int64_t tiles = 0;
  for (const auto& [rows, cols] : linears) tiles += tiles_of(rows, cols);
  // The amaxes of the first two blocks are reduced first, then those of the others. Row recipes reduce rows and columns separately, because
  // a tensor axis would cut only one of them.
  add_sum(by_row ? 4 : 2, static_cast<double>(layers * tiles) * sizeof(float));
  return result;
}

}  // namespace octet::testing

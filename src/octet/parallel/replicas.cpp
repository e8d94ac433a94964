#include "octet/parallel/replicas.h"

#include <algorithm>
#include <vector>

namespace octet::parallel {
namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // elements sent at a time: bounds the scratch
constexpr std::int64_t kSmall = std::int64_t{1} << 16;  // gradients up to this travel together: a message has its own cost
constexpr std::int64_t kBucket = std::int64_t{1} << 20;

Tensor flat(const Tensor& x) { return x.reshape({x.elements()}); }

void reduce_in_pieces(Queue& queue, Arena& scratch, comm::Group& replicas, const Tensor& x) {
  for (std::int64_t begin = 0; begin < x.rows(); begin += kPiece) {
    replicas.all_reduce(queue, scratch, {.x = x.slice_rows(begin, std::min(x.rows(), begin + kPiece))});
  }
}

// Of one dtype, at most kBucket elements.
void reduce_together(Queue& queue, Arena& scratch, comm::Group& replicas, const std::vector<Tensor>& gradients) {
  if (gradients.empty()) return;
  std::int64_t count = 0;
  for (const Tensor& g : gradients) count += g.rows();
  const ArenaScope scope(scratch);
  const Tensor bucket = allocate(scratch, gradients.front().dtype, {count});
  const auto copy_each = [&](bool back) {
    std::int64_t at = 0;
    for (const Tensor& g : gradients) {
      const Tensor place = bucket.slice_rows(at, at + g.rows());
      queue.copy(back ? g.data : place.data, back ? place.data : g.data, g.bytes());
      at += g.rows();
    }
  };
  copy_each(false);
  reduce_in_pieces(queue, scratch, replicas, bucket);
  copy_each(true);
}

}  // namespace

void reduce_gradients(Queue& queue, Arena& scratch, comm::Group& replicas, ParameterStore& store) {
  if (replicas.size() == 1) return;
  std::vector<Tensor> together;
  std::int64_t count = 0;
  for (const Parameter& p : store.parameters()) {
    const Tensor g = flat(p.grad);
    if (g.rows() > kSmall) {
      reduce_in_pieces(queue, scratch, replicas, g);
      continue;
    }
    if (count + g.rows() > kBucket) {
      reduce_together(queue, scratch, replicas, together);
      together.clear();
      count = 0;
    }
    together.push_back(g);
    count += g.rows();
  }
  reduce_together(queue, scratch, replicas, together);
}

}  // namespace octet::parallel

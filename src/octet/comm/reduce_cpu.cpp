#include "octet/comm/reduce_cpu.h"

#include <cmath>
#include <type_traits>

#include "octet/base/threads.h"
#include "octet/numerics/bfloat16.h"

namespace octet::comm {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

template <class T>
void reduce(const T* parts, int count, T* y, std::int64_t n, Reduction reduction) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  parallel_ranges(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Wide total = static_cast<Wide>(parts[i]);
      for (int r = 1; r < count; ++r) {
        const Wide value = static_cast<Wide>(parts[r * n + i]);
        if (reduction == Reduction::sum) {
          total += value;
        } else if (value > total || std::isnan(value)) {
          total = value;
        }
      }
      y[i] = static_cast<T>(total);
    }
  });
}

}  // namespace

void reduce_parts(const Tensor& parts, int count, const Tensor& y, Reduction reduction) {
  switch (y.dtype) {
    case DType::bf16:
      return reduce(parts.as<BFloat16>(), count, y.as<BFloat16>(), y.elements(), reduction);
    case DType::f32:
      return reduce(parts.as<float>(), count, y.as<float>(), y.elements(), reduction);
    case DType::f64:
      return reduce(parts.as<double>(), count, y.as<double>(), y.elements(), reduction);
    default:
      fail(ExitCode::internal, "a reduction of ", name_of(y.dtype));
  }
}

}  // namespace octet::comm

#include "octet/base/threads.h"
#include "octet/kernels/elementwise/convert.h"
#include "octet/kernels/elementwise/elementwise_cpu.h"

namespace octet::kernels::cpu {

void sum_parts(const SumParts& op) {
  visit_float(op.y.dtype, [&]<class T>() {
    constexpr std::int64_t kGrain = 1 << 15;
    parallel_ranges(op.y.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        auto total = convert<Sum<T>>(op.parts.front().as<T>()[i]);
        for (std::size_t part = 1; part < op.parts.size(); ++part) total += convert<Sum<T>>(op.parts[part].as<T>()[i]);
        const T rounded = convert<T>(total);
        op.y.as<T>()[i] = op.residual ? sum(rounded, op.residual.as<T>()[i]) : rounded;
      }
    });
  });
}

}  // namespace octet::kernels::cpu

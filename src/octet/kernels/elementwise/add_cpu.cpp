#include "octet/kernels/elementwise/convert.h"
#include "octet/kernels/elementwise/elementwise_cpu.h"
#include "octet/kernels/elementwise/runs_cpu.h"

namespace octet::kernels::cpu {

void add(const Add& op) {
  visit_float(op.x.dtype, [&]<class From>() {
    visit_float(op.y.dtype, [&]<class To>() {
      for_runs<To, From>(op.x, op.y, [](const From* from, To* to, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) to[i] = sum(to[i], from[i]);
      });
    });
  });
}

}  // namespace octet::kernels::cpu

#include "octet/kernels/gelu/gelu_cpu.h"

#include <cmath>
#include <numbers>

#include "octet/base/threads.h"
#include "octet/kernels/vector_math.h"

namespace octet::kernels::cpu {
namespace {

constexpr std::int64_t kGeluRowsPerTask = 16;

// y = x p(x) and dy/dx = p + x dp/dx, where p rises from 0 to 1.
struct Exact {
  // Uses erfc, which is accurate in the tail; 1 + erf would lose the small result by rounding.
  template <class R>
  static R share(R x) {
    return R(0.5) * std::erfc(x * R(-std::numbers::sqrt2 / 2));
  }
  template <class R>
  static R slope(R x) {
    constexpr R kPeak = R(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    return kPeak * exp_of(R(-0.5) * x * x);
  }
};
struct Tanh {  // (1 + tanh(u)) / 2 = sigmoid(2 u)
  static constexpr double kTwice = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  // For arguments beyond these limits, p is 0 or 1 to the last bit, and the cube could overflow.
  template <class R>
  static R within(R x) {
    const R above = x < R(-100) ? R(-100) : x;
    return above > R(100) ? R(100) : above;
  }
  template <class R>
  static R share(R x) {
    const R z = within(x);
    return sigmoid(R(kTwice) * (z + R(0.044715) * z * z * z));
  }
  template <class R>
  static R slope(R x) {
    const R z = within(x), p = share(z);
    return p * (R(1) - p) * (R(kTwice) * (R(1) + R(3 * 0.044715) * z * z));
  }
};

// out[i] = make(in[i], g[i]) for every row. `out` may be `in` or `g`.
template <class T, class Make>
void each(const Tensor& in, const Tensor& g, const Tensor& out, const Make& make) {
  parallel_ranges(in.rows(), kGeluRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* x = in.as<T>() + row * in.row_stride;
      const T* gy = g.as<T>() + row * g.row_stride;
      T* y = out.as<T>() + row * out.row_stride;
      for (std::int64_t i = 0; i < in.cols(); ++i) {
        y[i] = static_cast<T>(make(static_cast<Real<T>>(x[i]), static_cast<Real<T>>(gy[i])));
      }
    }
  });
}

template <class Visit>
void with_kind(Gelu kind, Visit visit) {
  switch (kind) {
    case Gelu::exact:
      return visit.template operator()<Exact>();
    case Gelu::tanh:
      return visit.template operator()<Tanh>();
  }
}

}  // namespace

void gelu_forward(const GeluForward& op) {
  visit_float(op.x.dtype, [&]<class T>() {
    with_kind(op.kind, [&]<class Kind>() { each<T>(op.x, op.x, op.y, [](Real<T> x, Real<T>) { return x * Kind::share(x); }); });
  });
}

void gelu_backward(const GeluBackward& op) {
  visit_float(op.x.dtype, [&]<class T>() {
    with_kind(op.kind, [&]<class Kind>() {
      each<T>(op.x, op.gy, op.gx, [](Real<T> x, Real<T> g) { return g * (Kind::share(x) + x * Kind::slope(x)); });
    });
  });
}

}  // namespace octet::kernels::cpu

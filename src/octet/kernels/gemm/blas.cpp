#include "octet/kernels/gemm/blas.h"

#include <cblas.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "octet/base/clock.h"

// OpenBLAS's own initialisation functions, which its constructor calls. A second call has no effect. They are weak because
// builds for a single processor do not have them.
extern "C" {
__attribute__((weak)) void gotoblas_init(void);
__attribute__((weak)) void gotoblas_dynamic_init(void);
__attribute__((weak)) void gotoblas_dynamic_quit(void);
}

namespace octet::kernels::cpu {
namespace {

bool processor_has(const char* flag) {
  std::FILE* file = std::fopen("/proc/cpuinfo", "r");
  if (!file) return false;
  char line[8192];
  bool found = false;
  while (!found && std::fgets(line, sizeof line, file)) {
    if (std::strncmp(line, "flags", 5) == 0) {
      for (char* word = std::strtok(line, " \t\n"); word && !found; word = std::strtok(nullptr, " \t\n")) {
        found = std::strcmp(word, flag) == 0;
      }
      break;
    }
  }
  std::fclose(file);
  return found;
}

// Sets an environment variable during the lifetime of this object.
class TemporaryVariable {
 public:
  TemporaryVariable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before) before_ = before;
    was_set_ = before != nullptr;
    ::setenv(name, value, 1);
  }
  ~TemporaryVariable() { was_set_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
  TemporaryVariable(const TemporaryVariable&) = delete;
  TemporaryVariable& operator=(const TemporaryVariable&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

// On processors newer than itself, OpenBLAS uses SSE3 kernels ("Prescott", a tenth of the speed). It
// also starts a thread per core, although it is called with one thread here. Both can only be
// prevented before OpenBLAS's own constructor, which has no priority and so runs after this one. This
// function is in the object file of multiply(), so that it is linked whenever multiply() is used.
__attribute__((constructor(101))) void initialise_openblas() {
  if (!gotoblas_init || !gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
  gotoblas_dynamic_init();
  if (std::strcmp(openblas_get_corename(), "Prescott") == 0 && !std::getenv("OPENBLAS_CORETYPE")) {
    const bool avx512 =
        processor_has("avx512f") && processor_has("avx512bw") && processor_has("avx512vl") && processor_has("avx512dq");
    const bool avx2 = processor_has("avx2") && processor_has("fma");
    if (avx512 || avx2) {
      const TemporaryVariable core("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell");
      gotoblas_dynamic_quit();
      gotoblas_dynamic_init();
    }
  }
  const TemporaryVariable threads("OPENBLAS_NUM_THREADS", "1");
  gotoblas_init();
}

CBLAS_TRANSPOSE transpose_of(Order order) { return order == Order::transposed ? CblasTrans : CblasNoTrans; }

}  // namespace

void multiply(const Product<float>& p) {
  cblas_sgemm(CblasRowMajor, transpose_of(p.a.order), transpose_of(p.b.order), static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), p.alpha, p.a.data, static_cast<blasint>(p.a.stride), p.b.data,
              static_cast<blasint>(p.b.stride), p.beta, p.d, static_cast<blasint>(p.d_stride));
}

void multiply(const Product<double>& p) {
  cblas_dgemm(CblasRowMajor, transpose_of(p.a.order), transpose_of(p.b.order), static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), p.alpha, p.a.data, static_cast<blasint>(p.a.stride), p.b.data,
              static_cast<blasint>(p.b.stride), p.beta, p.d, static_cast<blasint>(p.d_stride));
}

const char* blas_core_name() { return openblas_get_corename(); }

double blas_seconds(std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
  const std::vector<float> a(static_cast<std::size_t>(m * k), 0.5f), b(static_cast<std::size_t>(n * k), 0.25f);
  std::vector<float> d(static_cast<std::size_t>(m * n));
  const auto run = [&] {
    multiply(Product<float>{
        .m = m, .n = n, .k = k, .a = {a.data(), k}, .b = {b.data(), k, Order::transposed}, .d = d.data(), .d_stride = n});
  };
  openblas_set_num_threads(threads);
  double least = std::numeric_limits<double>::max(), total = 0;
  for (int repeat = 0; repeat < 100 && (repeat < 5 || total < 0.2); ++repeat) {
    const auto start = Clock::now();
    run();
    const double seconds = seconds_since(start);
    least = std::min(least, seconds);
    total += seconds;
  }
  openblas_set_num_threads(1);
  return least;
}

}  // namespace octet::kernels::cpu

// The instructions of Hopper's tensor cores, and what feeds them (PTX ISA 8.x): mbarriers, TMA copies, wgmma. Included only by
// files that are compiled for sm_90a.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace octet::kernels::cuda {

constexpr int kSwizzleBytes = 128;  // the width of a swizzled tile of shared memory

__device__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// An mbarrier. A wait for `parity` returns when the phase of that parity has completed.
struct Barrier {
  std::uint64_t bits;
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&bits)), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&bits)) : "memory"); }
  __device__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&bits)), "r"(bytes) : "memory");
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n"
        "}\n" ::"r"(shared_address(&bits)),
        "r"(parity)
        : "memory");
  }
};

// Copies the box of a matrix that begins at (inner, outer) to shared memory.
__device__ void copy_box(void* to, const CUtensorMap* map, int inner, int outer, Barrier& barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                   shared_address(to)),
               "l"(map), "r"(shared_address(&barrier.bits)), "r"(inner), "r"(outer)
               : "memory");
}

// Begins to copy a box from shared memory to a matrix. Elements outside of the matrix are left out.
__device__ void store_box(const CUtensorMap* map, int inner, int outer, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(shared_address(from)),
               "r"(inner), "r"(outer)
               : "memory");
}
// Returns when the shared memory of this thread's stores may be written again.
__device__ void wait_until_stores_have_read() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes what a thread wrote to shared memory visible to copies that begin after a barrier.
__device__ void fence_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The descriptor of an operand in shared memory, swizzled by 128 bytes. `next` is the distance of the next 64 elements along M
// or N if these come first; if K comes first, the operand is a stack of 8 rows of 128 bytes, and `next` is not read.
__device__ std::uint64_t descriptor(std::uint32_t address, int next) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62, kEightRows = std::uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | std::uint64_t(next >> 4) << 16 | std::uint64_t((address & 0x3FFFF) >> 4);
}
// The descriptor of what follows by so many bytes.
__device__ std::uint64_t moved(std::uint64_t descriptor, int bytes) { return descriptor + std::uint64_t(bytes >> 4); }

// Keeps the compiler from moving reads and writes of the sums over a wgmma.
__device__ void fence_sums(float (&d)[64]) {
#pragma unroll
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}
__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define OCTET_SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OCTET_SUMS16(d, i) OCTET_SUMS4(d, i), OCTET_SUMS4(d, i + 4), OCTET_SUMS4(d, i + 8), OCTET_SUMS4(d, i + 12)
#define OCTET_SUMS64(d) OCTET_SUMS16(d, 0), OCTET_SUMS16(d, 16), OCTET_SUMS16(d, 32), OCTET_SUMS16(d, 48)
// d [64 x 128] = a b (+ d). `types` ends the name of the instruction, `last` is what follows the scales of a and b.
#define OCTET_WGMMA(types, last)                                                                                            \
  asm volatile(                                                                                                             \
      "{\n"                                                                                                                 \
      ".reg .pred add;\n"                                                                                                   \
      "setp.ne.b32 add, %66, 0;\n"                                                                                          \
      "wgmma.mma_async.sync.aligned.m64n128" types                                                                          \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "    \
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "      \
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, add, 1, 1" last \
      ";\n"                                                                                                                 \
      "}\n"                                                                                                                 \
      : OCTET_SUMS64(d)                                                                                                     \
      : "l"(a), "l"(b), "r"(add))

enum class Kind : std::uint8_t { e4m3, e5m2, bf16 };  // of A; B is E4M3 or BF16

template <Kind kKind, bool kAFirst, bool kBFirst>
__device__ void multiply_add(float (&d)[64], std::uint64_t a, std::uint64_t b, int add) {
  if constexpr (kKind == Kind::e4m3) {
    OCTET_WGMMA("k32.f32.e4m3.e4m3", "");
  } else if constexpr (kKind == Kind::e5m2) {
    OCTET_WGMMA("k32.f32.e5m2.e4m3", "");
  } else if constexpr (kAFirst && kBFirst) {
    OCTET_WGMMA("k16.f32.bf16.bf16", ", 1, 1");
  } else if constexpr (kBFirst) {
    OCTET_WGMMA("k16.f32.bf16.bf16", ", 0, 1");
  } else {
    OCTET_WGMMA("k16.f32.bf16.bf16", ", 0, 0");
  }
}

}  // namespace octet::kernels::cuda

// Selection of GEMM algorithms on devices whose library offers several.
#pragma once

#include <filesystem>
#include <functional>

#include "octet/device/arena.h"
#include "octet/device/device.h"

namespace octet::kernels {

struct GemmTuning {
  std::filesystem::path cache_file;  // choices of earlier runs are read from it and new ones added; empty: not used
  // Called before and after each kind of GEMM that is timed. Not called if all choices are known.
  std::function<void(int done, int total)> progress;
};

// Selects the fastest algorithm for every kind of GEMM that this device has run so far and that has no
// selected algorithm yet, except those with Gemm::same_on_ranks. It uses the choice in `cache_file` if there is one. Otherwise it
// times the algorithms on random operands in the free part of `scratch`, or in memory of their own if that is too small. Call it
// between steps, after one step has run every kind of GEMM: a different algorithm gives different bits. Waits for the device.
// Does nothing on the CPU and the meta device, which have one algorithm.
void tune_gemms(Stream& stream, Arena& scratch, const GemmTuning& tuning);

}  // namespace octet::kernels

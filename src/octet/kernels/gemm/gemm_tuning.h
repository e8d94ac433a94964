// The choice of algorithms for products on devices whose library offers several.
#pragma once

#include <filesystem>
#include <functional>

#include "octet/device/arena.h"
#include "octet/device/device.h"

namespace octet::kernels {

struct GemmTuning {
  std::filesystem::path cache_file;  // choices of earlier runs are read from it and new ones added; empty: nothing is kept
  // Called before and after each kind of product that is timed; never when all choices are known.
  std::function<void(int done, int total)> progress;
};

// Gives every kind of product that this device has multiplied so far, and that has no choice yet, its fastest algorithm: the one
// in `cache_file`, or else the result of timing them on random operands, in the free part of `scratch` or, where that is too
// small, in memory of their own. To be called between steps, after one has made every kind of product known: other algorithms
// give other bits. Waits for the device. Does nothing on the CPU and the meta device, which have no choice.
void tune_gemms(Queue& queue, Arena& scratch, const GemmTuning& tuning);

}  // namespace octet::kernels

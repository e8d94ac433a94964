// Facts about all GPUs of a machine, which `octet doctor` and its gate share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "octet/app/facts.h"
#include "octet/device/cuda/gpu_state.h"

namespace octet::app {

// Compute capabilities: the oldest with FP8 products, and the oldest that the kernels can be compiled for (cmake/cuda.cmake).
inline constexpr int kOldestWithFp8 = 89, kOldestWithKernels = 90;

void judge(Fact& fact, Verdict verdict, std::string advice);

// Returns "GPU 0" or "GPUs 0, 3" for the GPUs for which `holds` returns true; "" for none.
std::string gpus_where(const std::vector<GpuState>& gpus, const std::function<bool(const GpuState&)>& holds);
const GpuState& first_where(const std::vector<GpuState>& gpus, const std::function<bool(const GpuState&)>& holds);

// Sets the text of a fact. If all GPUs have the same text, it appears once; otherwise each text appears with the GPU's number.
// Without GPUs, sets nothing.
void set_text(Fact& fact, const std::string& label, const std::vector<GpuState>& gpus,
              const std::function<std::string(const GpuState&)>& text_of);

template <class T>
Json element_of(const T& value) {
  return value;
}
template <class T>
Json element_of(const std::optional<T>& value) {
  return json_or_null(value);
}

// A fact with an element for each GPU.
template <class Member>
Fact list_of(const std::string& name, const std::vector<GpuState>& gpus, Member GpuState::*member) {
  Fact fact{.name = name, .value = Json::array()};
  for (const GpuState& gpu : gpus) fact.value.push_back(element_of(gpu.*member));
  return fact;
}

}  // namespace octet::app

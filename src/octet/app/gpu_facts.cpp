#include "octet/app/gpu_facts.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::app {

void judge(Fact& fact, Verdict verdict, std::string advice) {
  fact.verdict = verdict;
  fact.advice = std::move(advice);
}

std::string gpus_where(const std::vector<GpuState>& gpus, const std::function<bool(const GpuState&)>& holds) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (holds(gpus[i])) found.push_back(i);
  }
  return found.empty() ? "" : fmt::format("GPU{} {}", found.size() == 1 ? "" : "s", fmt::join(found, ", "));
}

const GpuState& first_where(const std::vector<GpuState>& gpus, const std::function<bool(const GpuState&)>& holds) {
  return *std::find_if(gpus.begin(), gpus.end(), holds);
}

void set_text(Fact& fact, const std::string& label, const std::vector<GpuState>& gpus,
              const std::function<std::string(const GpuState&)>& text_of) {
  if (gpus.empty()) return;
  fact.label = label;
  std::vector<std::string> texts, numbered;
  for (const GpuState& gpu : gpus) {
    texts.push_back(text_of(gpu));
    numbered.push_back(fmt::format("{}: {}", numbered.size(), texts.back()));
  }
  const bool same = std::adjacent_find(texts.begin(), texts.end(), std::not_equal_to<>()) == texts.end();
  fact.text = !same              ? fmt::format("{}", fmt::join(numbered, "; "))
              : gpus.size() == 1 ? texts[0]
                                 : fmt::format("{} x {}", gpus.size(), texts[0]);
}

}  // namespace octet::app

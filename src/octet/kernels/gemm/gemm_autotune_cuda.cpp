#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/directory.h"
#include "octet/base/file.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/math.h"
#include "octet/base/rng.h"
#include "octet/device/cuda/cuda_device.h"
#include "octet/kernels/gemm/gemm_cuda.h"
#include "octet/kernels/gemm/gemm_library_cuda.h"
#include "octet/kernels/gemm/gemm_mx_cuda.h"

namespace octet::kernels::cuda {
namespace {

using octet::cuda::check;

constexpr int kCandidates = 8;
constexpr int kWarmUps = 3, kTimedRuns = 10;

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
    text += digits;
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_of(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != 16 * std::size(algorithm.data) || text.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i)
    algorithm.data[i] = std::stoull(text.substr(16 * i, 16), nullptr, 16);
  return algorithm;
}

// A file with the choices for all GPUs and library versions: {"GPU, version": {"GEMM": "algorithm"}}. A file that cannot be read
// or written costs a warning and the time of choosing again, but does not end the run.
class ChoiceFile {
 public:
  ChoiceFile(std::filesystem::path path, int gpu)
      : path_(std::move(path)), machine_(concat(cuda_properties(gpu).name, ", cuBLASLt ", cublasLtGetVersion())) {
    try {
      known_ = read();
    } catch (const Error& error) {
      log_shared_warning(concat(error.what(), "; the algorithms of matrix products are chosen again and not kept"));
      path_.clear();
    }
  }

  std::optional<cublasLtMatmulAlgo_t> find(const std::string& product) const {
    if (!known_.contains(machine_)) return {};
    const auto found = known_[machine_].find(product);
    if (found == known_[machine_].end() || !found->is_string()) return {};
    return algorithm_of(found->get<std::string>());
  }
  void add(const std::string& product, const cublasLtMatmulAlgo_t& algorithm) { chosen_[product] = text_of(algorithm); }
  // Adds the choices to what the file has by now: stages and other runs choose for other products at the same time.
  void write() const {
    try {
      if (path_.empty()) return;
      Json all = read();
      all[machine_].update(chosen_);
      write_file_atomically(path_, all.dump(1) + "\n");
    } catch (const Error& error) {
      log_shared_warning(concat(error.what(), "; the algorithms of matrix products are not kept for the next run"));
    }
  }

 private:
  Json read() const {
    if (path_.empty() || !path_exists(path_)) return Json::object();
    Json all = json_of(read_file(path_));
    if (all.is_object() && (!all.contains(machine_) || all[machine_].is_object())) return all;
    log_shared_warning(concat(path_.string(), ": not a file of GEMM choices; it is overwritten"));
    return Json::object();
  }

  std::filesystem::path path_;
  std::string machine_;
  Json known_ = Json::object(), chosen_ = Json::object();
};

class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(cudaStream_t native) { check(cudaEventRecord(event_, native), "cudaEventRecord"); }
  float milliseconds_since(const TimedEvent& start) const {
    float result = 0;
    check(cudaEventElapsedTime(&result, start.event_, event_), "cudaEventElapsedTime");
    return result;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// The bytes that a run of a GEMM reads and writes.
struct OperandBytes {
  std::size_t a, a_scales, b, b_scales, c, d;

  explicit OperandBytes(const ProductKey& key)
      : a(matrix(key.a, key.a_layout == GemmOperand::Layout::k_last ? key.m : key.k)),
        a_scales(key.fp8() ? scales(key.a_tile, key.m, key.k) : 0),
        b(matrix(key.b, key.b_layout == GemmOperand::Layout::k_last ? key.n : key.k)),
        b_scales(key.fp8() ? scales(key.b_tile, key.n, key.k) : 0),
        c(key.addend == ProductKey::Addend::other ? matrix(key.c, key.m) : 0),
        d(matrix(key.d, key.m)) {}
  std::size_t total() const { return a + a_scales + b + b_scales + c + d; }

 private:
  static std::size_t aligned(std::size_t bytes) {
    return (bytes + Device::kAlignment - 1) / Device::kAlignment * Device::kAlignment;
  }
  static std::size_t matrix(const ProductKey::Matrix& x, std::int64_t rows) {
    return aligned(static_cast<std::size_t>(rows * x.stride) * size_of(x.dtype));
  }
  static std::size_t scales(ScaleTile tile, std::int64_t rows, std::int64_t k) {
    if (tile == ScaleTile::mx_1x32) return aligned(tiled_mx_scale_bytes(rows, k));
    const std::int64_t padding = tile == ScaleTile::block_128x128 ? 512 : 1;  // see gemm_cuda.cpp
    return aligned(bytes_of(DType::f32, scale_shape(tile, rows, round_up(k, padding))));
  }
};

// Random values with a distribution as in training, because the power that a GEMM draws, and thus the clock, depends on its
// operands. The pattern's length is an odd number of 16-byte units, so that rows of the usual lengths differ.
std::vector<std::byte> random_pattern(DType dtype) {
  const std::size_t size = size_of(dtype), count = ((std::size_t{1} << 18) - 16) / size;
  std::vector<std::byte> pattern(count * size);
  const Rng rng(1, RngStream::test);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(rng.normal(i));
    const auto put = [&](auto element) { std::memcpy(pattern.data() + i * size, &element, size); };
    switch (dtype) {
      case DType::f8_e4m3:
        put(encode_fp8(Fp8Format::e4m3, 64 * value));
        break;
      case DType::f8_e5m2:
        put(encode_fp8(Fp8Format::e5m2, 8192 * value));
        break;
      case DType::bf16:
        put(BFloat16(value));
        break;
      default:
        put(value);
        break;
    }
  }
  return pattern;
}

// Scales of 1, in FP32 or E8M0.
std::vector<std::byte> unit_pattern(ScaleTile tile) {
  if (tile == ScaleTile::mx_1x32) return std::vector<std::byte>(256, std::byte{127});
  std::vector<std::byte> pattern(256);
  for (std::size_t i = 0; i < pattern.size(); i += sizeof(float)) {
    const float one = 1.0f;
    std::memcpy(pattern.data() + i, &one, sizeof one);
  }
  return pattern;
}

// Fills device memory with repetitions of a pattern.
void repeat(Stream& stream, std::byte* memory, std::size_t bytes, const std::vector<std::byte>& pattern) {
  std::size_t done = std::min(bytes, pattern.size());
  stream.copy_to_device(memory, pattern.data(), done);
  while (done < bytes) {
    const std::size_t piece = std::min(done, bytes - done);
    stream.copy(memory + done, memory, piece);
    done += piece;
  }
}

class Tuner {
 public:
  Tuner(Stream& stream, Arena& scratch) : stream_(stream), scratch_(scratch) {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
    cache_bytes_ = static_cast<std::size_t>(bytes);
    for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2, DType::bf16, DType::f32}) patterns_[dtype] = random_pattern(dtype);
  }

  // Throws Error{does_not_fit} if there is not enough memory for the operands.
  cublasLtMatmulAlgo_t fastest(const ProductKey& key, const ProductPlan& plan) {
    const ArenaScope scope(scratch_);
    Buffer own;
    const std::vector<ProductMemory> operands = allocate(key, own);
    const cudaStream_t native = octet::cuda::native_stream(stream_);
    const auto runs = [&](const cublasLtMatmulAlgo_t& candidate, const ProductMemory& memory) {
      return plan.run(memory, candidate, native) == CUBLAS_STATUS_SUCCESS;
    };
    std::vector<cublasLtMatmulAlgo_t> candidates = plan.proposals(kCandidates);
    std::erase_if(candidates, [&](const cublasLtMatmulAlgo_t& candidate) { return !runs(candidate, operands.front()); });
    require(!candidates.empty(), "gemm: no algorithm runs: ", key.text());

    // The candidates take turns, so that a change of the clock affects all of them equally.
    std::vector<std::array<Interval, kTimedRuns>> intervals(candidates.size());
    std::size_t turn = 0;
    bool all_ran = true;
    for (int round = -kWarmUps; round < kTimedRuns; ++round) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        Interval* const interval = round < 0 ? nullptr : &intervals[i][static_cast<std::size_t>(round)];
        if (interval) interval->start.record(native);
        all_ran = runs(candidates[i], operands[turn++ % operands.size()]) && all_ran;
        if (interval) interval->end.record(native);
      }
    }
    stream_.synchronize();
    require(all_ran, "gemm: an algorithm ran once and not again: ", key.text());
    std::vector<float> medians;
    for (const auto& of_candidate : intervals) medians.push_back(median(of_candidate));
    return candidates[static_cast<std::size_t>(std::min_element(medians.begin(), medians.end()) - medians.begin())];
  }

 private:
  struct Interval {
    TimedEvent start, end;
  };
  static float median(const std::array<Interval, kTimedRuns>& intervals) {
    std::array<float, kTimedRuns> times{};
    for (std::size_t i = 0; i < times.size(); ++i) times[i] = intervals[i].end.milliseconds_since(intervals[i].start);
    std::nth_element(times.begin(), times.begin() + kTimedRuns / 2, times.end());
    return times[kTimedRuns / 2];
  }

  // Allocates so many sets of operands that a set has left the cache when its turn comes again, if the scratch has room for them.
  std::vector<ProductMemory> allocate(const ProductKey& key, Buffer& own) {
    const OperandBytes bytes(key);
    const std::size_t room = scratch_.capacity() - scratch_.used();
    std::size_t sets = std::min<std::size_t>(2 * cache_bytes_ / bytes.total() + 1, 32);
    std::byte* memory = nullptr;
    if (kWorkspaceBytes + bytes.total() <= room) {
      sets = std::min(sets, (room - kWorkspaceBytes) / bytes.total());
      memory = static_cast<std::byte*>(scratch_.allocate(kWorkspaceBytes + sets * bytes.total()));
    } else {
      sets = 1;
      own = stream_.device().allocate(kWorkspaceBytes + bytes.total(), MemoryCategory::workspace);
      memory = static_cast<std::byte*>(own.data());
    }
    void* const workspace = memory;
    memory += kWorkspaceBytes;
    const auto take = [&](std::size_t size, const std::vector<std::byte>& pattern) {
      std::byte* const result = memory;
      repeat(stream_, result, size, pattern);
      memory += size;
      return size > 0 ? result : nullptr;
    };
    std::vector<ProductMemory> result(sets);
    for (ProductMemory& set : result) {
      set.a = take(bytes.a, patterns_.at(key.a.dtype));
      set.a_scales = take(bytes.a_scales, unit_pattern(key.a_tile));
      set.b = take(bytes.b, patterns_.at(key.b.dtype));
      set.b_scales = take(bytes.b_scales, unit_pattern(key.b_tile));
      set.d = take(bytes.d, patterns_.at(key.d.dtype));
      set.c = key.addend == ProductKey::Addend::other ? take(bytes.c, patterns_.at(key.c.dtype)) : set.d;
      set.workspace = workspace;
    }
    return result;
  }

  Stream& stream_;
  Arena& scratch_;
  std::size_t cache_bytes_ = 0;
  std::map<DType, std::vector<std::byte>> patterns_;
};

}  // namespace

void tune_gemms(Stream& stream, Arena& scratch, const GemmTuning& tuning) {
  auto& plans = octet::cuda::extension<GemmLibrary>(stream).plans();
  ChoiceFile choices(tuning.cache_file, octet::cuda::index_of(stream.device()));
  std::vector<std::pair<const ProductKey, ProductPlan>*> unknown;
  for (auto& entry : plans) {
    ProductPlan& plan = entry.second;
    if (plan.tuned || entry.first.same_on_ranks) continue;
    const std::optional<cublasLtMatmulAlgo_t> choice = choices.find(entry.first.text());
    plan.tuned = choice && plan.accepts(*choice);
    if (plan.tuned) {
      plan.algorithm = *choice;
    } else {
      unknown.push_back(&entry);
    }
  }
  if (unknown.empty()) return;

  const int total = static_cast<int>(unknown.size());
  const auto report = [&](int done) {
    if (tuning.progress) tuning.progress(done, total);
  };
  Tuner tuner(stream, scratch);
  for (int done = 0; done < total; ++done) {
    report(done);
    auto& [key, plan] = *unknown[static_cast<std::size_t>(done)];
    try {
      plan.algorithm = tuner.fastest(key, plan);
      choices.add(key.text(), plan.algorithm);
    } catch (const Error& error) {
      if (error.code() != ExitCode::does_not_fit) throw;
      log_warning("gemm: not enough memory to time algorithms; using cuBLASLt's first proposal: " + key.text());
    }
    plan.tuned = true;
  }
  report(total);
  choices.write();
}

}  // namespace octet::kernels::cuda

// `octet doctor --gate`: the exact product and its check, the judgement of hosts that are not there, and the gate of this host.
#include "octet/app/gate.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "support/facts.h"
#include "support/faults.h"
#include "support/program.h"

namespace octet::app {
namespace {

using octet::testing::is_refused;
using octet::testing::ProgramResult;
using octet::testing::refused;
using octet::testing::run_program;
using octet::testing::says;
using octet::testing::TemporaryFolder;

class ExactProductTest : public ::testing::Test {
 protected:
  // Multiplies in integers, without the library.
  ExactProductTest() {
    for (std::int64_t i = 0; i < kShape.m; ++i) {
      for (std::int64_t j = 0; j < kShape.n; ++j) {
        int sum = 0;
        for (std::int64_t k = 0; k < kShape.k; ++k) sum += product_.a()[at(i, k, kShape.k)] * product_.b()[at(j, k, kShape.k)];
        right_[at(i, j, kShape.n)] = static_cast<float>(sum);
      }
    }
  }
  static std::size_t at(std::int64_t row, std::int64_t column, std::int64_t columns) {
    return static_cast<std::size_t>(row * columns + column);
  }

  static constexpr ProductShape kShape = {.m = 5, .n = 7, .k = 64};
  ExactProduct product_{kShape, 31, 31, 3};
  std::vector<float> right_ = std::vector<float>(static_cast<std::size_t>(kShape.m * kShape.n));
};

TEST_F(ExactProductTest, IsMadeOfSmallIntegersOfBothSigns) {
  const auto [least, most] = std::minmax_element(product_.a().begin(), product_.a().end());
  EXPECT_GE(*least, -31);
  EXPECT_LT(*least, -20);
  EXPECT_LE(*most, 31);
  EXPECT_GT(*most, 20);
  EXPECT_EQ(product_.wrong_element(right_), "");
}

// Every bit of every element.
TEST_F(ExactProductTest, FindsEveryFlippedBit) {
  for (std::size_t i = 0; i < right_.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<float> wrong = right_;
      wrong[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(wrong[i]) ^ (std::uint32_t{1} << bit));
      if (wrong[i] == right_[i]) continue;  // the sign of a zero
      const std::string which = concat("element [", i / 7, ", ", i % 7, "] is ");
      ASSERT_EQ(product_.wrong_element(wrong).rfind(which, 0), 0u) << bit << ": " << product_.wrong_element(wrong);
    }
  }
}

TEST_F(ExactProductTest, FindsWhatIsNoNumberAndWhatCancelsOutInASum) {
  std::vector<float> wrong = right_;
  wrong[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(product_.wrong_element(wrong).rfind("element [1, 2] is nan instead of ", 0), 0u) << product_.wrong_element(wrong);
  wrong = right_;
  wrong[15] += 1;
  wrong[16] -= 1;
  EXPECT_EQ(product_.wrong_element(wrong),
            concat("element [2, 1] is ", wrong[15], " instead of ", static_cast<int>(right_[15])));
}

TEST(GemmCheckTest, TheCpuMultipliesRight) {
  const GemmCheck check =
      check_gemm(DeviceKind::cpu, 0, {.shape = {.m = 65, .n = 33, .k = 1024}, .seconds = 0, .repeat_s = 1e-4});
  EXPECT_EQ(check.wrong, "");
  EXPECT_GE(check.gemms, 4);
  EXPECT_EQ(check.fp8_gflops.size(), 1u);
  EXPECT_EQ(check.bf16_gflops.size(), 1u);
}

GpuState fit_gpu() {
  return {.name = "NVIDIA H100 80GB HBM3",
          .slowed_by = "",
          .nvlinks = 18,
          .nvlinks_active = 18,
          .ecc_uncorrected = 0,
          .rows_pending = false,
          .rows_failed = false,
          .pcie_generation = 5,
          .pcie_generation_max = 5,
          .pcie_width = 16,
          .pcie_width_max = 16,
          .nvlink_recoveries = 0};
}

// What is known of the second GPU of three changes; the third takes no part.
std::vector<Fact> facts_with(const std::function<void(GpuState&)>& change) {
  CudaState cuda{.gpus = {fit_gpu(), fit_gpu(), {.error = "unknown error"}}};
  change(cuda.gpus[1]);
  return gate_gpu_facts(cuda, 2);
}

TEST(GateTest, JudgesGpus) {
  EXPECT_TRUE(all_ok(facts_with([](GpuState&) {})));
  EXPECT_TRUE(all_ok(facts_with([](GpuState& gpu) { gpu = {.name = "without NVML"}; })));
  EXPECT_TRUE(all_ok(gate_gpu_facts({}, 0)));
  GpuState unbridged = fit_gpu();
  unbridged.nvlinks_active = 0;
  EXPECT_TRUE(all_ok(gate_gpu_facts({.gpus = {unbridged, unbridged}}, 2)));
  const auto bad = [](const char* name, const std::vector<std::string>& parts, const std::function<void(GpuState&)>& change) {
    EXPECT_TRUE(advises(facts_with(change), name, Verdict::bad, parts));
  };
  bad("gpus.error", {"GPU 1: out of sorts. "}, [](GpuState& gpu) { gpu.error = "out of sorts"; });
  bad("gpus.ecc_uncorrected", {"GPU 1: 3 errors of memory"}, [](GpuState& gpu) { gpu.ecc_uncorrected = 3; });
  bad("gpus.rows_pending", {"GPU 1: ", "wait to be replaced"}, [](GpuState& gpu) { gpu.rows_pending = true; });
  bad("gpus.rows_failed", {"GPU 1: ", "could not be replaced"}, [](GpuState& gpu) { gpu.rows_failed = true; });
  bad("gpus.slowed_by", {"GPU 1: ", "because of heat"}, [](GpuState& gpu) { gpu.slowed_by = "heat"; });
  bad("gpus.pcie_generation", {"the link is PCIe 3 x16, and 5 x16 is possible"},
      [](GpuState& gpu) { gpu.pcie_generation = 3; });
  bad("gpus.pcie_width", {"the link is PCIe 5 x8, and 5 x16 is possible"}, [](GpuState& gpu) { gpu.pcie_width = 8; });
  bad("gpus.nvlinks_active", {"GPU 1: only 17 NVLinks are up, and 18 on other GPUs of this host. "},
      [](GpuState& gpu) { gpu.nvlinks_active = 17; });
  bad("gpus.nvlink_recoveries", {"GPU 1: ", "trained again 2 times"}, [](GpuState& gpu) { gpu.nvlink_recoveries = 2; });
  EXPECT_TRUE(advises(gate_gpu_facts({.error = "no CUDA-capable device is detected"}, 2), "gpus.wanted", Verdict::bad,
                      {"2 ranks need a GPU each, and CUDA shows 0: no CUDA-capable device is detected. "}));
}

TEST(GateTest, JudgesGemmsOfGpus) {
  GemmCheck usual{.gemms = 4, .fp8_gflops = std::vector<double>(40, 1000e3), .bf16_gflops = std::vector<double>(40, 600e3)};
  GemmCheck slow = usual;
  for (std::size_t i = 20; i < 26; ++i) slow.bf16_gflops[i] = 500e3;
  const std::vector<Fact> facts = gpu_gemm_facts({usual, slow, usual}, GateKind::full);
  EXPECT_TRUE(advises(facts, "gpu_gemm.slow", Verdict::bad,
                      {"GPU 1: a tenth of its BF16 GEMMs ran at 500 TFLOP/s or less, and 600 are usual on this host. "}));
  EXPECT_EQ(fact_of(facts, "gpu_gemm.gemms").value, 12);
  EXPECT_EQ(fact_of(facts, "gpu_gemm.fp8_gflops").value, Json({1000e3, 1000e3, 1000e3}));
  EXPECT_TRUE(all_ok(gpu_gemm_facts({usual, slow, usual}, GateKind::quick)));
  GemmCheck warming_up = usual;
  for (std::size_t i = 0; i < 10; ++i) warming_up.bf16_gflops[i] = 300e3;
  warming_up.fp8_gflops[33] = 1;
  EXPECT_TRUE(all_ok(gpu_gemm_facts({usual, warming_up}, GateKind::full))) << "the first quarter, and a single repeat";
  GemmCheck wrong{.wrong = "FP8 GEMM: element [1, 2] is 3 instead of 4"};
  EXPECT_TRUE(advises(gpu_gemm_facts({usual, wrong, wrong}, GateKind::quick), "gpu_gemm.wrong", Verdict::bad,
                      {"GPU 1: FP8 GEMM: element [1, 2] is 3 instead of 4. "}));
  EXPECT_TRUE(advises(cpu_gemm_facts(wrong), "cpu_gemm.wrong", Verdict::bad, {"On the CPU: FP8 GEMM: element [1, 2]"}));
}

TEST(GateTest, JudgesStorageAndLimits) {
  const Space little{.total_bytes = std::int64_t{1} << 40, .free_bytes = 63 << 20}, unknown{};
  // A run that has state in memory goes on while its disk is full.
  for (const auto& [kind, verdict] : {std::pair(GateKind::full, Verdict::bad), std::pair(GateKind::quick, Verdict::warn)}) {
    EXPECT_TRUE(advises(storage_facts({.folder = "out", .space = little, .write_s = 1}, kind), "storage.free_bytes", verdict,
                        {"out: 63.0 MiB free, and a run needs 64 MiB"}));
    EXPECT_TRUE(advises(storage_facts({.folder = "out", .trouble = "out/gate: No space left", .no_room = true}, kind),
                        "storage.trouble", verdict, {"out/gate: No space left. "}));
  }
  EXPECT_TRUE(advises(storage_facts({.folder = "out", .trouble = "out/gate: denied"}, GateKind::quick), "storage.trouble",
                      Verdict::bad, {"out/gate: denied. "}));
  EXPECT_TRUE(all_ok(storage_facts({.folder = "out", .space = unknown, .write_s = 1}, GateKind::full)));
  Machine machine{.shared_memory = Space{.total_bytes = 64 << 20, .free_bytes = 1 << 20},
                  .locked_bytes = Limit{.soft = 65536, .hard = 65536},
                  .has_infiniband = true};
  EXPECT_TRUE(all_ok(gate_limit_facts(machine, 0))) << "without GPUs";
  const std::vector<Fact> facts = gate_limit_facts(machine, 2);
  EXPECT_TRUE(advises(facts, "shared_memory_free_bytes", Verdict::bad, {"/dev/shm: 1.00 MiB free, and NCCL needs"}));
  EXPECT_TRUE(advises(facts, "limits.locked_bytes", Verdict::warn, {"64.0 KiB at most"}));
}

class GateOfThisHost : public testing::Faults {
 protected:
  ProgramResult gate(const std::string& rules) const {
    return run_program("doctor --gate quick --gpus 0", folder_.path(), failing(rules));
  }
  TemporaryFolder folder_;
};

// It takes 0.6 s where nothing else runs.
TEST_F(GateOfThisHost, PassesInAFewSecondsAndLeavesNothing) {
  const ProgramResult result = run_program("doctor --gate quick --gpus 0 --json", folder_.path());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const Json json = json_of(result.out);
  EXPECT_EQ(json["verdict"], "ok");
  EXPECT_EQ(json["gate"]["fault"], "");
  EXPECT_LT(json["gate"]["seconds"], 30.0);
  EXPECT_GE(json["cpu_gemm"]["gemms"], 4);
  EXPECT_GT(json["storage"]["write_seconds"], 0.0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(GateOfThisHost, AForbiddenFolderIsAFaultOfTheHost) {
  EXPECT_TRUE(refused(gate("open */gate-* 1+ EACCES"), 79, "octet: gate: ", "cannot create: Permission denied. "));
  const ProgramResult missing = run_program("doctor --gate quick --gpus 0 --json --folder nowhere", folder_.path());
  EXPECT_TRUE(refused(missing, 79, "nowhere/gate-", "No such file or directory"));
  EXPECT_EQ(json_of(missing.out)["gate"]["check"], "storage.trouble");
  EXPECT_TRUE(refused(run_program("doctor --gate quick --gpus 9", folder_.path()), 79, "octet: gate: 9 ranks need a GPU each"));
}

// A run that is in memory waits for room. Only the gate before a run, which is full, is strict.
TEST_F(GateOfThisHost, AFullDiskEndsNoRestart) {
  const char* const rule = "write */gate-* 1+ ENOSPC";
  const ProgramResult quick = gate(rule);
  EXPECT_EQ(quick.code, 0) << quick.err;
  EXPECT_TRUE(says(quick.out, "cannot write: No space left on device. ")) << quick.out;
  EXPECT_TRUE(refused(run_program("doctor --gate full --gpus 0", folder_.path(), failing(rule)), 79,
                      "octet: gate: ", "cannot write: No space left on device. ", "its quota"));
}

TEST_F(GateOfThisHost, StorageThatMayAnswerLaterIsNoFaultOfTheHost) {
  EXPECT_TRUE(refused(gate("fsync */gate-* 1+ EIO"), 76, "octet: gate: ", "Input/output error. This may pass"));
  EXPECT_TRUE(refused(gate("read */gate-* 1+ ESTALE"), 76, "octet: gate: ", "Stale file handle. This may pass"));
  EXPECT_EQ(std::filesystem::exists(folder_ / "faults.log"), true);
}

}  // namespace
}  // namespace octet::app

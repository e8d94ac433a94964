// What ranks hold of experts, gather, reduce, update, save and load must equal the values on one rank, bit for bit, on every
// mesh.
#include "support/expert_parts.h"

#include <gtest/gtest.h>

#include "octet/base/threads.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/steps.h"
#include "octet/train/assembler.h"
#include "octet/train/entries.h"
#include "support/folder.h"

namespace octet::train {
namespace {

using parallel::Gradients;
using parallel::Layout;
using parallel::Mesh;
using parallel::Weights;
using testing::ExpertParts;
using testing::on_parts;
using testing::PartsOptions;
using testing::SharedGlobals;

const Mesh kOne({1, 1, 1, 1});
const Mesh kMeshes[] = {
    Mesh({1, 2, 1, 1}),    Mesh({1, 2, 1, 1}, 2), Mesh({1, 4, 1, 1}),    Mesh({1, 4, 1, 1}, 2),
    Mesh({1, 4, 1, 1}, 4), Mesh({1, 2, 2, 1}, 2), Mesh({2, 2, 1, 1}, 2), Mesh({2, 2, 1, 1}, 1),
    Mesh({2, 4, 1, 1}, 2), Mesh({1, 2, 1, 2}, 2), Mesh({2, 1, 1, 1}),
};

std::string text(const Layout& layout) {
  std::string result;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) result += concat(layout.mesh.size(parallel::Axis(i)), " ");
  return concat(result, "expert ", layout.mesh.expert(), layout.weights == Weights::kept ? ", kept" : ", resharded",
                layout.gradients == Gradients::whole ? ", whole" : ", sharded");
}

std::unique_ptr<SharedGlobals> after_steps(const PartsOptions& options, int steps) {
  auto seen = std::make_unique<SharedGlobals>();
  on_parts(options, [&](ExpertParts& parts) {
    parts.initialise();
    for (int step = 1; step <= steps; ++step) parts.step(static_cast<std::uint32_t>(step), step == steps ? seen.get() : nullptr);
  });
  return seen;
}

void expect_bits_of_one_rank(PartsOptions options) {
  PartsOptions alone = options;
  alone.layout = {.mesh = kOne, .reduce = options.layout.reduce};
  const auto expected = after_steps(alone, 2);
  EXPECT_EQ(expected->globals.difference(expected->globals), "");
  for (const parallel::Kept& kept : parallel::kept_order(2, 2)) {
    options.layout.weights = kept.weights;
    options.layout.gradients = kept.gradients;
    EXPECT_EQ(after_steps(options, 2)->globals.difference(expected->globals), "")
        << options.recipe << " on " << text(options.layout);
  }
}

// Kernels get one thread, because the ranks are threads themselves.
class ExpertPartsTest : public ::testing::Test {
 protected:
  ExpertPartsTest() { set_num_threads(1); }
  ~ExpertPartsTest() override { set_num_threads(available_cores()); }
};
class OnMesh : public ExpertPartsTest, public ::testing::WithParamInterface<Mesh> {};
INSTANTIATE_TEST_SUITE_P(Meshes, OnMesh, ::testing::ValuesIn(kMeshes), [](const auto& info) {
  std::string name;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) name += concat(info.param.size(parallel::Axis(i)), "_");
  return concat(name, "expert_", info.param.expert());
});

TEST_P(OnMesh, StepsAreThoseOfOneRank) {
  expect_bits_of_one_rank({.layout = {.mesh = GetParam()}});
  // Stochastic rounding, and gradients that are cast before they are sent.
  expect_bits_of_one_rank({.recipe = "bf16",
                           .layout = {.mesh = GetParam(), .reduce = DType::bf16},
                           .storage = {.master_weights = false, .moments = DType::bf16}});
}

// The tensor axis must not cut through tiles. The experts here are too small for that, except for fp8_current, which has one
// scale for the tensor.
TEST_F(ExpertPartsTest, EveryRecipesCodesAreThoseOfOneRank) {
  for (const char* recipe : {"fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"}) {
    for (const Mesh& mesh : {Mesh({1, 4, 1, 1}, 2), Mesh({1, 4, 1, 1}, 4)}) {
      expect_bits_of_one_rank({.recipe = recipe, .layout = {.mesh = mesh}});
    }
  }
  expect_bits_of_one_rank({.recipe = "fp8_current", .layout = {.mesh = Mesh({1, 2, 1, 2}, 2)}});
}

// Each of the four ranks holds a quarter of everything, wherever the experts are. No tensor here needs padding.
TEST_F(ExpertPartsTest, TakeTheMemoryOfTheirShare) {
  const auto taken = [](int expert) {
    std::array<std::size_t, 3> bytes{};
    on_parts({.layout = {.mesh = Mesh({1, 4, 1, 1}, expert)}}, [&](ExpertParts& parts) {
      parts.step(1);  // before this, other ranks may still be connecting
      const auto of = [&](MemoryCategory category) {
        return parts.stream().device().memory().bytes[static_cast<std::size_t>(category)];
      };
      if (parts.rank() == 0)
        bytes = {of(MemoryCategory::master_weights), of(MemoryCategory::moments), of(MemoryCategory::gradients)};
    });
    return bytes;
  };
  const auto one = taken(1), two = taken(2), four = taken(4);
  EXPECT_EQ(one[0], two[0]);
  EXPECT_EQ(one[0], four[0]);
  EXPECT_EQ(one[1], four[1]);
  // The gradients of the experts that a rank holds are kept whole. There are 16 matrices of 96 x 48 in all.
  const std::size_t experts = 16 * 96 * 48 * sizeof(float);
  EXPECT_EQ(one[2] - two[2], experts / 2);
  EXPECT_EQ(one[2] - four[2], experts * 3 / 4);
}

// After each update a rank sends its shard of the codes or values to the ranks that hold the same experts. It sends gradients
// once a step.
TEST_F(ExpertPartsTest, SendTheirShareToThoseThatHoldTheSame) {
  for (const int expert : {1, 2, 4}) {
    const int sharing = 4 / expert;
    on_parts({.recipe = "bf16", .layout = {.mesh = Mesh({1, 4, 1, 1}, expert)}}, [&](ExpertParts& parts) {
      parts.initialise();
      parts.step(1);
      const double held = 16.0 / expert * 96 * 48, part = held / sharing;
      const double before = parts.groups().expert_shards().traffic().bytes;
      parts.step(2);
      if (expert > 1) {
        EXPECT_EQ(parts.groups().expert_shards().traffic().bytes - before, (sharing - 1) * part * (2 + 4));
      }
      EXPECT_EQ(parts.groups().expert->traffic().bytes, 0) << "tokens alone are exchanged there";
    });
  }
}

checkpoint::Ranks ranks_of(comm::ThreadStore& store, const ExpertParts& parts, const std::string& name) {
  const parallel::Groups& groups = parts.groups();
  return {.rank = parts.rank(),
          .size = groups.replicas->size() * groups.shards->size() * groups.tensor->size(),
          .name = name,
          .set = [&store](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
          .get = [&store](const std::string& key) { return store.get(key); }};
}

void save(const std::filesystem::path& root, const PartsOptions& options, int steps) {
  comm::ThreadStore store;
  on_parts(options, [&](ExpertParts& parts) {
    checkpoint::Writer writer({.root = root, .mode = checkpoint::WriteMode::now, .ranks = ranks_of(store, parts, "write")});
    parts.initialise();
    for (int step = 1; step <= steps; ++step) parts.step(static_cast<std::uint32_t>(step));
    parts.settle_scales();
    writer.save(steps, parts.stream(), written_entries(parts.store(), parts.scales(), parts.optimizer(), parts.groups()),
                nlohmann::json::object());
  });
}

// Takes one step, saves, loads into other ranks and takes another step there.
void expect_to_resume(const PartsOptions& from, const PartsOptions& to, const SharedGlobals& expected) {
  const testing::TemporaryFolder folder;
  save(folder.path(), from, 1);
  comm::ThreadStore store;
  SharedGlobals seen;
  on_parts(to, [&](ExpertParts& parts) {
    const checkpoint::Reader reader =
        checkpoint::Reader::open(folder.path() / checkpoint::step_name(1), ranks_of(store, parts, "read"));
    reader.load(parts.stream(), read_entries(parts.store(), parts.scales(), &parts.optimizer()));
    parts.units().refresh(parts.scratch());
    parts.step(2, &seen);
  });
  EXPECT_EQ(seen.globals.difference(expected.globals), "") << text(from.layout) << " to " << text(to.layout);
}

TEST_P(OnMesh, ResumesWhatAnotherMeshHasSaved) {
  const PartsOptions alone{.layout = {.mesh = kOne}};
  const auto expected = after_steps(alone, 2);
  const PartsOptions others{.layout = {.mesh = GetParam(), .weights = Weights::resharded, .gradients = Gradients::sharded}};
  const PartsOptions four{.layout = {.mesh = Mesh({1, 4, 1, 1}, 4)}};
  for (const auto& [from, to] : {std::pair(&others, &alone), std::pair(&alone, &others), std::pair(&others, &four)})
    expect_to_resume(*from, *to, *expected);
}

// The tensor axis must not cut through groups of 128 elements, for which these parameters are too small.
TEST_F(ExpertPartsTest, KeepMomentsInFp8LikeOneRankAndResumeThem) {
  PartsOptions alone{.layout = {.mesh = kOne}, .storage = {.moments = DType::f8_e4m3}, .optimizer = {.seed = 3}};
  const auto expected = after_steps(alone, 2);
  for (const Mesh& mesh : {Mesh({1, 4, 1, 1}, 2), Mesh({2, 2, 1, 1}), Mesh({1, 2, 2, 1})}) {
    PartsOptions others = alone;
    others.layout = {.mesh = mesh, .weights = Weights::resharded, .gradients = Gradients::sharded};
    EXPECT_EQ(after_steps(others, 2)->globals.difference(expected->globals), "") << text(others.layout);
    expect_to_resume(others, alone, *expected);
    expect_to_resume(alone, others, *expected);
  }
}

parallel::NameTable names_of(ExpertParts& parts) {
  parallel::NameTable table;
  for (parallel::Parameter& p : parts.store().parameters()) {
    const Shape& shape = p.cut.global();
    table.push_back({.external = p.spec.name, .parameter = &p, .rows = {{0, shape[0]}}, .shape = shape});
  }
  return table;
}

TEST_P(OnMesh, ExportsAndImportsWholeModels) {
  const auto expected = after_steps({.layout = {.mesh = kOne}}, 1);
  const testing::TemporaryFolder folder;
  const PartsOptions options{.layout = {.mesh = GetParam()}};
  on_parts(options, [&](ExpertParts& parts) {
    parts.initialise();
    Assembler assembler(parts.stream(), parts.store(), parts.units(), parts.groups(), parts.rank() == 0);
    const auto whole = [&](const parallel::Parameter& p) {
      const Tensor result = assembler.whole(p, parts.scratch());
      EXPECT_EQ(static_cast<bool>(result), parts.rank() == 0);
      return result;
    };
    const parallel::NameTable names = names_of(parts);
    if (parts.rank() > 0) return checkpoint::join_save_weights(names, whole);
    checkpoint::save_weights(folder.path(), names, {.dtype = DType::f32}, whole);
  });
  SharedGlobals seen;
  on_parts(options, [&](ExpertParts& parts) {
    checkpoint::load_weights(parts.stream(), checkpoint::ModelWeights::open(folder.path()), names_of(parts));
    parts.units().refresh(parts.scratch());
    parts.step(1, &seen);
  });
  EXPECT_EQ(seen.globals.difference(expected->globals), "") << text(options.layout);
}

}  // namespace
}  // namespace octet::train

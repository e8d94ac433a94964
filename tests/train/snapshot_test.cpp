// Checkpoints that are copied beside the next step must have the bits of checkpoints that are written while training stands
// still.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "octet/base/file.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/writer.h"
#include "octet/train/entries.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

using Files = std::map<std::string, std::string>;

Files files_in(const std::filesystem::path& root) {
  Files files;
  for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
    if (file.is_regular_file()) files[std::filesystem::relative(file.path(), root).string()] = read_file(file.path());
  }
  return files;
}

std::vector<std::vector<std::uint8_t>> bytes_of_steady(train::Engine& engine, const std::vector<checkpoint::Entry>& entries) {
  std::vector<std::vector<std::uint8_t>> bytes;
  for (const checkpoint::Entry& entry : entries) {
    if (entry.steady) bytes.push_back(bytes_on(engine, entry.tensor));
  }
  return bytes;
}

constexpr int kSaves = 3;

struct Saved {
  Files standing_still, beside_steps;
};

// After each step every rank saves the state twice: it waits until the first checkpoint is on the disk, and goes on while the
// second is copied. No steady entry may change before Engine::apply() asks.
Saved save_twice(const train::EngineOptions& options, const Layout& layout) {
  const TemporaryFolder folder;
  comm::ThreadStore store;
  const Steps steps{.micro_batches = layout.mesh.data_coordinates(), .learning_rate = 1e-2};
  on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups& groups) {
    const int rank = engine.options().rank;
    const auto writer_options = [&](const std::string& name, checkpoint::WriteMode mode) {
      return checkpoint::WriterOptions{
          .root = folder / name,
          .keep_latest_k = 0,
          .mode = mode,
          .ranks = {.rank = rank,
                    .size = layout.mesh.ranks(),
                    .name = name,
                    .set = [&](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
                    .get = [&](const std::string& key) { return store.get(key); }}};
    };
    checkpoint::Writer still(writer_options("still", checkpoint::WriteMode::now));
    checkpoint::Writer beside(writer_options("beside", checkpoint::WriteMode::behind));
    std::vector<checkpoint::Entry> entries;
    std::vector<std::vector<std::uint8_t>> saved;
    for (int step = 1; step <= kSaves + 1; ++step) {
      engine.begin_step(1);
      const Tokens tokens = micro_batch(options, steps, step, layout.mesh.data_coordinate(rank));
      engine.forward_backward(tokens.batch(), nullptr);
      engine.apply(steps.learning_rate, static_cast<std::uint32_t>(step), {}, [&] {
        beside.wait_for_snapshot();
        EXPECT_TRUE(bytes_of_steady(engine, entries) == saved) << "rank " << rank << ", step " << step << ": changed too early";
      });
      engine.settle();
      if (step > kSaves) break;
      entries = train::written_entries(engine.model().parameters(), engine.model().scales(), engine.optimizer(), groups);
      saved = bytes_of_steady(engine, entries);
      const nlohmann::json meta = {{"step", step}};
      still.save(step, engine.stream(), entries, meta);
      beside.save(step, engine.stream(), entries, meta);
    }
    EXPECT_TRUE(saved.empty() || bytes_of_steady(engine, entries) != saved)
        << "rank " << rank << ": the last step changed nothing";
  });
  return {.standing_still = files_in(folder / "still"), .beside_steps = files_in(folder / "beside")};
}

void expect_same_files(const Saved& saved, int files_of_step) {
  ASSERT_EQ(saved.standing_still.size(), static_cast<std::size_t>(kSaves * files_of_step));
  ASSERT_EQ(saved.beside_steps.size(), saved.standing_still.size());
  for (const auto& [name, bytes] : saved.standing_still) {
    const auto found = saved.beside_steps.find(name);
    ASSERT_NE(found, saved.beside_steps.end()) << name;
    EXPECT_TRUE(found->second == bytes) << name << " has other bytes";
  }
  const auto file = [&](int step) { return saved.beside_steps.at(checkpoint::step_name(step) + "/rank-00000.safetensors"); };
  EXPECT_NE(file(1), file(2)) << "the steps change what is saved";
}

class Snapshot : public MeshTest, public ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Recipes, Snapshot, ::testing::ValuesIn(all_recipes()), [](const auto& param) { return param.param; });

TEST_P(Snapshot, HasTheBitsOfASaveThatStandsStill) {
  const std::vector<Layout> layouts = {
      kAlone,
      {.mesh = Mesh({1, 2, 1, 1})},
      {.mesh = Mesh({1, 4, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
      {.mesh = Mesh({2, 2, 1, 1}), .weights = Weights::resharded, .gradients = Gradients::sharded},
      {.mesh = Mesh({1, 1, 1, 2})},
      {.mesh = Mesh({1, 2, 2, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(text(layout));
    // Only the first replica writes, and the manifest stands beside the ranks' files.
    expect_same_files(save_twice(tensor_options(GetParam()), layout),
                      1 + layout.mesh.ranks() / layout.mesh.size(Axis::replicate));
  }
}

// BF16 values are then the state itself. Each step gathers them, and the copy reads them meanwhile.
TEST_P(Snapshot, HasThoseBitsWithoutMasterWeights) {
  train::EngineOptions options = tensor_options(GetParam());
  options.storage.master_weights = false;
  options.storage.moments = DType::bf16;
  for (const Layout& layout :
       {kAlone, Layout{.mesh = Mesh({1, 2, 1, 1})},
        Layout{.mesh = Mesh({1, 2, 1, 2}), .weights = Weights::resharded, .gradients = Gradients::sharded}}) {
    SCOPED_TRACE(text(layout));
    expect_same_files(save_twice(options, layout), 1 + layout.mesh.ranks());
  }
}

TEST_P(Snapshot, HasThoseBitsWithExperts) {
  for (const Layout& layout :
       {kAlone, Layout{.mesh = Mesh({1, 4, 1, 1}, 2), .weights = Weights::resharded, .gradients = Gradients::sharded}}) {
    SCOPED_TRACE(text(layout));
    train::EngineOptions options = mixture_options(GetParam());
    options.model.router_bias_rate = 0.01;
    expect_same_files(save_twice(options, layout), 1 + layout.mesh.ranks());
  }
}

// The plan counts the bytes of a rank's tensors, which are all of a rank's file behind its header.
TEST_P(Snapshot, TakesWhatThePlanSays) {
  train::EngineOptions options = tensor_options(GetParam());
  for (const Layout& layout : {kAlone, Layout{.mesh = Mesh({1, 2, 1, 2})}, Layout{.mesh = Mesh({2, 2, 1, 1})}}) {
    SCOPED_TRACE(text(layout));
    const Files files = save_twice(options, layout).beside_steps;
    options.layout = layout;
    for (options.rank = 0; options.rank < layout.mesh.ranks(); ++options.rank) {
      const auto found = files.find(concat(checkpoint::step_name(1), "/rank-0000", options.rank, ".safetensors"));
      std::uint64_t header = 0;
      if (found != files.end()) std::memcpy(&header, found->second.data(), sizeof header);
      EXPECT_EQ(train::measure(options, DeviceKind::cpu).snapshot,
                found == files.end() ? 0 : found->second.size() - sizeof header - header)
          << "rank " << options.rank;
    }
  }
}

}  // namespace
}  // namespace octet::testing

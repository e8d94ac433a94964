// The bias of a router: it balances the experts, it is the same on every rank and mesh, and checkpoints and model directories
// keep it.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/steps.h"
#include "octet/checkpoint/writer.h"
#include "octet/train/entries.h"
#include "octet/train/model_files.h"
#include "octet/train/restore.h"
#include "support/folder.h"
#include "train/meshes.h"

namespace octet::testing {
namespace {

class RouterBias : public MeshTest {
 protected:
  static train::EngineOptions biased(const std::string& recipe, double rate) {
    train::EngineOptions options = mixture_options(recipe);
    options.model.router_balance = options.model.router_z = 0;
    options.model.router_bias_rate = rate;
    return options;
  }
  // The biases that this rank holds, by name.
  static ByName<double> biases(train::Engine& engine) {
    ByName<double> result;
    for (const parallel::Parameter& p : engine.model().parameters().parameters()) {
      if (p.spec.tracked && p.held) result[p.spec.name] = values_on(engine, p.value);
    }
    return result;
  }
  static checkpoint::Ranks ranks_of(comm::ThreadStore& store, const train::Engine& engine, const std::string& name) {
    return {.rank = engine.options().rank,
            .size = engine.options().layout.mesh.ranks(),
            .name = name,
            .set = [&store](const std::string& key, std::string_view value, int reads) { store.set(key, value, reads); },
            .get = [&store](const std::string& key) { return store.get(key); }};
  }
};

// The largest load of an expert in its mixture, as a multiple of the mean.
double worst_load(train::Engine& engine) {
  const std::vector<double> loads = engine.expert_loads_of_step();
  const auto experts = static_cast<std::ptrdiff_t>(engine.options().model.experts);
  double worst = 0;
  for (auto at = loads.begin(); at != loads.end(); at += experts) {
    const double sum = std::accumulate(at, at + experts, 0.0);
    worst = std::max(worst, *std::max_element(at, at + experts) * static_cast<double>(experts) / sum);
  }
  return worst;
}

// A step without learning changes nothing but the biases. The weights of the routers favour the experts that the mean token
// likes, so that one of them gets many more tokens than its share.
TEST_F(RouterBias, BalancesARunThatIsNot) {
  for (const auto rate : {std::optional<double>(), std::optional(0.01)}) {
    train::EngineOptions options = biased("bf16", 0);
    options.model.router_bias_rate = rate;
    options.model.init_std = 0.5;
    options.model.experts_per_token = 1;
    const auto engine = make_engine(options);
    double first = 0, last = 0;
    for (int step = 1; step <= 150; ++step) {
      take(*engine, {.micro_batches = 4, .learning_rate = 0});
      last = worst_load(*engine);
      if (step == 1) first = last;
    }
    EXPECT_GT(first, 1.8);
    if (rate) {
      EXPECT_LT(last, 1.3);
    } else {
      EXPECT_EQ(last, first);
    }
  }
}

// In FP64 no rounding moves a choice, so loads and biases are those of one rank.
TEST_F(RouterBias, IsThatOfOneRankOnEveryMesh) {
  const train::EngineOptions options = biased("fp64", 0.125);
  std::vector<Layout> layouts = kMixtures;
  layouts.push_back({.mesh = Mesh({1, 1, 1, 1}, 1, {.count = 2})});
  layouts.push_back({.mesh = Mesh({1, 2, 1, 1}, 2, {.count = 2})});
  std::mutex mutex;
  const auto after = [&](const Layout& layout) {
    ByName<double> seen;
    on_engines(options, layout, [&](train::Engine& engine, const parallel::Groups&) {
      take(engine, {.count = 3, .micro_batches = 4});
      const ByName<double> own = biases(engine);
      const std::lock_guard lock(mutex);
      for (const auto& [name, values] : own) {
        const auto [at, first] = seen.try_emplace(name, values);
        EXPECT_TRUE(first || at->second == values) << text(layout) << ", rank " << engine.options().rank << ": " << name;
      }
    });
    return seen;
  };
  const ByName<double> expected = after(kAlone);
  ASSERT_EQ(expected.size(), 2u);
  for (const auto& [name, values] : expected) {
    EXPECT_NE(values, std::vector<double>(values.size(), 0.0)) << name;
    EXPECT_TRUE(name.ends_with(".block_sparse_moe.gate.e_score_correction_bias")) << name;
  }
  for (const Layout& layout : layouts) EXPECT_TRUE(after(layout) == expected) << text(layout);
}

TEST_F(RouterBias, StaysInAStepThatIsSkipped) {
  const auto engine = make_engine(biased("bf16", 0.25));
  take(*engine, {});
  const ByName<double> before = biases(*engine);
  for (const parallel::Parameter& p : engine->model().parameters().parameters()) {
    if (p.spec.name != "model.norm.weight") continue;
    const std::vector<float> nan(static_cast<std::size_t>(p.elements()), std::numeric_limits<float>::quiet_NaN());
    engine->stream().copy_to_device(p.primary().data, nan.data(), p.primary().bytes());
  }
  engine->refresh();
  take(*engine, {});
  EXPECT_TRUE(biases(*engine) == before);
}

// A run on one mesh saves after two steps, and a run on another mesh loads that and takes a third.
TEST_F(RouterBias, ResumesOnEveryMesh) {
  const train::EngineOptions options = biased("fp64", 0.125);
  const Steps two{.count = 2, .micro_batches = 4};
  const auto third = [](train::Engine& engine, const Layout& layout) {
    const parallel::Mesh& mesh = layout.mesh;
    engine.begin_step(4 / mesh.data_coordinates());
    for (int micro = mesh.data_coordinate(engine.options().rank); micro < 4; micro += mesh.data_coordinates()) {
      engine.forward_backward(micro_batch(engine.options(), {.micro_batches = 4}, 3, micro).batch(), nullptr);
    }
    engine.apply(1e-3, 3);
  };
  ByName<double> expected, after_two;
  on_engines(options, kAlone, [&](train::Engine& engine, const parallel::Groups&) {
    take(engine, two);
    after_two = biases(engine);
    third(engine, kAlone);
    expected = biases(engine);
  });
  EXPECT_FALSE(after_two == expected);
  for (const auto& [from, to] :
       {std::pair(kAlone, kMixtures[2]), std::pair(kMixtures[6], kAlone), std::pair(kMixtures[8], kMixtures[4])}) {
    SCOPED_TRACE(concat(text(from), " to ", text(to)));
    const TemporaryFolder folder;
    comm::ThreadStore store;
    on_engines(options, from, [&](train::Engine& engine, const parallel::Groups& groups) {
      checkpoint::Writer writer(
          {.root = folder.path(), .mode = checkpoint::WriteMode::now, .ranks = ranks_of(store, engine, "write")});
      take(engine, two);
      engine.settle();
      models::Decoder& model = engine.model();
      writer.save(2, engine.stream(), train::written_entries(model.parameters(), model.scales(), engine.optimizer(), groups),
                  nlohmann::json::object());
    });
    on_engines(options, to, [&, read = std::make_shared<comm::ThreadStore>()](train::Engine& engine, const parallel::Groups&) {
      const checkpoint::Reader reader =
          checkpoint::Reader::open(folder.path() / checkpoint::step_name(2), ranks_of(*read, engine, "read"));
      reader.load(engine.stream(), engine.entries());
      engine.refresh();
      EXPECT_TRUE(biases(engine) == after_two);
      third(engine, to);
      EXPECT_TRUE(biases(engine) == expected);
    });
  }
}

// The bias is written in F32, although the weights are written in BF16, and a model that is read makes the same choices.
TEST_F(RouterBias, IsInModelDirectories) {
  train::EngineOptions options = biased("bf16", 0.01);
  options.whole_logits = true;
  options.storage.master_weights = false;  // so that a directory has all bits
  options.document_mask = false;
  const auto engine = make_engine(options);
  take(*engine, {.count = 3, .learning_rate = 1e-2});
  const TemporaryFolder folder;
  ::testing::internal::CaptureStderr();
  train::save_model(*engine, folder / "model");
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("e_score_correction_bias"), std::string::npos) << warning;
  const auto read = train::open_model(folder / "model", DeviceKind::cpu, options.seq_len);
  EXPECT_EQ(read->model().config().router_bias_rate, options.model.router_bias_rate);
  EXPECT_TRUE(biases(*read) == biases(*engine));
  const Tokens tokens = random_tokens(options.seq_len, options.model.vocab, 5);
  EXPECT_TRUE(values_on(*read, read->logits(tokens.tokens)) == values_on(*engine, engine->logits(tokens.tokens)));
}

// A directory of another program has no biases, and a run that asks for them begins at zero.
TEST_F(RouterBias, BeginsAtZeroBesideADirectoryWithoutIt) {
  train::EngineOptions options = biased("bf16", 0.01);
  options.model.router_bias_rate = std::nullopt;
  const TemporaryFolder folder;
  train::save_model(*make_engine(options), folder / "model");
  options.model.router_bias_rate = 0.01;
  const auto engine = make_engine(options, 8);
  train::load_model(*engine, folder / "model");
  for (const auto& [name, values] : biases(*engine)) EXPECT_EQ(values, std::vector<double>(values.size(), 0.0)) << name;
}

// Adapters are trained beside a model whose biases stay.
TEST_F(RouterBias, StaysBesideAdapters) {
  const auto engine = make_engine(adapted(biased("bf16", 0.25)));
  take(*engine, {.count = 2});
  for (const auto& [name, values] : biases(*engine)) EXPECT_EQ(values, std::vector<double>(values.size(), 0.0)) << name;
}

}  // namespace
}  // namespace octet::testing

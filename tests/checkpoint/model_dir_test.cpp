#include "octet/checkpoint/model_dir.h"

#include <fstream>

#include "checkpoint/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/mismatch.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using parallel::NameTable;
using parallel::Parameter;

// A model with a fused parameter of two external matrices, and a vector. All values are 0 at first.
struct SmallModel {
  explicit SmallModel(DType dtype, std::int64_t first = 0, std::int64_t last = 40) {
    fused.spec = {.name = "q", .shape = {10, 4}};
    fused.cut = parallel::TensorCut({10, 4}, {}, {});
    fused.first_element = first;
    fused.value_shard = memory.tensor(dtype, first == 0 && last == 40 ? Shape{10, 4} : Shape{last - first});
    norm.spec = {.name = "norm", .shape = {4}};
    norm.cut = parallel::TensorCut({4}, {}, {});
    norm.value_shard = memory.tensor(dtype, {4});
    table = {
        {"q.weight", &fused, {{0, 6}}, {6, 4}}, {"k.weight", &fused, {{6, 10}}, {4, 4}}, {"norm.weight", &norm, {{0, 4}}, {4}}};
  }
  void count() {
    float next = 1.0f;
    for (const Tensor& tensor : {fused.value_shard, norm.value_shard}) {
      visit_float(tensor.dtype, [&]<class T>() {
        for (std::int64_t i = 0; i < tensor.elements(); ++i, next += 1.0f) tensor.as<T>()[i] = static_cast<T>(next * 0.37f);
      });
    }
  }

  Memory memory;
  Parameter fused, norm;
  NameTable table;
};

// Writes tensors that fit SmallModel. Element i of each is first + i.
template <class T>
void write_model(const fs::path& path, const std::vector<std::string>& names, DType dtype, T first) {
  Memory memory;
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) {
    const Tensor tensor = memory.tensor(dtype, name == "q.weight" ? Shape{6, 4} : name == "k.weight" ? Shape{4, 4} : Shape{4});
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      static_cast<T*>(tensor.data)[i] = static_cast<T>(static_cast<float>(first) + static_cast<float>(i));
    }
    tensors.push_back({name, tensor});
  }
  write_safetensors(path, tensors, {{"format", "pt"}});
}

float last_of_norm(const fs::path& dir) {
  const ModelWeights weights = ModelWeights::open(dir);
  float value = 0;
  WeightReader(weights, "norm.weight").read(3, 1, DType::f32, &value);
  return value;
}

const std::vector<std::string> kNames = {"q.weight", "k.weight", "norm.weight"};

TEST(ModelDir, LoadsEveryFloatIntoEveryPrimary) {
  const TemporaryFolder folder;
  const auto check = [&](DType dtype) {
    SmallModel model(dtype);
    load_weights(model.memory.stream(), ModelWeights::open(folder.path()), model.table);
    visit_float(dtype, [&]<class T>() {
      for (int i = 0; i < 24; ++i) EXPECT_EQ(static_cast<float>(model.fused.value_shard.as<T>()[i]), static_cast<float>(i + 1));
      for (int i = 0; i < 16; ++i)
        EXPECT_EQ(static_cast<float>(model.fused.value_shard.as<T>()[24 + i]), static_cast<float>(i + 1));
      for (int i = 0; i < 4; ++i) EXPECT_EQ(static_cast<float>(model.norm.value_shard.as<T>()[i]), static_cast<float>(i + 1));
    });
  };
  const auto check_all = [&] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) check(dtype);
  };
  write_model<double>(folder / "model.safetensors", kNames, DType::f64, 1);
  check_all();
  write_model<float>(folder / "model.safetensors", kNames, DType::f32, 1);
  check_all();
  write_model<BFloat16>(folder / "model.safetensors", kNames, DType::bf16, BFloat16(1.0f));
  check_all();
  write_model<Float16>(folder / "model.safetensors", kNames, DType::f16, Float16(1.0f));
  check_all();
}

TEST(ModelDir, RoundsToNearestEven) {
  const TemporaryFolder folder;
  Memory memory;
  Parameter parameter;
  parameter.spec = {.name = "w", .shape = {4}};
  parameter.cut = parallel::TensorCut({4}, {}, {});
  parameter.value_shard = memory.tensor(DType::bf16, {4});
  const Tensor source = memory.tensor(DType::f32, {4});
  const float values[] = {1.00390625f, 1.01171875f, 3.4e38f, -0.0f};  // two ties, an overflow and a signed zero
  std::memcpy(source.data, values, sizeof values);
  write_safetensors(folder / "model.safetensors", {{"w", source}});
  load_weights(memory.stream(), ModelWeights::open(folder.path()), {{"w", &parameter, {{0, 4}}, {4}}});
  const std::uint16_t expected[] = {0x3F80, 0x3F82, 0x7F80, 0x8000};
  EXPECT_EQ(std::memcmp(parameter.value_shard.data, expected, sizeof expected), 0);
}

TEST(ModelDir, ARankReadsItsOwnElements) {
  const TemporaryFolder folder;
  write_model<float>(folder / "model.safetensors", kNames, DType::f32, 1);
  for (const auto& [first, last] : std::vector<std::pair<int, int>>{{0, 13}, {13, 27}, {27, 40}, {20, 24}, {25, 25}}) {
    SmallModel model(DType::f32, first, last);
    load_weights(model.memory.stream(), ModelWeights::open(folder.path()), model.table);
    for (int i = first; i < last; ++i) {
      EXPECT_EQ(model.fused.value_shard.as<float>()[i - first], static_cast<float>(i < 24 ? i + 1 : i - 23)) << i;
    }
  }
}

// Ranks hold flat shards of the parameters, some of which are empty. Each rank must load its part of the file, and the gathered
// shards must give the same file again.
TEST(ModelDir, FlatShardsLoadAndSave) {
  const TemporaryFolder folder;
  SmallModel whole(DType::f32);
  whole.count();
  save_weights(whole.memory.stream(), folder / "whole", whole.table, {.dtype = DType::f32});
  const ModelWeights weights = ModelWeights::open(folder / "whole");
  for (const int ranks : {2, 3, 5, 9}) {
    std::vector<std::unique_ptr<SmallModel>> shards;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t step = ranks == 9 ? 6 : (40 + ranks - 1) / ranks;  // with nine ranks, two hold nothing
      const std::int64_t first = std::min<std::int64_t>(40, rank * step), last = std::min<std::int64_t>(40, first + step);
      auto& shard = *shards.emplace_back(std::make_unique<SmallModel>(DType::f32, first, last));
      // The vector is sharded too. Its row range is a range of elements.
      shard.norm.first_element = std::min(rank, 4);
      shard.norm.value_shard = shard.memory.tensor(DType::f32, {rank >= 4 ? 0 : rank == ranks - 1 ? 4 - rank : 1});
      load_weights(shard.memory.stream(), weights, shard.table);
      const auto expect_part = [&](const Parameter& part, const Parameter& of) {
        EXPECT_EQ(std::memcmp(part.value_shard.data, of.value_shard.as<float>() + part.first_element, part.value_shard.bytes()), 0)
            << part.spec.name << " of rank " << rank << " of " << ranks;
      };
      expect_part(shard.fused, whole.fused);
      expect_part(shard.norm, whole.norm);
    }

    Memory memory;
    std::vector<std::string> asked;
    const WholeParameter gather = [&](const Parameter& parameter) {
      asked.push_back(parameter.spec.name);
      const Tensor all = memory.tensor(DType::f32, {parameter.elements()});
      for (const auto& shard : shards) {
        const Parameter& part = parameter.spec.name == "q" ? shard->fused : shard->norm;
        std::memcpy(all.as<float>() + part.first_element, part.value_shard.data, part.value_shard.bytes());
      }
      return all;
    };
    for (const std::int64_t shard_bytes : {std::int64_t{1}, kMaxShardBytes}) {
      asked.clear();
      save_weights(folder / "gathered", shards[0]->table, {.dtype = DType::f32, .max_shard_bytes = shard_bytes}, gather);
      EXPECT_EQ(asked, (std::vector<std::string>{"q", "norm"}));
    }
    EXPECT_EQ(slurp(folder / "gathered" / "model.safetensors"), slurp(folder / "whole" / "model.safetensors"));
    asked.clear();
    join_save_weights(shards[1]->table, gather);
    EXPECT_EQ(asked, (std::vector<std::string>{"q", "norm"}));
  }
}

// The rows of one external tensor lie apart in the parameter. Files that store query, key and value head by head have such
// tensors.
TEST(ModelDir, RunsOfRowsLoadAndSave) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<parallel::RowRun> rows = {{0, 2}, {4, 5}, {6, 7}, {2, 4}, {5, 6}, {7, 8}};
  const std::vector<int> order = {0, 1, 4, 6, 2, 3, 5, 7};  // of the parameter's rows, as they stand in the file
  const Tensor source = memory.tensor(DType::f32, {8, 3}), bias = memory.tensor(DType::f32, {8});
  for (int i = 0; i < 24; ++i) source.as<float>()[i] = static_cast<float>(i + 1);
  for (int i = 0; i < 8; ++i) bias.as<float>()[i] = static_cast<float>(-i - 1);
  write_safetensors(folder / "model.safetensors", {{"b", bias}, {"w", source}}, {{"format", "pt"}});
  const ModelWeights weights = ModelWeights::open(folder.path());
  for (const auto& [first, last] : std::vector<std::pair<int, int>>{{0, 24}, {0, 7}, {7, 20}, {20, 24}}) {
    Parameter w, b;
    w.spec = {.name = "w", .shape = {8, 3}};
    w.cut = parallel::TensorCut({8, 3}, {}, {});
    w.first_element = first;
    w.value_shard = memory.tensor(DType::f32, last - first == 24 ? Shape{8, 3} : Shape{last - first});
    b.spec = {.name = "b", .shape = {8}};
    b.cut = parallel::TensorCut({8}, {}, {});
    b.value_shard = memory.tensor(DType::f32, {8});
    const NameTable table = {{"b", &b, rows, {8}}, {"w", &w, rows, {8, 3}}};
    load_weights(memory.stream(), weights, table);
    for (int at = 0; at < 8; ++at) {
      const int row = order[static_cast<std::size_t>(at)];
      EXPECT_EQ(b.value_shard.as<float>()[row], bias.as<float>()[at]) << row;
      for (int element = std::max(first, row * 3); element < std::min(last, row * 3 + 3); ++element) {
        EXPECT_EQ(w.value_shard.as<float>()[element - first], source.as<float>()[at * 3 + element - row * 3]) << element;
      }
    }
    if (last - first < 24) continue;
    save_weights(memory.stream(), folder / "saved", table, {.dtype = DType::f32});
    EXPECT_EQ(slurp(folder / "saved" / "model.safetensors"), slurp(folder / "model.safetensors"));
  }
  Parameter w;
  w.spec = {.name = "w", .shape = {8, 3}};
  w.cut = parallel::TensorCut({8, 3}, {}, {});
  w.value_shard = memory.tensor(DType::f32, {8, 3});
  const auto refusal = [&](std::vector<parallel::RowRun> runs) {
    return error_of(ExitCode::internal, [&] {
      load_weights(memory.stream(), weights, {{"w", &w, std::move(runs), {8, 3}}}, {"b"});
    });
  };
  EXPECT_TRUE(contains(refusal({{0, 4}, {4, 9}}), "w: rows [4, 9) of [8, 3]"));
  EXPECT_TRUE(contains(refusal({{0, 4}, {4, 7}}), "w: rows of 21 elements are not [8, 3]"));
}

// The file is written in pieces, but the ranks gather each parameter only once.
TEST(ModelDir, AsksForAParameterOnceHoweverManyPiecesItIsWrittenIn) {
  constexpr std::int64_t kElements = (std::int64_t{5} << 20) / 2;
  const TemporaryFolder folder;
  Memory memory;
  Parameter large, small;
  large.spec = {.name = "large", .shape = {kElements}};
  large.cut = parallel::TensorCut({kElements}, {}, {});
  large.value_shard = memory.tensor(DType::f32, {kElements});
  for (std::int64_t i = 0; i < kElements; ++i) large.value_shard.as<float>()[i] = static_cast<float>(i);
  small.spec = {.name = "small", .shape = {2}};
  small.cut = parallel::TensorCut({2}, {}, {});
  small.value_shard = memory.tensor(DType::f32, {2});
  const NameTable table = {{"large", &large, {{0, kElements}}, {kElements}}, {"small", &small, {{0, 2}}, {2}}};
  std::vector<std::string> asked;
  save_weights(folder.path(), table, {.dtype = DType::f32}, [&](const Parameter& parameter) {
    asked.push_back(parameter.spec.name);
    return parameter.value_shard;
  });
  EXPECT_EQ(asked, (std::vector<std::string>{"large", "small"}));
  const ModelWeights weights = ModelWeights::open(folder.path());
  std::vector<float> read(static_cast<std::size_t>(kElements));
  WeightReader(weights, "large").read(0, kElements, DType::f32, read.data());
  EXPECT_EQ(std::memcmp(read.data(), large.value_shard.data, large.value_shard.bytes()), 0);
}

TEST(ModelDir, AFailureToWriteLeavesNobodyWaiting) {
  const TemporaryFolder folder;
  folder.write("file", "");
  SmallModel model(DType::f32);
  std::vector<std::string> asked;
  bool lost = false;
  const WholeParameter whole = [&](const Parameter& parameter) {
    asked.push_back(parameter.spec.name);
    demand(!lost, ExitCode::peer, "rank 1 is lost");
    return parameter.value_shard;
  };
  error_of(ExitCode::internal, [&] { save_weights(folder / "file", model.table, {.dtype = DType::f32}, whole); });
  EXPECT_EQ(asked, (std::vector<std::string>{"q", "norm"}));
  lost = true;
  asked.clear();
  error_of(ExitCode::peer, [&] { save_weights(folder / "model", model.table, {.dtype = DType::f32}, whole); });
  EXPECT_EQ(asked, std::vector<std::string>{"q"});
  EXPECT_TRUE(names_in(folder / "model").empty());
  std::swap(model.table[1], model.table[2]);
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { join_save_weights(model.table, whole); }), "apart from the rest"));
}

TEST(ModelDir, SaysAllThatIsWrongAtOnce) {
  const TemporaryFolder folder;
  Memory memory;
  write_safetensors(folder / "model.safetensors", {{"q.weights", memory.tensor(DType::f32, {6, 4})},
                                                   {"k.weight", memory.tensor(DType::f32, {4, 5})},
                                                   {"norm.weight", memory.tensor(DType::i32, {4})},
                                                   {"layers.0.rotary_emb.inv_freq", memory.tensor(DType::f32, {8})},
                                                   {"lm_head.weight", memory.tensor(DType::f32, {1})},
                                                   {"surplus", memory.tensor(DType::f32, {1})}});
  SmallModel model(DType::f32);
  const ModelWeights weights = ModelWeights::open(folder.path());
  const std::string message =
      error_of(ExitCode::data, [&] { load_weights(model.memory.stream(), weights, model.table, {"lm_head.*"}); });
  EXPECT_EQ(
      message,
      folder.path().string() +
          ": 1 missing tensor: \"q.weight\" (did you mean q.weights?); 2 unexpected tensors: \"q.weights\", \"surplus\"; "
          "2 unfit tensors: \"k.weight\" is [4, 5], expected [4, 4], \"norm.weight\" is I32, expected F32, BF16, F16 or F64");
  const std::string untied = error_of(ExitCode::data, [&] { load_weights(model.memory.stream(), weights, model.table); });
  EXPECT_TRUE(contains(untied, "3 unexpected tensors: \"lm_head.weight\", "));
}

// Each list ends when it is long enough, and at least two items of each are named.
TEST(ModelDir, AnswersInOneLineThatAPersonCanRead) {
  Mismatch mismatch;
  for (int layer = 0; layer < 32; ++layer) {
    const std::string name = concat("base_model.model.model.layers.", layer, ".self_attn.q_proj.lora_A.weight");
    mismatch.different.push_back(concat(name, " is F32 [8, 64], expected [8, 128]"));
    mismatch.unexpected.push_back(name);
  }
  const std::string said = error_of(ExitCode::data, [&] { mismatch.raise("adapter"); });
  EXPECT_LE(said.size(), 400u) << said;
  EXPECT_TRUE(contains(said, "layers.0.self_attn.q_proj.lora_A.weight\", ")) << said;
  EXPECT_TRUE(contains(said, " and 30 more; 32 unfit tensors: base_model.model.model.layers.0.")) << said;
  EXPECT_TRUE(said.ends_with(" expected [8, 128] and 30 more")) << said;
  mismatch.unexpected.clear();
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { mismatch.raise("adapter"); }), " and 29 more"));
}

TEST(ModelDir, AnswersWithEachNameOnce) {
  Mismatch mismatch;
  mismatch.missing = {"layers.0.mlp.down_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.q_proj.weight"};
  mismatch.unexpected = {"layers.0.self_attn.qproj.weight"};
  EXPECT_EQ(error_of(ExitCode::data, [&] { mismatch.raise("here"); }),
            "here: 3 missing tensors: \"layers.0.mlp.down_proj.weight\", \"layers.0.self_attn.k_proj.weight\", "
            "\"layers.0.self_attn.q_proj.weight\" (did you mean layers.0.self_attn.qproj.weight?); "
            "1 unexpected tensor: \"layers.0.self_attn.qproj.weight\"");
}

TEST(ModelDir, RefusesIndexesThatLie) {
  const TemporaryFolder folder;
  const auto with_map = [&](const std::string& weight_map) {
    folder.write("model.safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}");
    return error_of(ExitCode::data, [&] { ModelWeights::open(folder.path()); });
  };
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { ModelWeights::open(folder.path()); }), "neither model.safetensors nor"));
  EXPECT_FALSE(has_weights(folder.path()));
  write_model<float>(folder / "one.safetensors", {"q.weight", "k.weight"}, DType::f32, 1);
  write_model<float>(folder / "two.safetensors", {"norm.weight", "k.weight"}, DType::f32, 1);
  folder.write("three.safetensors", "broken");
  const std::string index = (folder / "model.safetensors.index.json").string();
  EXPECT_TRUE(
      contains(with_map(R"({"q.weight":"../one.safetensors"})"), "\"../one.safetensors\" is not a file of this directory"));
  EXPECT_TRUE(contains(with_map(R"({"q.weight":"/etc/passwd"})"), "\"/etc/passwd\" is not a file"));
  EXPECT_TRUE(contains(with_map(R"({"q.weight":".."})"), "\"..\" is not a file"));
  EXPECT_TRUE(contains(with_map(R"({"q.weight":7})"), "its file is not a string"));
  EXPECT_TRUE(contains(with_map(R"({"q.weight":"one.safetensors","q.weight":"two.safetensors"})"), "\"q.weight\" occurs twice"));
  EXPECT_TRUE(contains(with_map(R"(["a"])"), index + ": no weight_map"));
  EXPECT_TRUE(contains(with_map("{"), index + ": line 1, column 44: not valid JSON"));
  EXPECT_TRUE(
      contains(with_map(R"({"q.weight":"three.safetensors"})"), "three.safetensors: 6 bytes are too few for a safetensors file"));
  EXPECT_TRUE(has_weights(folder.path()));
}

TEST(ModelDir, SaysAllThatIsWrongWithAnIndexAtOnce) {
  const TemporaryFolder folder;
  write_model<float>(folder / "one.safetensors", {"q.weights", "k.weight", "o.weight"}, DType::f32, 1);
  write_model<float>(folder / "two.safetensors", {"norm.weight", "o.weight"}, DType::f32, 1);
  write_model<float>(folder / "model-3.safetensors", {"up.weight"}, DType::f32, 1);
  folder.write("model.safetensors.index.json", R"({"weight_map": {
      "q.weight": "one.safetensors", "k.weight": "two.safetensors", "o.weight": "two.safetensors", "norm.weight": "two.safetensors",
      "up.weight": "model-03.safetensors", "down.weight": "model-03.safetensors", "far.from.it": "far.from.it"}})");
  EXPECT_EQ(error_of(ExitCode::data, [&] { ModelWeights::open(folder.path()); }),
            (folder / "model.safetensors.index.json").string() +
                ": 2 missing files: \"far.from.it\", \"model-03.safetensors\" (did you mean model-3.safetensors?); "
                "1 missing tensor: \"q.weight\" in one.safetensors (did you mean q.weights?); "
                "1 unexpected tensor: \"q.weights\" in one.safetensors; "
                "2 unfit tensors: \"k.weight\" is in one.safetensors, the index says two.safetensors, "
                "\"o.weight\" is in one.safetensors, the index says two.safetensors");
}

// Returns the number of bytes that this process has read so far, or 0 if the system does not count them.
std::uint64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  return counters >> name >> value && name == "rchar:" ? value : 0;
}

// Each of eight ranks reads its eighth of a file of 64 MiB, whether it holds a range of elements or a range of columns.
TEST(ModelDir, OfTheFilesARankReadsItsOwnBytes) {
  if (bytes_read() == 0) GTEST_SKIP() << "/proc/self/io does not count what is read";
  const TemporaryFolder folder;
  const Shape shape{4096, 4096};
  const std::int64_t count = shape.elements(), whole = count * 4;
  Memory memory;
  {
    const Tensor w = memory.tensor(DType::f32, shape);
    for (std::int64_t i = 0; i < count; ++i) w.as<float>()[i] = static_cast<float>(i);
    write_safetensors(folder / "model.safetensors", {{"w", w}});
  }
  for (const parallel::Cut along : {parallel::Cut::none, parallel::Cut::rows, parallel::Cut::columns}) {
    Parameter parameter;
    parameter.spec = {.name = "w", .shape = shape};
    const bool flat = along == parallel::Cut::none;
    parameter.cut = parallel::TensorCut(shape, {.along = along}, flat ? parallel::TensorPlace{} : parallel::TensorPlace{3, 8});
    parameter.first_element = flat ? 3 * count / 8 : 0;
    parameter.value_shard = memory.tensor(DType::bf16, {count / 8});
    const std::uint64_t before = bytes_read();
    load_weights(memory.stream(), ModelWeights::open(folder.path()), {{"w", &parameter, {{0, 4096}}, shape}});
    const auto read = static_cast<std::int64_t>(bytes_read() - before);
    EXPECT_GE(read, whole / 8);
    EXPECT_LE(read, whole / 8 + 4096) << "the header and the like";
    const std::int64_t last = along == parallel::Cut::columns ? 4095 * 4096 + 2047 : 4 * count / 8 - 1;
    EXPECT_EQ(parameter.value_shard.as<BFloat16>()[count / 8 - 1], BFloat16(static_cast<float>(last)));
  }
}

TEST(ModelDir, WhatIsSavedIsLoadedFromAnyNumberOfShards) {
  for (const std::int64_t shard_bytes : {std::int64_t{1}, std::int64_t{100}, std::int64_t{170}, kMaxShardBytes}) {
    const TemporaryFolder folder;
    SmallModel model(DType::f32), other(DType::f32);
    model.count();
    save_weights(model.memory.stream(), folder / "model", model.table, {.dtype = DType::f32, .max_shard_bytes = shard_bytes});
    const ModelWeights weights = ModelWeights::open(folder / "model");
    EXPECT_EQ(weights.names(), (std::vector<std::string>{"k.weight", "norm.weight", "q.weight"}));
    load_weights(other.memory.stream(), weights, other.table);
    EXPECT_EQ(std::memcmp(model.fused.value_shard.data, other.fused.value_shard.data, 160), 0);
    EXPECT_EQ(std::memcmp(model.norm.value_shard.data, other.norm.value_shard.data, 16), 0);
  }
}

TEST(ModelDir, ShardsAreCutAndNamedAsTransformersDoes) {
  const TemporaryFolder folder;
  SmallModel model(DType::f32);
  model.count();
  save_weights(model.memory.stream(), folder.path(), model.table, {.dtype = DType::bf16, .max_shard_bytes = 80});
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                      "model.safetensors.index.json"}));
  const Json index = json_of(slurp(folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 88);
  EXPECT_EQ(index["weight_map"], (Json{{"q.weight", "model-00001-of-00002.safetensors"},
                                       {"k.weight", "model-00001-of-00002.safetensors"},
                                       {"norm.weight", "model-00002-of-00002.safetensors"}}));
  const auto shard = SafetensorsFile::open(folder / "model-00001-of-00002.safetensors");
  EXPECT_EQ(shard.metadata(), (Metadata{{"format", "pt"}}));
  EXPECT_EQ(shard.get("k.weight").as<BFloat16>()[0], BFloat16(25 * 0.37f));

  // Saving with another sharding removes the files of the previous one.
  save_weights(model.memory.stream(), folder.path(), model.table, {.dtype = DType::f16});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(last_of_norm(folder.path()), static_cast<float>(Float16(44 * 0.37f)));
  save_weights(model.memory.stream(), folder.path(), model.table, {.dtype = DType::f32, .max_shard_bytes = 1});
  EXPECT_EQ(names_in(folder.path()).size(), 4u);
  EXPECT_EQ(last_of_norm(folder.path()), 44 * 0.37f);
}

TEST(ModelDir, UnknownNamesSuggestKnownOnes) {
  const TemporaryFolder folder;
  write_model<float>(folder / "model.safetensors", kNames, DType::f32, 1);
  const ModelWeights weights = ModelWeights::open(folder.path());
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { WeightReader(weights, "q.wieght"); }),
                       "no tensor \"q.wieght\" (did you mean q.weight?)"));
}

}  // namespace
}  // namespace octet::checkpoint

#include "octet/checkpoint/ranks.h"

#include "checkpoint/many_ranks.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/writer.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::errors_of_ranks;
using testing::run_ranks;

const std::vector<Shape> kShapes = {{97}, {16, 24}, {7, 5, 3}, {2, 3, 4, 5}, {1, 64}, {0, 8}, {2}};

std::vector<Entry> entries_of(Memory& memory, Cut cut, int rank, int size, std::int32_t first, bool filled) {
  std::vector<Entry> entries;
  for (std::size_t k = 0; k < kShapes.size(); ++k) {
    entries.push_back(entry_of(memory, concat("tensor", k), kShapes[k], slice_of(kShapes[k], cut, rank, size), first, filled));
  }
  // Rank 0 writes tensors that all ranks hold as a whole.
  const Slice whole_or_none = filled && rank > 0 ? Slice::flat({3}, 0, 0) : Slice::whole({3});
  entries.push_back(entry_of(memory, "updates", {3}, whole_or_none, first, filled));
  return entries;
}

void no_warning(std::string_view line) { ADD_FAILURE() << line; }

TEST(Ranks, GatherAndBroadcast) {
  LosableStore store;
  run_ranks(4, [&](int rank) {
    const Ranks ranks = ranks_of(store, rank, 4);
    const std::vector<std::string> values = gather(ranks, "values", std::string(static_cast<std::size_t>(rank), 'x'));
    EXPECT_EQ(values, rank == 0 ? (std::vector<std::string>{"", "x", "xx", "xxx"}) : std::vector<std::string>{});
    EXPECT_EQ(broadcast(ranks, "values", concat("of ", rank)), "of 0");
    EXPECT_EQ(common_failure(ranks, "failure", rank == 2 ? "no disk" : ""), "rank 2: no disk");
    EXPECT_EQ(common_failure(ranks, "success", ""), "");
  });
  EXPECT_EQ(gather({}, "values", "own"), std::vector<std::string>{"own"});
  EXPECT_EQ(broadcast({}, "values", "own"), "own");
  EXPECT_EQ(failure_of({"text"}), "text");
  EXPECT_EQ(failure_of({"", "a", "b"}), "rank 1: a (one more rank failed as well)");
  EXPECT_EQ(failure_of({"a", "b", "", "c"}), "rank 0: a (2 more ranks failed as well)");
}

class RanksInBothModes : public ::testing::TestWithParam<WriteMode> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RanksInBothModes, ::testing::Values(WriteMode::behind, WriteMode::now),
                         [](const auto& info) { return info.param == WriteMode::behind ? "behind" : "now"; });

TEST_P(RanksInBothModes, AnyMeshReadsWhatAnyMeshWrote) {
  const std::vector<int> sizes = {1, 2, 3, 4, 8};
  const std::vector<Cut> cuts = {Cut::flat, Cut::boxes, Cut::sparse};
  std::size_t turn = 0;
  for (const int from : sizes) {
    for (const Cut cut : cuts) {
      const TemporaryFolder folder;
      LosableStore store;
      run_ranks(from, [&](int rank) {
        Memory memory;
        Writer writer({.root = folder.path(), .mode = GetParam(), .ranks = ranks_of(store, rank, from)});
        for (const int step : {1, 2}) {
          const std::vector<Entry> entries = entries_of(memory, cut, rank, from, 1000 * step, true);
          writer.save(step, memory.stream(), entries, {{"rank", rank}, {"step", step}});
          for (const Entry& entry : entries) std::fill_n(entry.tensor.as<std::int32_t>(), entry.tensor.elements(), -1);
        }
        writer.wait();
        EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000001", "step-00000002"}));
      });
      EXPECT_EQ(store.keys(), 0u) << "what ranks tell each other stays in the store";
      for (const int to : sizes) {
        const Cut other = cuts[turn++ % cuts.size()];
        LosableStore readers;
        run_ranks(to, [&](int rank) {
          const auto reader = Reader::open_latest(folder.path(), no_warning, ranks_of(readers, rank, to));
          EXPECT_EQ(reader->step(), 2);
          EXPECT_EQ(reader->meta(), (Json{{"rank", 0}, {"step", 2}}));
          Memory memory;
          const std::vector<Entry> entries = entries_of(memory, other, rank, to, 0, false);
          reader->load(memory.stream(), entries);
          for (const Entry& entry : entries) {
            const Entry expected = entry_of(memory, entry.name, entry.global, entry.slice, 2000, true);
            EXPECT_EQ(std::memcmp(entry.tensor.data, expected.tensor.data, entry.tensor.bytes()), 0)
                << entry.name << " " << entry.slice.text() << ", from " << from << " to " << to;
          }
        });
      }
    }
  }
}

TEST_P(RanksInBothModes, WhoHoldsNothingWritesNoFile) {
  const TemporaryFolder folder;
  LosableStore store;
  run_ranks(4, [&](int rank) {
    Memory memory;
    Writer writer({.root = folder.path(), .mode = GetParam(), .ranks = ranks_of(store, rank, 4)});
    std::vector<Entry> entries;
    if (rank == 2) entries.push_back(Entry::whole("a", memory.counting({5})));
    if (rank == 3) entries.push_back(entry_of(memory, "a", {5}, Slice::flat({5}, 5, 5), 0, true));
    writer.save(7, memory.stream(), entries, Json::object());
  });
  EXPECT_EQ(names_in(folder / "step-00000007"), (std::vector<std::string>{"manifest.json", "rank-00002.safetensors"}));
  EXPECT_EQ(Reader::open(folder / "step-00000007").manifest().tensors.at("a").slices.size(), 1u);
}

TEST_P(RanksInBothModes, KeepTheLatestAndReplace) {
  const TemporaryFolder folder;
  LosableStore store;
  run_ranks(3, [&](int rank) {
    Memory memory;
    Writer writer({.root = folder.path(), .keep_latest_k = 2, .mode = GetParam(), .ranks = ranks_of(store, rank, 3)});
    const auto save = [&](std::int64_t step, int value) {
      writer.save(step, memory.stream(),
                  std::vector<Entry>{entry_of(memory, "a", {10}, slice_of({10}, Cut::flat, rank, 3), value, true)},
                  {{"value", value}});
    };
    for (const int step : {1, 2, 3, 10, 11}) save(step, step);
    save(11, 12);
    writer.wait();
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000010", "step-00000011"}));
    EXPECT_EQ(Reader::open(folder / "step-00000011").meta(), (Json{{"value", 12}}));
  });
}

// --- reading ----------------------------------------------------------------------------------------------------------------

class RankReading : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;
  void SetUp() override {
    LosableStore store;
    run_ranks(kRanks, [&](int rank) {
      Memory memory;
      Writer writer({.root = folder_.path(), .mode = WriteMode::now, .ranks = ranks_of(store, rank, kRanks)});
      for (const int step : {1, 2}) writer.save(step, memory.stream(), std::vector<Entry>{entry(memory, rank)}, Json::object());
    });
  }
  static Entry entry(Memory& memory, int rank) {
    return entry_of(memory, "a", {400}, slice_of({400}, Cut::flat, rank, kRanks), 0, true);
  }
  fs::path file(int step, int rank) const { return folder_ / step_name(step) / concat("rank-0000", rank, ".safetensors"); }

  TemporaryFolder folder_;
};

TEST_F(RankReading, WhatOneRankFindsDamagedNobodyUses) {
  for (int damaged = 0; damaged < kRanks; ++damaged) {
    const std::string whole = slurp(file(2, damaged));
    std::string bytes = whole;
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    std::ofstream(file(2, damaged), std::ios::binary) << bytes;
    LosableStore store;
    run_ranks(kRanks, [&](int rank) {
      std::vector<std::string> warnings;
      const auto reader = Reader::open_latest(
          folder_.path(), [&](std::string_view line) { warnings.emplace_back(line); }, ranks_of(store, rank, kRanks));
      EXPECT_EQ(reader->step(), 1);
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_TRUE(
          contains(warnings[0], concat("rank ", damaged, ": ", file(2, damaged).string(), ": tensor \"a\": its bytes are")));
      EXPECT_TRUE(contains(warnings[0], "; using " + (folder_ / "step-00000001").string() + " in its place"));
    });
    fs::rename(folder_ / "damaged/step-00000002", folder_ / "step-00000002");
    std::ofstream(file(2, damaged), std::ios::binary) << whole;
  }
}

TEST_F(RankReading, WhenNonePassesAllSaySo) {
  for (const int step : {1, 2}) fs::remove(file(step, 2));
  LosableStore store;
  const auto errors =
      errors_of_ranks(kRanks, [&](int rank) { Reader::open_latest(folder_.path(), no_warning, ranks_of(store, rank, kRanks)); });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_TRUE(contains(error, ": no checkpoint of 2 can be read: rank 2: " + file(2, 2).string() + ": No such file"));
  }
  const TemporaryFolder empty;
  LosableStore another;
  run_ranks(kRanks, [&](int rank) {
    EXPECT_FALSE(Reader::open_latest(empty.path(), no_warning, ranks_of(another, rank, kRanks)).has_value());
  });
}

// A file that one rank cannot read is no reason for any rank to take an older checkpoint.
TEST_F(RankReading, WhenOneRankCannotReadAllSaySoAndNothingIsMoved) {
  fs::remove(file(2, 2));
  fs::create_symlink(file(2, 2).filename(), file(2, 2));
  fs::remove(file(2, 1));
  LosableStore store;
  const auto errors =
      errors_of_ranks(kRanks, [&](int rank) { Reader::open_latest(folder_.path(), no_warning, ranks_of(store, rank, kRanks)); });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "rank 2: " + file(2, 2).string() + ": Too many levels of symbolic links");
  EXPECT_EQ(names_in(folder_.path()), (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

// The host of rank 2 has not mounted the file system.
TEST_F(RankReading, AFolderThatOneRankDoesNotSeeIsNotCalledDamaged) {
  const TemporaryFolder beneath;
  LosableStore store;
  const auto errors = errors_of_ranks(kRanks, [&](int rank) {
    Reader::open_latest(rank == 2 ? beneath.path() : folder_.path(), no_warning, ranks_of(store, rank, kRanks));
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "rank 2: " + (beneath / "step-00000002/manifest.json").string() + ": No such file or directory");
  EXPECT_EQ(names_in(folder_.path()), (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

TEST_F(RankReading, ARankReadsTheFilesThatItNeeds) {
  LosableStore store;
  std::vector<std::string> errors(kRanks);
  run_ranks(kRanks, [&](int rank) {
    const Reader reader = Reader::open(folder_ / "step-00000002", ranks_of(store, rank, kRanks));
    common_failure(ranks_of(store, rank, kRanks), "opened", "");
    if (rank == 0) {
      for (int other = 0; other < kRanks; ++other) fs::remove(file(2, other));
    }
    common_failure(ranks_of(store, rank, kRanks), "removed", "");
    Memory memory;
    Entry own = entry(memory, rank);
    std::fill_n(own.tensor.as<std::int32_t>(), own.tensor.elements(), -1);
    reader.load(memory.stream(), std::span(&own, 1));  // this file was opened to check its checksums
    EXPECT_EQ(own.tensor.as<std::int32_t>()[0], 100 * rank);
    const Entry other = entry(memory, (rank + 1) % kRanks);  // no other file was opened
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { reader.load(memory.stream(), std::span(&other, 1)); }), "No such file"));
  });
}

}  // namespace
}  // namespace octet::checkpoint

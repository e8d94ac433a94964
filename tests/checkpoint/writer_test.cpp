#include "octet/checkpoint/writer.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "checkpoint/files.h"
#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/steps.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;

void fill(const Tensor& tensor, std::int32_t value) { std::fill_n(tensor.as<std::int32_t>(), tensor.elements(), value); }

// Opens the newest checkpoint. Finding it must not cause a warning.
Reader newest(const std::filesystem::path& root) {
  std::optional<Reader> reader = Reader::open_latest(root, [](std::string_view line) { ADD_FAILURE() << line; });
  if (!reader) throw std::runtime_error("no checkpoint in " + root.string());
  return std::move(*reader);
}

class BothModes : public ::testing::TestWithParam<WriteMode> {};
INSTANTIATE_TEST_SUITE_P(Writer, BothModes, ::testing::Values(WriteMode::behind, WriteMode::now),
                         [](const auto& info) { return info.param == WriteMode::behind ? "behind" : "now"; });

TEST_P(BothModes, WhatIsSavedComesBack) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor a = memory.counting({300, 17}), b = memory.tensor(DType::bf16, {5}), c = memory.tensor(DType::f64, {});
  const Tensor large = memory.counting({3 << 20});  // several chunks of the writer
  b.as<BFloat16>()[3] = BFloat16(2.5f);
  c.as<double>()[0] = 1.0 / 3;
  const Json meta = {{"cursor", 123}, {"mesh", {1, 2, 3}}};
  {
    Writer writer({.root = folder / "checkpoints", .mode = GetParam()});
    const std::vector<Entry> entries = {Entry::whole("b", b), Entry::whole("a", a), Entry::whole("c", c),
                                        Entry::whole("large", large)};
    writer.save(1000, memory.stream(), entries, meta);
    fill(a, -1);  // changes the tensor after the snapshot
    writer.wait();
  }
  EXPECT_EQ(names_in(folder / "checkpoints"), std::vector<std::string>{"step-00001000"});
  EXPECT_EQ(names_in(folder / "checkpoints" / "step-00001000"),
            (std::vector<std::string>{"manifest.json", "rank-00000.safetensors"}));
  const auto file = SafetensorsFile::open(folder / "checkpoints/step-00001000/rank-00000.safetensors");
  for (const TensorInfo& info : file.tensors())
    EXPECT_EQ(info.begin % size_of(*info.dtype), 0u) << info.name << " is not aligned";
  const Reader reader = newest(folder / "checkpoints");
  EXPECT_EQ(reader.step(), 1000);
  EXPECT_EQ(reader.meta(), meta);

  const Tensor a2 = memory.tensor(DType::i32, {300, 17}), b2 = memory.tensor(DType::bf16, {5}),
               c2 = memory.tensor(DType::f64, {});
  const Tensor large2 = memory.tensor(DType::i32, {3 << 20});
  reader.load(memory.stream(), std::vector<Entry>{Entry::whole("a", a2), Entry::whole("large", large2), Entry::whole("b", b2),
                                                  Entry::whole("c", c2)});
  for (std::int64_t i = 0; i < a2.elements(); ++i) ASSERT_EQ(a2.as<std::int32_t>()[i], i);
  EXPECT_EQ(std::memcmp(large.data, large2.data, large.bytes()), 0);
  EXPECT_EQ(static_cast<float>(b2.as<BFloat16>()[3]), 2.5f);
  EXPECT_EQ(c2.as<double>()[0], 1.0 / 3);
}

// Cuts a tensor into about `parts` slices in a random way: into flat ranges, along a dim, or along a dim and then into flat
// ranges.
std::vector<Slice> random_cut(const Shape& global, std::int64_t parts, const Rng& rng, std::uint64_t& position) {
  const auto below = [&](std::int64_t count) {
    return static_cast<std::int64_t>(rng.word64(position++) % static_cast<std::uint64_t>(count));
  };
  const auto bounds = [&](std::int64_t size, std::int64_t count) {
    std::vector<std::int64_t> result = {0, size};
    while (static_cast<std::int64_t>(result.size()) < count + 1) result.push_back(below(size + 1));
    std::sort(result.begin(), result.end());
    return result;
  };
  const std::int64_t boxes = below(3) == 0 ? 1 : 1 + below(parts), flats = std::max<std::int64_t>(1, parts / boxes);
  const int d = static_cast<int>(below(global.rank()));
  std::vector<Slice> result;
  const auto cuts = bounds(global[d], boxes);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    Slice box = Slice::whole(global);
    box.start[d] = cuts[i];
    box.stop[d] = cuts[i + 1];
    const auto ends = bounds(box.box_shape().elements(), flats);
    for (std::size_t k = 0; k + 1 < ends.size(); ++k) {
      box.begin = ends[k];
      box.end = ends[k + 1];
      result.push_back(box);
    }
  }
  return result;
}

// The large tensor takes longer to copy than the small one to change.
TEST_P(BothModes, EntriesMayChangeWhenTheContractSaysSo) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor steady = memory.tensor(DType::i32, {8 << 20}), moving = memory.tensor(DType::i32, {100});
  Writer writer({.root = folder / "checkpoints", .keep_latest_k = 0, .mode = GetParam()});
  std::vector<Entry> entries = {Entry::whole("steady", steady), Entry::whole("moving", moving)};
  entries[0].steady = true;
  constexpr std::int32_t kSaves = 3;
  for (std::int32_t save = 1; save <= kSaves; ++save) {
    fill(steady, save);
    fill(moving, save);
    writer.save(save, memory.stream(), entries, Json::object());
    fill(moving, -1);
    writer.wait_for_snapshot();
    fill(steady, -1);
  }
  writer.wait();
  for (std::int32_t save = 1; save <= kSaves; ++save) {
    Reader::open(folder / "checkpoints" / step_name(save)).load(memory.stream(), entries);
    for (const Tensor& tensor : {steady, moving}) {
      const auto* const begin = tensor.as<std::int32_t>();
      EXPECT_EQ(std::count(begin, begin + tensor.elements(), save), tensor.elements()) << "save " << save;
    }
  }
}

TEST_P(BothModes, AnyMeshReadsWhatAnyMeshWrote) {
  const TemporaryFolder folder;
  const std::vector<Shape> shapes = {{97}, {16, 24}, {7, 5, 3}, {2, 3, 4, 5}, {1, 64}, {0, 8}};
  const Rng rng(GetParam() == WriteMode::now ? 3 : 4, RngStream::test);
  std::uint64_t position = 0;
  for (std::int64_t from = 1; from <= 8; ++from) {
    Memory memory;
    // Global element i holds i, so the expected slice is copied from a whole tensor.
    const auto entries_of = [&](std::int64_t parts, bool filled) {
      std::vector<Entry> entries;
      for (std::size_t k = 0; k < shapes.size(); ++k) {
        const Tensor whole = memory.counting(shapes[k]);
        for (const Slice& slice : random_cut(shapes[k], parts, rng, position)) {
          const Tensor part = memory.tensor(DType::i32, stored_shape(slice));
          if (filled) copy_overlap(shapes[k], Slice::whole(shapes[k]), whole.data, slice, part.data, 4);
          if (!filled && part.elements() > 0) fill(part, -1);
          entries.push_back({concat("tensor", k), part, shapes[k], slice});
        }
      }
      return entries;
    };
    {
      Writer writer({.root = folder.path(), .mode = GetParam()});
      writer.save(from, memory.stream(), entries_of(from, true), Json::object());
    }
    const Reader reader = newest(folder.path());
    for (std::int64_t to = 1; to <= 8; ++to) {
      const std::vector<Entry> loaded = entries_of(to, false);
      reader.load(memory.stream(), loaded);
      for (const Entry& entry : loaded) {
        const Tensor whole = memory.counting(entry.global), expected = memory.tensor(DType::i32, entry.tensor.shape);
        copy_overlap(entry.global, Slice::whole(entry.global), whole.data, entry.slice, expected.data, 4);
        ASSERT_EQ(std::memcmp(entry.tensor.data, expected.data, expected.bytes()), 0) << entry.name << " " << entry.slice.text();
      }
    }
  }
}

TEST_P(BothModes, KeepsTheLatestAndNeverLosesTheOneJustWritten) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({10}))};
  Writer writer({.root = folder.path(), .keep_latest_k = 2, .mode = GetParam()});
  for (const std::int64_t step : {1, 2, 3, 10, 11}) writer.save(step, memory.stream(), entries, Json::object());
  writer.wait();
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000010", "step-00000011"}));
  writer.save(5, memory.stream(), entries, Json::object());
  writer.wait();
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000005", "step-00000010", "step-00000011"}));
  writer.save(123456789, memory.stream(), entries, Json::object());
  writer.wait();
  EXPECT_EQ(find_checkpoints(folder.path()).front().step, 123456789);
}

TEST_P(BothModes, ASecondCheckpointOfAStepTakesThePlaceOfTheFirst) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor a = memory.counting({10});
  Writer writer({.root = folder.path(), .keep_latest_k = 1, .mode = GetParam()});
  for (const int value : {7, 8}) {
    fill(a, value);
    writer.save(3, memory.stream(), std::vector<Entry>{Entry::whole("a", a)}, {{"value", value}});
  }
  writer.wait();
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-00000003"});
  EXPECT_EQ(newest(folder.path()).meta(), (Json{{"value", 8}}));
}

// What shall take its place is gone in the last moment.
TEST_P(BothModes, AReplacementThatFailsLeavesTheFirst) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor a = memory.counting({10});
  Writer writer({.root = folder.path(), .mode = GetParam(), .may_publish = [&] {
                   if (!std::filesystem::exists(folder / "step-00000003")) return;
                   for (const std::string& name : names_in(folder.path())) {
                     if (name != "step-00000003") std::filesystem::remove_all(folder / name);
                   }
                 }});
  const auto save = [&](int value) {
    fill(a, value);
    writer.save(3, memory.stream(), std::vector<Entry>{Entry::whole("a", a)}, {{"value", value}});
    writer.wait();
  };
  save(7);
  EXPECT_THROW(save(8), Error);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-00000003"});
  EXPECT_EQ(newest(folder.path()).meta(), (Json{{"value", 7}}));
}

TEST(Writer, KeepsAllWhenAskedTo) {
  const TemporaryFolder folder;
  Memory memory;
  Writer writer({.root = folder.path(), .keep_latest_k = 0});
  for (int step = 0; step < 5; ++step) {
    writer.save(step, memory.stream(), std::vector<Entry>{Entry::whole("a", memory.counting({2}))}, Json::object());
  }
  writer.wait();
  EXPECT_EQ(find_checkpoints(folder.path()).size(), 5u);
}

TEST(Writer, KeepsEveryNthForEver) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({2}))};
  Writer writer({.root = folder.path(), .keep_latest_k = 2, .keep_every = 20});
  for (std::int64_t step = 5; step <= 65; step += 5) writer.save(step, memory.stream(), entries, Json::object());
  writer.wait();
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"step-00000020", "step-00000040", "step-00000060", "step-00000065"}));
}

// A kill between a save and the deletion of older checkpoints leaves too many.
TEST(Writer, DeletesWhatAKilledRunHasLeft) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({2}))};
  {
    Writer all({.root = folder.path(), .keep_latest_k = 0});
    for (std::int64_t step = 10; step <= 50; step += 10) all.save(step, memory.stream(), entries, Json::object());
  }
  Writer(WriterOptions{.root = folder.path(), .keep_latest_k = 0}).delete_surplus(50, {});
  EXPECT_EQ(find_checkpoints(folder.path()).size(), 5u) << "all are kept";
  Writer writer({.root = folder.path(), .keep_latest_k = 2});
  EXPECT_EQ(find_checkpoints(folder.path()).size(), 5u) << "nothing goes before a checkpoint has been loaded";
  writer.delete_surplus(50, {.steps = {20}});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000020", "step-00000040", "step-00000050"}));
}

TEST_P(BothModes, KeepsTheBestBesideTheLatest) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({10}))};
  Writer writer({.root = folder.path(), .keep_latest_k = 2, .mode = GetParam()});
  const auto steps_after = [&](std::int64_t step, const BestCheckpoint& best) {
    writer.save(step, memory.stream(), entries, Json::object(), best);
    writer.wait();
    std::vector<std::int64_t> steps;
    for (const StepDirectory& found : find_checkpoints(folder.path())) steps.push_back(found.step);
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(steps_after(10, {}), (Steps{10}));
  EXPECT_EQ(steps_after(20, {.steps = {20}}), (Steps{20, 10}));
  EXPECT_EQ(steps_after(25, {.steps = {25, 20}, .extra = {25}}), (Steps{25, 20, 10})) << "25 is one more";
  EXPECT_EQ(steps_after(30, {.steps = {25, 20}, .extra = {25}}), (Steps{30, 25, 20})) << "the latest two, and the best";
  EXPECT_EQ(steps_after(35, {.steps = {35, 25, 20}, .extra = {25, 35}}), (Steps{35, 30, 20})) << "25 is not the best any more";
  EXPECT_EQ(steps_after(40, {.steps = {35, 25, 20}, .extra = {25, 35}}), (Steps{40, 35, 30}));
  EXPECT_EQ(steps_after(50, {.steps = {40, 35}, .extra = {35}}), (Steps{50, 40})) << "the best is among the latest";
  EXPECT_EQ(steps_after(60, {.steps = {40, 35}, .extra = {35}}), (Steps{60, 50, 40}));
  EXPECT_EQ(steps_after(70, {.steps = {40, 35}, .extra = {35}}), (Steps{70, 60, 40}));
  // The save of the best at step 72 failed, so 40 is the best that there is.
  EXPECT_EQ(steps_after(80, {.steps = {72, 40}, .extra = {72}}), (Steps{80, 70, 40}));
}

TEST(Writer, TheBestThatIsOneMoreGoesAlsoWhereAllAreKept) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({2}))};
  for (const std::int64_t keep_every : {0, 5}) {
    Writer writer({.root = folder / std::to_string(keep_every), .keep_latest_k = 0, .keep_every = keep_every});
    writer.save(10, memory.stream(), entries, Json::object());
    writer.save(15, memory.stream(), entries, Json::object(), {.steps = {15}, .extra = {15}});
    writer.save(17, memory.stream(), entries, Json::object(), {.steps = {17, 15}, .extra = {15, 17}});
    writer.wait();
    const std::vector<StepDirectory> found = find_checkpoints(folder / std::to_string(keep_every));
    EXPECT_EQ(found.size(), keep_every == 0 ? 2u : 3u) << "step 15 is a multiple of 5";
    EXPECT_EQ(found.front().step, 17);
  }
}

TEST(Writer, ANumberOfCheckpointsAbove32BitsIsNotCut) {
  const TemporaryFolder folder;
  Memory memory;
  Writer writer({.root = folder.path(), .keep_latest_k = 4294967297});
  for (const std::int64_t step : {1, 2, 3}) {
    writer.save(step, memory.stream(), std::vector<Entry>{Entry::whole("a", memory.counting({2}))}, Json::object());
  }
  writer.wait();
  EXPECT_EQ(find_checkpoints(folder.path()).size(), 3u);
}

// Whoever makes a Writer holds the folder's lock, so nobody else writes there, whatever number its process has.
TEST(Writer, RemovesWhatKilledRunsLeft) {
  const TemporaryFolder folder;
  folder.write("step-00000007.tmp-0123456789abcdef/rank-00000.safetensors", "half");
  folder.write("step-00000008.tmp-0123456789abcdef.old/manifest.json", "old");
  folder.write("step-00000008/manifest.json", "new");
  folder.write("step-00000011.tmp-0123456789abcdef.old/manifest.json", "the only one");
  folder.write("step-00000009.tmp-1/x", "of an earlier version, which wrote a process id");
  folder.write(concat("step-00000010.tmp-", ::getpid(), ".1234/x"), "likewise");
  folder.write("step-10/x", "not a name of ours");
  folder.write("damaged/step-00000003/x", "to be kept");
  folder.write("notes.txt", "the user's");
  const Writer writer({.root = folder.path()});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"damaged", "notes.txt", "step-00000008",
                                                             "step-00000011.tmp-0123456789abcdef.old", "step-10"}));
  EXPECT_TRUE(fs::exists(folder / "damaged/step-00000003/x"));
  EXPECT_EQ(read_file(folder / "step-00000008/manifest.json"), "new");
}

// A save has moved the older checkpoint of its step out of the way, and could neither take its place nor put it back.
TEST(Writer, AReplacedCheckpointIsPutBack) {
  const TemporaryFolder folder;
  Memory memory;
  Writer(WriterOptions{.root = folder.path()})
      .save(3, memory.stream(), std::vector<Entry>{Entry::whole("a", memory.counting({4}))}, {{"value", 7}});
  fs::rename(folder / "step-00000003", folder / "step-00000003.tmp-0123456789abcdef.old");
  folder.write("step-00000004/manifest.json", "in its place");
  folder.write("step-00000004.tmp-0123456789abcdef.old/manifest.json", "replaced");
  put_back_replaced(folder.path());
  EXPECT_EQ(Reader::open(folder / "step-00000003").meta(), (Json{{"value", 7}}));
  EXPECT_EQ(read_file(folder / "step-00000004/manifest.json"), "in its place");
  put_back_replaced(folder / "nothing");
}

TEST_P(BothModes, WhoMayNotPublishSavesNothing) {
  const TemporaryFolder folder;
  Memory memory;
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({2}))};
  bool may = true;
  std::vector<std::int64_t> published;
  Writer writer({.root = folder.path(),
                 .keep_latest_k = 1,
                 .mode = GetParam(),
                 .may_publish = [&] { demand(may, ExitCode::config, "another has taken over"); },
                 .published =
                     [&](std::int64_t step) {
                       EXPECT_TRUE(fs::exists(folder / step_name(step) / kManifestName));
                       published.push_back(step);
                     }});
  const auto save = [&](std::int64_t step) {
    writer.save(step, memory.stream(), entries, Json::object());
    writer.wait();
  };
  save(1);
  may = false;
  EXPECT_EQ(error_of(ExitCode::internal, [&] { save(2); }), "the checkpoint of step 2 is not saved: another has taken over");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-00000001"});
  EXPECT_EQ(published, std::vector<std::int64_t>{1});
}

TEST_P(BothModes, AHostWithoutMemorySaysSo) {
  const TemporaryFolder folder;
  Memory memory;
  Writer writer({.root = folder.path(), .mode = GetParam(), .may_publish = [] { throw std::bad_alloc(); }});
  const std::vector<Entry> entries = {Entry::whole("a", memory.counting({5}))};
  const std::string message = error_of(ExitCode::internal, [&] {
    writer.save(7, memory.stream(), entries, Json::object());
    writer.wait();
  });
  EXPECT_EQ(message, concat("the checkpoint of step 7 is not saved: this host is ", kOutOfMemory));
}

TEST(Writer, RefusesSlicesThatDoNotCover) {
  const TemporaryFolder folder;
  Memory memory;
  Writer writer({.root = folder.path()});
  const Tensor half = memory.counting({5});
  const auto save = [&](const std::vector<Entry>& entries) {
    writer.save(1, memory.stream(), entries, Json::object());
    writer.wait();
  };
  const Entry first = {"a", half, {10}, Slice::flat({10}, 0, 5)}, second = {"a", half, {10}, Slice::flat({10}, 5, 10)};
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { save({first}); }), "do not cover [10] once"));
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { save({first, first}); }), "do not cover [10] once"));
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { save({{"a", half, {10}, Slice::whole({10})}}); }), "is not the slice"));
  save({first, second});
}

// --- full disks -------------------------------------------------------------------------------------------------------------

// Runs `body` in a child process, whose limits and mounts it may change. Returns what `body` returns, or false if it throws.
bool succeeds_in_child(const std::function<bool()>& body) {
  set_num_threads(1);  // fork copies no threads
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool well = false;
    try {
      well = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(well ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Saves step 1. Saves step 2 under `restrict`, which must fail and leave nothing. Saves step 3 after `release`.
bool survives_a_full_disk(const std::filesystem::path& root, WriteMode mode, const std::function<void()>& restrict,
                          const std::function<void()>& release) {
  Memory memory;
  const Tensor a = memory.counting({3 << 20});
  const std::vector<Entry> entries = {Entry::whole("a", a)};
  Writer writer({.root = root, .mode = mode});
  writer.save(1, memory.stream(), entries, Json::object());
  writer.wait();
  restrict();
  bool failed = false;
  try {
    writer.save(2, memory.stream(), entries, Json::object());
    writer.wait();
  } catch (const Error& error) {
    const std::string message = error.what();
    failed = error.code() == ExitCode::internal && message.find("the checkpoint of step 2 is not saved: " + root.string()) == 0 &&
             message.find("cannot write: ") != std::string::npos && message.find('\n') == std::string::npos;
    if (!failed) std::fprintf(stderr, "%s\n", message.c_str());
  }
  const bool traceless = names_in(root) == std::vector<std::string>{"step-00000001"};
  writer.wait();  // a failure is reported only once
  release();
  writer.save(3, memory.stream(), entries, Json::object());
  writer.wait();
  return failed && traceless && names_in(root) == std::vector<std::string>{"step-00000001", "step-00000003"} &&
         Reader::open(root / "step-00000003").step() == 3;
}

TEST_P(BothModes, AFileSizeLimitIsOneLineAndCostsNothing) {
  const TemporaryFolder folder;
  EXPECT_TRUE(succeeds_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const auto limit = [](rlim_t bytes) {
      rlimit value{};
      ::getrlimit(RLIMIT_FSIZE, &value);
      value.rlim_cur = std::min(bytes, value.rlim_max);
      ::setrlimit(RLIMIT_FSIZE, &value);
    };
    return survives_a_full_disk(
        folder.path(), GetParam(), [&] { limit(5 << 20); }, [&] { limit(RLIM_INFINITY); });
  }));
}

TEST_P(BothModes, AFullDiskIsOneLineAndCostsNothing) {
  const TemporaryFolder folder;
  const auto mount_small = [&] {
    return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=32m") == 0;
  };
  if (!succeeds_in_child(mount_small)) GTEST_SKIP() << "no permission to mount a small disk";
  EXPECT_TRUE(succeeds_in_child([&] {
    mount_small();
    const auto root = folder / "checkpoints";
    const auto ballast = folder / "ballast";
    return survives_a_full_disk(
        root, GetParam(), [&] { folder.write("ballast", std::string(14 << 20, 'x')); },
        [&] { std::filesystem::remove(ballast); });
  }));
}

// --- kill -9 ----------------------------------------------------------------------------------------------------------------

// Saves checkpoints in which every element equals the step, for ever.
[[noreturn]] void save_until_killed(const std::filesystem::path& root, std::int64_t step, WriteMode mode) {
  Memory memory;
  const Tensor a = memory.tensor(DType::i32, {200'000}), b = memory.tensor(DType::i32, {3, 5}),
               c = memory.tensor(DType::i32, {50'000});
  const std::vector<Entry> entries = {Entry::whole("a", a), Entry::whole("b", b), Entry::whole("c", c)};
  Writer writer({.root = root, .keep_latest_k = 2, .mode = mode});
  for (;; ++step) {
    for (const Tensor& tensor : {a, b, c}) fill(tensor, static_cast<std::int32_t>(step));
    writer.save(step, memory.stream(), entries, {{"value", step}});
    if (step % 3 == 0) writer.save(step, memory.stream(), entries, {{"value", step}});  // replaces the first
  }
}

TEST(Writer, AKillAtAnyMomentLeavesTheNewestCheckpointWhole) {
  const TemporaryFolder folder;
  set_num_threads(1);
  const Rng rng(5, RngStream::test);
  Memory memory;
  const Tensor a = memory.tensor(DType::i32, {200'000}), b = memory.tensor(DType::i32, {3, 5}),
               c = memory.tensor(DType::i32, {50'000});
  std::int64_t last = 0;
  for (std::uint64_t trial = 0; trial < 20; ++trial) {
    const pid_t pid = ::fork();
    if (pid == 0) save_until_killed(folder.path(), last + 1, trial % 2 == 0 ? WriteMode::behind : WriteMode::now);
    // Waits until the child has written a checkpoint before it measures the delay, so that slow machines test as much as fast
    // ones.
    while (find_checkpoints(folder.path()).empty() || find_checkpoints(folder.path()).front().step <= last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.word64(trial) % 30'000));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);

    const Reader reader = newest(folder.path());
    EXPECT_GT(reader.step(), last);
    last = reader.step();
    EXPECT_EQ(reader.meta(), (Json{{"value", last}}));
    reader.load(memory.stream(), std::vector<Entry>{Entry::whole("a", a), Entry::whole("b", b), Entry::whole("c", c)});
    for (const Tensor& tensor : {a, b, c}) {
      for (std::int64_t i = 0; i < tensor.elements(); ++i) ASSERT_EQ(tensor.as<std::int32_t>()[i], last);
    }
    for (const StepDirectory& older : find_checkpoints(folder.path())) EXPECT_EQ(Reader::open(older.path).step(), older.step);
  }
  // A kill before old checkpoints are removed leaves an additional one, and several kills may leave several. After the next
  // complete save there are exactly two.
  Writer writer({.root = folder.path(), .keep_latest_k = 2, .mode = WriteMode::now});
  EXPECT_EQ(names_in(folder.path()).size(), find_checkpoints(folder.path()).size());
  writer.save(last + 1, memory.stream(), std::vector<Entry>{Entry::whole("a", a)}, {{"value", last + 1}});
  EXPECT_EQ(names_in(folder.path()).size(), 2u);
}

}  // namespace
}  // namespace octet::checkpoint

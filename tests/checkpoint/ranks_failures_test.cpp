// Saves by several ranks that fail, lose a rank or are killed.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <optional>
#include <thread>

#include "checkpoint/many_ranks.h"
#include "octet/base/file.h"
#include "octet/base/rng.h"
#include "octet/base/threads.h"
#include "octet/checkpoint/reader.h"
#include "octet/checkpoint/writer.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::errors_of_ranks;
using testing::run_ranks;

constexpr int kRanks = 3;
constexpr std::int64_t kElements = 30;

class FailingRanks : public ::testing::TestWithParam<WriteMode> {
 protected:
  std::unique_ptr<Writer> writer(int rank) {
    return std::make_unique<Writer>(
        WriterOptions{.root = root_, .keep_latest_k = 2, .mode = GetParam(), .ranks = ranks_of(*store_, rank, kRanks)});
  }
  static void save(Writer& writer, std::int64_t step, Memory& memory, const std::vector<Entry>& entries) {
    writer.save(step, memory.stream(), entries, {{"step", step}});
    writer.wait();
  }
  static std::vector<Entry> good(Memory& memory, int rank) {
    return {entry_of(memory, "a", {kElements}, slice_of({kElements}, Cut::flat, rank, kRanks), 0, true)};
  }
  // Step 1 succeeds. Step 2 must fail on all ranks with the same line and leave nothing. Step 3 succeeds.
  std::string failure_of_step_2(const std::function<std::vector<Entry>(Memory&, int rank)>& entries) {
    std::vector<std::string> errors(kRanks);
    run_ranks(kRanks, [&](int rank) {
      Memory memory;
      const auto w = writer(rank);
      save(*w, 1, memory, good(memory, rank));
      errors[static_cast<std::size_t>(rank)] = error_of(ExitCode::internal, [&] { save(*w, 2, memory, entries(memory, rank)); });
      EXPECT_EQ(names_in(root_), std::vector<std::string>{"step-00000001"});
      common_failure(ranks_of(*store_, rank, kRanks), "all have seen it", "");
      w->wait();  // a failure is reported only once
      save(*w, 3, memory, good(memory, rank));
    });
    EXPECT_EQ(names_in(root_), (std::vector<std::string>{"step-00000001", "step-00000003"}));
    EXPECT_EQ(Reader::open(root_ / "step-00000003").step(), 3);
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
    fs::remove_all(root_);
    return errors[0];
  }

  TemporaryFolder folder_;
  const fs::path root_ = folder_ / "checkpoints";
  std::optional<LosableStore> store_{std::in_place};
};
INSTANTIATE_TEST_SUITE_P(Ranks, FailingRanks, ::testing::Values(WriteMode::behind, WriteMode::now),
                         [](const auto& info) { return info.param == WriteMode::behind ? "behind" : "now"; });

TEST_P(FailingRanks, OverlapsAreRefusedByName) {
  const std::string error = failure_of_step_2([](Memory& memory, int rank) {
    return std::vector<Entry>{entry_of(memory, "a", {10}, Slice::flat({10}, 3 * rank, 3 * rank + 4), 0, true)};
  });
  EXPECT_EQ(error,
            "the checkpoint of step 2 is not saved: tensor \"a\": its slices do not cover [10] once: "
            "there are 3, with 12 of 10 elements");
}

TEST_P(FailingRanks, GapsAreRefusedByName) {
  const std::string error = failure_of_step_2([](Memory& memory, int rank) {
    std::vector<Entry> entries = good(memory, rank);
    if (rank != 1) entries.push_back(entry_of(memory, "gap", {4, 3}, slice_of({4, 3}, Cut::flat, rank, kRanks), 0, true));
    return entries;
  });
  EXPECT_TRUE(contains(error, "tensor \"gap\": its slices do not cover [4, 3] once: there are 2, with 8 of 12 elements"));
}

TEST_P(FailingRanks, RanksThatDisagreeAreRefusedByName) {
  const std::string error = failure_of_step_2([](Memory& memory, int rank) {
    const Shape global = rank == 2 ? Shape{6, 5} : Shape{kElements};
    return std::vector<Entry>{entry_of(memory, "a", global, slice_of(global, Cut::flat, rank, kRanks), 0, true)};
  });
  EXPECT_TRUE(contains(error, "step 2 is not saved: tensor \"a\": I32 [30] is I32 [6, 5] on rank 2"));
}

TEST_P(FailingRanks, ASliceThatIsNoneOnOneRankFailsAll) {
  for (int bad = 0; bad < kRanks; ++bad) {
    const std::string error = failure_of_step_2([bad](Memory& memory, int rank) {
      std::vector<Entry> entries = good(memory, rank);
      if (rank == bad) entries[0].slice.end += 1;
      return entries;
    });
    EXPECT_TRUE(contains(error, concat("the checkpoint of step 2 is not saved: rank ", bad, ": ")));
    EXPECT_TRUE(contains(error, "is not the slice"));
    store_.emplace();
  }
}

TEST_P(FailingRanks, AFolderThatCannotBeMadeFailsAll) {
  const auto errors = errors_of_ranks(kRanks, [&](int rank) {
    Memory memory;
    const auto w = writer(rank);
    save(*w, 1, memory, good(memory, rank));
    if (rank == 0) {
      fs::remove_all(root_);
      folder_.write("checkpoints", "a file");
    }
    save(*w, 2, memory, good(memory, rank));
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_TRUE(contains(error, "the checkpoint of step 2 is not saved: rank 0: " + root_.string() + "/step-00000002.tmp-"));
    EXPECT_TRUE(contains(error, ": cannot create: "));
  }
}

// Runs `body` in a child process, whose limits it may change. Returns whether all expectations there held.
bool in_child(const std::function<void()>& body) {
  set_num_threads(1);  // fork copies no threads
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_P(FailingRanks, ADiskThatIsFullForOneRankFailsAll) {
  EXPECT_TRUE(in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit value{};
    ::getrlimit(RLIMIT_FSIZE, &value);
    value.rlim_cur = std::min<rlim_t>(1 << 20, value.rlim_max);
    ::setrlimit(RLIMIT_FSIZE, &value);
    for (int full = 0; full < kRanks; ++full) {
      const std::string error = failure_of_step_2([full](Memory& memory, int rank) {
        std::vector<Entry> entries = good(memory, rank);
        if (rank == full) entries.push_back(Entry::whole("large", memory.counting({1 << 19})));
        return entries;
      });
      EXPECT_TRUE(contains(error, concat("the checkpoint of step 2 is not saved: rank ", full, ": ", root_.string())));
      EXPECT_TRUE(contains(error, concat("/rank-0000", full, ".safetensors")));
      EXPECT_TRUE(contains(error, ": cannot write: "));
      store_.emplace();
    }
    const std::string error = failure_of_step_2([](Memory& memory, int rank) {
      return std::vector<Entry>{Entry::whole(concat("large", rank), memory.counting({1 << 19}))};
    });
    EXPECT_TRUE(contains(error, " (2 more ranks failed as well)"));
  }));
}

// Rank 1 can start no thread. The other ranks, which have begun to write, would wait for its part for an hour.
TEST(Ranks, ARankThatCannotStartAThreadWritesInTheForeground) {
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  EXPECT_TRUE(in_child([&] {
    constexpr uid_t kNobody = 65534;
    ASSERT_TRUE(::geteuid() != 0 || ::setuid(kNobody) == 0) << "limits of processes do not hold for root";
    const fs::path root = folder / "checkpoints";
    LosableStore store;
    std::latch others_write(kRanks - 1);
    run_ranks(kRanks, [&](int rank) {
      Memory memory;
      Writer writer({.root = root, .ranks = ranks_of(store, rank, kRanks)});
      const std::vector<Entry> entries = {
          entry_of(memory, "a", {kElements}, slice_of({kElements}, Cut::flat, rank, kRanks), 0, true)};
      rlimit before{};
      ::getrlimit(RLIMIT_NPROC, &before);
      if (rank == 1) {
        others_write.wait();
        const rlimit none{.rlim_cur = 1, .rlim_max = before.rlim_max};
        ::setrlimit(RLIMIT_NPROC, &none);
      }
      try {
        writer.save(1, memory.stream(), entries, {{"step", 1}});
      } catch (const Error&) {
        store.lose(rank);  // the others would wait
      }
      if (rank == 1) {
        EXPECT_EQ(Reader::open(root / "step-00000001").step(), 1) << "rank 1 has written in the foreground";
        ::setrlimit(RLIMIT_NPROC, &before);
      } else {
        others_write.count_down();
      }
      writer.wait();
    });
  }));
}

// --- ranks that are lost ----------------------------------------------------------------------------------------------------

// A rank is lost at each of its accesses to the store in turn.
TEST_P(FailingRanks, ALostRankAtAnyMomentLeavesWholeCheckpoints) {
  int losses = 0, completed = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    bool lost = true;
    for (int moment = 0; lost; ++moment) {
      store_.emplace();
      run_ranks(kRanks, [&](int rank) {
        Memory memory;
        save(*writer(rank), 1, memory, good(memory, rank));
      });
      store_.emplace();
      std::atomic<bool> struck = false;
      run_ranks(kRanks, [&](int rank) {
        int calls = 0;
        Ranks ranks = ranks_of(*store_, rank, kRanks);
        const auto strike = [&] {
          if (rank != victim || calls++ != moment) return;
          struck = true;
          store_->lose(rank);
        };
        ranks.set = [&, set = ranks.set](const std::string& key, std::string_view value, int reads) {
          strike();
          set(key, value, reads);
        };
        ranks.get = [&, get = ranks.get](const std::string& key) {
          strike();
          return get(key);
        };
        Memory memory;
        Writer w({.root = root_, .keep_latest_k = 2, .mode = GetParam(), .ranks = ranks});
        try {
          save(w, 2, memory, good(memory, rank));
        } catch (const Error& error) {
          EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::peer)) << error.what();
          EXPECT_TRUE(contains(error.what(), "while the checkpoint of step 2 was written: "));
        }
      });
      lost = struck;
      losses += lost;
      for (const StepDirectory& found : find_checkpoints(root_)) EXPECT_EQ(Reader::open(found.path).step(), found.step);
      completed += fs::exists(root_ / "step-00000002");
      EXPECT_TRUE(fs::exists(root_ / "step-00000001"));

      // The next run removes what is left and saves.
      store_.emplace();
      run_ranks(kRanks, [&](int rank) {
        Memory memory;
        const auto w = writer(rank);
        save(*w, 3, memory, good(memory, rank));
        EXPECT_EQ(names_in(root_).size(), 2u);
        EXPECT_EQ(names_in(root_).back(), "step-00000003");
      });
      fs::remove_all(root_);
    }
  }
  EXPECT_GT(losses, 12);
  EXPECT_GT(completed, kRanks);
  EXPECT_LT(completed, losses);
}

// --- kill -9 ----------------------------------------------------------------------------------------------------------------

// A store of files, which processes share.
Ranks ranks_over_files(const fs::path& folder, int rank, int size) {
  const auto file = [folder](std::string key) {
    std::replace(key.begin(), key.end(), '/', '.');
    return folder / key;
  };
  return {.rank = rank,
          .size = size,
          .set = [file](const std::string& key, std::string_view value, int) { write_file_atomically(file(key), value); },
          .get =
              [file](const std::string& key) {
                while (!fs::exists(file(key))) {
                  demand(!fs::exists(file("lost")), ExitCode::peer, "a rank is lost");
                  std::this_thread::sleep_for(std::chrono::microseconds(100));
                }
                return read_file(file(key));
              }};
}

// Saves checkpoints in which every element equals the step, until a rank is lost.
void save_until_killed(const fs::path& root, std::int64_t step, WriteMode mode, const Ranks& ranks) {
  Memory memory;
  const std::vector<Entry> entries = {
      entry_of(memory, "a", {200'000}, slice_of({200'000}, Cut::flat, ranks.rank, ranks.size), 0, false),
      entry_of(memory, "b", {50, 100}, slice_of({50, 100}, Cut::sparse, ranks.rank, ranks.size), 0, false)};
  Writer writer({.root = root, .keep_latest_k = 2, .mode = mode, .ranks = ranks});
  for (;; ++step) {
    for (const Entry& entry : entries) {
      std::fill_n(entry.tensor.as<std::int32_t>(), entry.tensor.elements(), static_cast<std::int32_t>(step));
    }
    writer.save(step, memory.stream(), entries, {{"value", step}});
    if (step % 3 == 0) writer.save(step, memory.stream(), entries, {{"value", step}});  // replaces the first
  }
}

TEST(Ranks, AKillOfAnyProcessAtAnyMomentLeavesTheNewestCheckpointWhole) {
  const TemporaryFolder folder;
  const fs::path root = folder / "checkpoints";
  set_num_threads(1);
  const Rng rng(6, RngStream::test);
  Memory memory;
  const Tensor a = memory.tensor(DType::i32, {200'000}), b = memory.tensor(DType::i32, {50, 100});
  std::int64_t last = 0;
  for (std::uint64_t trial = 0; trial < 20; ++trial) {
    const fs::path store = folder / concat("store", trial);
    fs::create_directories(store);
    std::vector<pid_t> processes;
    for (int rank = 0; rank < kRanks; ++rank) {
      processes.push_back(::fork());
      if (processes.back() != 0) continue;
      try {
        save_until_killed(root, last + 1, trial % 2 == 0 ? WriteMode::behind : WriteMode::now,
                          ranks_over_files(store, rank, kRanks));
      } catch (const Error& error) {
        ::_exit(static_cast<int>(error.code()));
      }
    }
    while (find_checkpoints(root).empty() || find_checkpoints(root).front().step <= last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.word64(2 * trial) % 30'000));
    const std::size_t victim = rng.word64(2 * trial + 1) % kRanks;
    ::kill(processes[victim], SIGKILL);
    folder.write(concat("store", trial, "/lost"), "");
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      int status = 0;
      ::waitpid(processes[rank], &status, 0);
      if (rank == victim) continue;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::peer)) << status;
    }

    const auto reader = Reader::open_latest(root, [](std::string_view line) { ADD_FAILURE() << line; });
    ASSERT_TRUE(reader.has_value());
    EXPECT_GT(reader->step(), last);
    last = reader->step();
    EXPECT_EQ(reader->meta(), (Json{{"value", last}}));
    reader->load(memory.stream(), std::vector<Entry>{Entry::whole("a", a), Entry::whole("b", b)});
    for (const Tensor& tensor : {a, b}) {
      for (std::int64_t i = 0; i < tensor.elements(); ++i) ASSERT_EQ(tensor.as<std::int32_t>()[i], last);
    }
    for (const StepDirectory& older : find_checkpoints(root)) EXPECT_EQ(Reader::open(older.path).step(), older.step);
  }
  Writer writer({.root = root, .keep_latest_k = 2, .mode = WriteMode::now});
  EXPECT_EQ(names_in(root).size(), find_checkpoints(root).size());
  writer.save(last + 1, memory.stream(), std::vector<Entry>{Entry::whole("a", a)}, {{"value", last + 1}});
  EXPECT_EQ(names_in(root).size(), 2u);
}

}  // namespace
}  // namespace octet::checkpoint

// The folder that rank 0 names to the others over the network.
#include "checkpoint/many_ranks.h"
#include "octet/checkpoint/writer.h"

namespace octet::checkpoint {
namespace {

// Rank 1 saves what a false rank 0 asks for. Returns the failure that it reports.
std::string failure_in(const std::string& folder, const std::filesystem::path& root) {
  LosableStore store;
  std::string failure = "none was reported";
  Ranks ranks = ranks_of(store, 1, 2);
  ranks.get = [&](const std::string& key) { return key.ends_with("/folder") ? folder : std::string("refused"); };
  ranks.set = [&](const std::string& key, std::string_view value, int) {
    if (key.ends_with("/failure/1")) failure = value;
  };
  Memory memory;
  Writer writer({.root = root, .mode = WriteMode::now, .ranks = ranks});
  const Entry entry = entry_of(memory, "a", {8}, Slice::whole({8}), 0, true);
  EXPECT_THROW(writer.save(7, memory.stream(), std::vector<Entry>{entry}, nlohmann::json::object()), Error);
  return failure;
}

TEST(FolderName, OfAnotherRankDoesNotLeadElsewhere) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path root = folder / "checkpoints";
  const std::string outside = (folder / "outside").string();
  for (const char* name :
       {"outside", "checkpoints/step-00000007.tmp-1", "checkpoints/step-00000008.tmp-1", "checkpoints/step-00000007.tmp-2"}) {
    std::filesystem::create_directories(folder / name);
  }
  for (const std::string& name : {outside, std::string("../outside"), std::string("."), std::string(".."), std::string("/"),
                                  std::string("step-00000007.tmp-1/../../outside"), std::string("step-00000008.tmp-1")}) {
    EXPECT_EQ(failure_in(name, root), "rank 0 writes into \"" + name + "\", which is not a folder of step 7");
  }
  EXPECT_TRUE(testing::names_in(outside).empty());
  EXPECT_EQ(failure_in("step-00000007.tmp-2", root), "");
  EXPECT_EQ(testing::names_in(root / "step-00000007.tmp-2"), std::vector<std::string>{"rank-00001.safetensors"});
}

}  // namespace
}  // namespace octet::checkpoint

// The order in which ranks open and close their groups. NCCL opens and closes a group only when all its ranks are there.
#include "octet/parallel/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace octet::parallel {
namespace {

// Adds its name to a list when it is closed.
class LoggedGroup : public comm::Group {
 public:
  LoggedGroup(const std::string& name, int rank, int size, std::vector<std::string>& closed)
      : Group(name, rank, size), closed_(closed) {}
  ~LoggedGroup() override { closed_.push_back(name()); }

 protected:
  void run(Stream&, const comm::AllGather&) override { FAIL(); }
  void run(Stream&, const comm::ReduceScatter&, const Tensor&) override { FAIL(); }
  void run(Stream&, const comm::AllReduce&, const Tensor&) override { FAIL(); }
  void run(Stream&, const comm::AllToAll&) override { FAIL(); }
  void run(Stream&, const comm::Broadcast&) override { FAIL(); }
  void run(Stream&, const comm::Send&) override { FAIL(); }
  void run(Stream&, const comm::Receive&) override { FAIL(); }
  void run_barrier(Stream&) override { FAIL(); }

 private:
  std::vector<std::string>& closed_;
};

using Lists = std::vector<std::vector<std::string>>;

// Lets every rank go through its list of groups. Returns those for which ranks still wait when nobody can go on.
Lists waiting(Lists lists, const std::map<std::string, int>& sizes) {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    std::map<std::string, int> there;
    for (const auto& list : lists) {
      if (!list.empty()) ++there[list.front()];
    }
    for (auto& list : lists) {
      if (list.empty() || there[list.front()] < sizes.at(list.front())) continue;
      list.erase(list.begin());
      goes_on = true;
    }
  }
  std::erase_if(lists, [](const auto& list) { return list.empty(); });
  return lists;
}

// A page that a supervisor reads holds a group's name without its ranks, and two groups of a rank must not share one.
TEST(Groups, HaveNamesThatFitIntoAPage) {
  const Mesh meshes[] = {Mesh({1, 1, 1, 1}, 1, {.count = 1000, .chunks = 2}), Mesh({2, 4, 2, 2}, 4, {.count = 3, .chunks = 2})};
  for (const Mesh& mesh : meshes) {
    for (int rank = 0; rank < mesh.ranks(); rank += 37) {
      telemetry::RankPage page;
      std::vector<const telemetry::GroupPage*> pages;
      const Groups groups = make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>&) {
        pages.push_back(&page.group(name.substr(0, name.find(" of rank"))));
        return comm::make_silent_group(name);
      });
      std::sort(pages.begin(), pages.end());
      EXPECT_EQ(std::adjacent_find(pages.begin(), pages.end()), pages.end()) << "rank " << rank;
    }
  }
}

TEST(Groups, AreOpenedAndClosedWithoutADeadlock) {
  const Mesh meshes[] = {
      Mesh({1, 1, 1, 1}, 1, {.count = 2, .chunks = 1}), Mesh({1, 1, 1, 1}, 1, {.count = 2, .chunks = 2}),
      Mesh({1, 1, 1, 1}, 1, {.count = 3, .chunks = 2}), Mesh({1, 1, 1, 1}, 1, {.count = 4, .chunks = 1}),
      Mesh({1, 2, 1, 1}, 1, {.count = 4, .chunks = 3}), Mesh({2, 2, 1, 2}, 2, {.count = 2, .chunks = 2}),
      Mesh({1, 2, 2, 2}, 1, {.count = 1, .chunks = 1}),
  };
  for (const Mesh& mesh : meshes) {
    Lists opened, closed;
    std::map<std::string, int> sizes;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      opened.emplace_back();
      closed.emplace_back();
      const Groups groups = make_groups(mesh, rank, [&](const std::string& name, const std::vector<int>& ranks) {
        opened.back().push_back(name);
        sizes[name] = static_cast<int>(ranks.size());
        const auto place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
        return std::make_unique<LoggedGroup>(name, static_cast<int>(place), sizes[name], closed.back());
      });
    }
    EXPECT_EQ(waiting(opened, sizes), Lists{}) << mesh.ranks() << " ranks, opening";
    EXPECT_EQ(waiting(closed, sizes), Lists{}) << mesh.ranks() << " ranks, closing";
    for (std::size_t rank = 0; rank < opened.size(); ++rank) EXPECT_EQ(opened[rank].size(), closed[rank].size());
  }
}

}  // namespace
}  // namespace octet::parallel

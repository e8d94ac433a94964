#include "octet/base/names.h"

#include <fnmatch.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octet/base/require.h"

namespace octet {
namespace {

TEST(Glob, MatchesWholeNames) {
  EXPECT_TRUE(glob_match("model.layers.*.down_proj", "model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("lm_head", "lm_head"));
  EXPECT_FALSE(glob_match("lm_head", "lm_head.fused"));
  EXPECT_FALSE(glob_match("down_proj", "mlp.down_proj"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("layers.?.x", "layers.3.x"));
  EXPECT_FALSE(glob_match("layers.?.x", "layers.13.x"));
  EXPECT_TRUE(glob_match("model.layers.[01].mlp.*", "model.layers.1.mlp.down_proj"));
  EXPECT_FALSE(glob_match("model.layers.[01].mlp.*", "model.layers.2.mlp.down_proj"));
  EXPECT_TRUE(glob_match("layers.[2-5]", "layers.4"));
  EXPECT_FALSE(glob_match("layers.[!2-5]", "layers.4"));
  EXPECT_TRUE(glob_match("[ab", "[ab"));  // a bracket that is never closed stands for itself
}

TEST(Glob, AgreesWithFnmatchOnAllShortWords) {
  const auto words = [](const std::string& letters, int longest) {
    std::vector<std::string> result = {""};
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (result[i].size() == static_cast<std::size_t>(longest)) break;
      for (const char c : letters) result.push_back(result[i] + c);
    }
    return result;
  };
  const auto compare = [&](const std::string& letters, int longest, const std::vector<std::string>& names) {
    for (const std::string& pattern : words(letters, longest)) {
      for (const std::string& name : names) {
        ASSERT_EQ(glob_match(pattern, name), ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0)
            << "'" << pattern << "' on '" << name << "'";
      }
    }
  };
  compare("ab*?", 4, words("ab", 5));
  compare("ac*[]!-", 6, words("abc", 2));
}

TEST(Glob, ManyStarsStayFast) {
  const std::string pattern = "*a*a*a*a*a*a*a*a*a*a*b", name(20000, 'a');
  EXPECT_FALSE(glob_match(pattern, name));
}

TEST(NearestName, FindsTyposAndLeavesStrangersAlone) {
  const std::vector<std::string> names = {"fp8_delayed", "fp8_current", "fp8_block", "bf16"};
  EXPECT_EQ(nearest_name("fp8_delaid", names), "fp8_delayed");
  EXPECT_EQ(nearest_name("fp8_blok", names), "fp8_block");
  EXPECT_EQ(nearest_name("bf61", names), "bf16");
  EXPECT_EQ(nearest_name("transformer", names), "");
  const std::vector<std::string> things = {"auto", "cpu", "cuda", "H100", "H200"};
  EXPECT_EQ(nearest_name("gpu", things), "");
  EXPECT_EQ(nearest_name("B200", things), "");
  EXPECT_EQ(nearest_name("cpy", things), "cpu");
  EXPECT_EQ(nearest_name("h20", things), "H200");
  EXPECT_EQ(nearest_name("fp16", names), "bf16");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(did_you_mean("fp8_blok", names), " (did you mean fp8_block?)");
  EXPECT_EQ(did_you_mean("transformer", names), "");
  EXPECT_EQ(did_you_mean("fp8", names), " (did you mean fp8_delayed, fp8_current or fp8_block?)");
  EXPECT_EQ(did_you_mean("fp8_b", names), " (did you mean fp8_block?)");
  EXPECT_EQ(did_you_mean("b", names), "");  // a letter is no beginning
  const std::vector<std::string> many = {"layer0", "layer1", "layer2", "layer3", "layer4", "layer5", "layer6"};
  EXPECT_EQ(did_you_mean("layer", many), " (did you mean layer0?)");
}

TEST(NearestName, GivesEachCandidateToTheNearest) {
  const std::vector<std::string> names = {"k_proj", "q_proj", "v_proj", "norm"}, there = {"qproj", "o_proj", "nrm"};
  EXPECT_EQ(nearest_names(names, there), (std::vector<std::string>{"o_proj", "qproj", "", "nrm"}));
  EXPECT_EQ(nearest_names(names, {}), std::vector<std::string>(4));
}

// 100,000 names on either side are 10^10 pairs, too many to compare: the first names still get their suggestions.
TEST(NearestName, HostileNamesCostABoundedTime) {
  std::vector<std::string> missing{"o_porj"}, there{"o_proj"};
  for (int i = 0; i < 100'000; ++i) {
    missing.push_back(concat("missing", i, std::string(100, 'm')));
    there.push_back(concat("there", i, std::string(100, 't')));
  }
  EXPECT_EQ(nearest_names(missing, there).front(), "o_proj");
  EXPECT_EQ(nearest_names(missing, there).back(), "");
  const std::string longest(1'000'000, 'x');
  EXPECT_EQ(nearest_name(longest, std::vector<std::string>{longest + "y"}), "");
}

}  // namespace
}  // namespace octet

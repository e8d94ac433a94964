#include "octet/base/fields.h"

#include <gtest/gtest.h>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "support/errors.h"

namespace octet {
namespace {

struct Leaf {
  int number = 1;
  std::optional<double> maybe;
};
template <FieldsOf<Leaf> R>
void visit_fields(R& r, auto&& visit) {
  visit(Field{.name = "number", .help = "help", .range = {.min = 0, .max = 10, .below_max = true}}, r.number);
  visit(Field{.name = "maybe", .range = kPositive}, r.maybe);
}

struct Parts {
  std::string first = "auto", second = "auto";
};
template <FieldsOf<Parts> R>
void visit_fields(R& r, auto&& visit) {
  visit(Field{.name = "first", .choices = "auto | fast"}, r.first);
  visit(Field{.name = "second", .choices = "auto | fast"}, r.second);
}

struct Tree {
  bool yes = false;
  std::uint64_t big = 0;
  std::int8_t small = 0;
  std::string choice = "auto";
  std::vector<std::string> names;
  std::array<double, 2> pair = {0, 1};
  Leaf leaf;
  std::optional<Leaf> extra;
  std::vector<Leaf> leaves;
  Parts parts;
};
template <FieldsOf<Tree> R>
void visit_fields(R& r, auto&& visit) {
  visit(Field{.name = "yes"}, r.yes);
  visit(Field{.name = "big"}, r.big);
  visit(Field{.name = "small"}, r.small);
  visit(Field{.name = "choice", .choices = "auto | true | false"}, r.choice);
  visit(Field{.name = "names"}, r.names);
  visit(Field{.name = "pair", .range = kFraction}, r.pair);
  visit(Field{.name = "leaf"}, r.leaf);
  visit(Field{.name = "extra"}, r.extra);
  visit(Field{.name = "leaves"}, r.leaves);
  visit(Field{.name = "parts", .single = true}, r.parts);
}

std::string read(const std::string& text, Tree& tree) {
  return testing::error_if_any(ExitCode::config, [&] { read_record(tree, parse_toml(text, "f"), {.name = "f"}, ""); });
}
std::string read(const std::string& text) {
  Tree tree;
  return read(text, tree);
}

TEST(Fields, OneStringStandsForARecordWhoseMembersAreEqual) {
  const auto after = [](const std::string& text) {
    Tree tree;
    EXPECT_EQ(read(text, tree), "");
    return to_toml(*to_node(tree).find("parts"));
  };
  EXPECT_EQ(after(""), "\"auto\"");
  EXPECT_EQ(after("parts = 'fast'"), "\"fast\"");
  EXPECT_EQ(after("parts = { second = 'fast' }"), R"({ first = "auto", second = "fast" })");
  EXPECT_EQ(after("[parts]\nfirst = 'fast'\nsecond = 'fast'"), "\"fast\"");
  EXPECT_EQ(read("parts = 'slow'"), "f:1: parts = \"slow\": must be one of auto | fast");
  EXPECT_EQ(read("parts.first = 'slow'"), "f:1: parts.first = \"slow\": must be one of auto | fast");
  EXPECT_EQ(read("parts = 3"), "f:1: parts = 3: must be a string, not a whole number");
}

TEST(Fields, ReadsEveryKind) {
  Tree tree;
  EXPECT_EQ(read("yes = true\nbig = 9223372036854775807\nsmall = -128\nchoice = true\nnames = ['a', 'b']\npair = [0.5, 1]\n"
                 "leaf.number = 9\n[extra]\nmaybe = 2\n[[leaves]]\n[[leaves]]\nnumber = 3\n",
                 tree),
            "");
  EXPECT_TRUE(tree.yes);
  EXPECT_EQ(tree.big, 9223372036854775807u);
  EXPECT_EQ(tree.small, -128);
  EXPECT_EQ(tree.choice, "true");
  EXPECT_EQ(tree.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(tree.pair, (std::array<double, 2>{0.5, 1.0}));
  EXPECT_EQ(tree.leaf.number, 9);
  ASSERT_TRUE(tree.extra && tree.extra->maybe);
  EXPECT_EQ(*tree.extra->maybe, 2.0);
  ASSERT_EQ(tree.leaves.size(), 2u);
  EXPECT_EQ(tree.leaves[0].number, 1);
  EXPECT_EQ(tree.leaves[1].number, 3);
}

TEST(Fields, WrongTypesAreNamed) {
  EXPECT_EQ(read("yes = 1"), "f:1: yes = 1: must be true or false, not a whole number");
  EXPECT_EQ(read("\nbig = 2.5"), "f:2: big = 2.5: must be a whole number");
  EXPECT_EQ(read("big = -1"), "f:1: big = -1: must be at least 0");
  EXPECT_EQ(read("small = 128"), "f:1: small = 128: must be at least -128 and at most 127");
  EXPECT_EQ(read("choice = 'maybe'"), "f:1: choice = \"maybe\": must be one of auto | true | false");
  EXPECT_EQ(read("choice = 'tru'"), "f:1: choice = \"tru\": must be one of auto | true | false (did you mean true?)");
  EXPECT_EQ(read("names = 'a'"), "f:1: names = \"a\": must be a list, not a string");
  EXPECT_EQ(read("names = ['a', 1]"), "f:1: names = 1: must be a string, not a whole number");
  EXPECT_EQ(read("pair = [0, 0.5, 1]"), "f:1: pair = [0, 0.5, 1]: must be a list of 2");
  EXPECT_EQ(read("pair = [0, 2]"), "f:1: pair = 2: must be at least 0 and at most 1");
  EXPECT_EQ(read("pair = [0, nan]"), "f:1: pair = nan: must be at least 0 and at most 1");
  EXPECT_EQ(read("leaf = 3"), "f:1: leaf = 3: must be a table ([leaf]), not a whole number");
  EXPECT_EQ(read("[leaf]\nnumber = 10"), "f:2: leaf.number = 10: must be at least 0 and below 10");
  EXPECT_EQ(read("[extra]\nmaybe = 0"), "f:2: extra.maybe = 0: must be above 0");
  EXPECT_EQ(read("[leaves]\nnumber = 1"), "f:1: leaves = { number = 1 }: must be a list of tables ([[leaves]]), not a table");
  EXPECT_EQ(read("[[leaves]]\nnunber = 1"), "f:2: leaves.nunber: unknown key");
  EXPECT_EQ(read("\"new\\nline\" = 1"), "f:1: new\\nline: unknown key");
}

TEST(Fields, OverridesMergeIntoWhatIsThere) {
  Tree tree;
  const auto apply = [&](const std::string& text) {
    read_record(tree, parse_toml(text, ""), {.name = "--x", .is_override = true}, "");
  };
  apply("leaves.0.number = 4");
  apply("leaves.1.maybe = 0.5");
  apply("leaves.0.maybe = 0.25");
  ASSERT_EQ(tree.leaves.size(), 2u);
  EXPECT_EQ(tree.leaves[0].number, 4);
  EXPECT_EQ(*tree.leaves[0].maybe, 0.25);
  EXPECT_EQ(tree.leaves[1].number, 1);
  EXPECT_THROW(apply("leaves.3.number = 1"), Error);
  EXPECT_THROW(apply("leaves.x.number = 1"), Error);
}

TEST(Fields, BecomesATreeAndAListOfPaths) {
  Tree tree;
  tree.leaves.emplace_back();
  EXPECT_EQ(to_json(to_node(tree)).dump(),
            R"({"yes":false,"big":0,"small":0,"choice":"auto","names":[],"pair":[0.0,1.0],"leaf":{"number":1},"leaves":[{"number":1}],"parts":"auto"})");
  std::vector<std::string> paths;
  for (const KeyDescription& key : describe_keys<Tree>()) paths.push_back(key.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"yes", "big", "small", "choice", "names", "pair", "leaf.number", "leaf.maybe", "extra.number",
                                             "extra.maybe", "leaves.number", "leaves.maybe", "parts", "parts.first", "parts.second"}));
}

TEST(Fields, KeysAreDescribed) {
  const std::vector<KeyDescription> keys = describe_keys<Tree>();
  const auto text = [&](std::size_t i) {
    const KeyDescription& key = keys.at(i);
    return key.option + " | " + key.type + " | " + key.default_value + " | " + describe(key.field.range);
  };
  EXPECT_EQ(text(0), "yes | true or false | false | ");
  EXPECT_EQ(text(2), "small | whole number | 0 | ");
  EXPECT_EQ(text(3), "choice | string | \"auto\" | ");
  EXPECT_EQ(text(4), "names | list of strings | [] | ");
  EXPECT_EQ(text(5), "pair | 2 numbers | [0.0, 1.0] | at least 0 and at most 1");
  EXPECT_EQ(text(6), "leaf.number | whole number | 1 | at least 0 and below 10");
  EXPECT_EQ(text(9), "extra.maybe | number |  | above 0");
  EXPECT_EQ(text(10), "leaves.0.number | whole number | 1 | at least 0 and below 10");
  EXPECT_EQ(keys[6].field.help, "help");
  EXPECT_EQ(cut_choices("auto | true | false"), (std::vector<std::string>{"auto", "true", "false"}));
}

}  // namespace
}  // namespace octet

// Tests `octet manual` and `octet completion`. tools/reference.py (the test docs.reference) compares the pages of docs/reference
// with the output.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "octet/base/file.h"
#include "support/paths.h"
#include "support/program.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// Returns the output of a shell command, or "" if it fails.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return "";
  std::string text;
  std::array<char, 4096> buffer{};
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  return ::pclose(pipe) == 0 ? text : "";
}
bool has(const std::string& program) { return !output_of("command -v " + program).empty(); }

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  std::sort(result.begin(), result.end());
  return result;
}

using Cases = std::map<std::string, std::vector<std::string>>;  // the line before the cursor -> the sorted words that are offered

// A fixture with a folder whose files and folders can be completed.
class Completion : public ::testing::Test {
 protected:
  Completion() {
    fs::create_directories(folder_ / "corpora");
    std::ofstream(folder_ / "run.toml") << "";
    for (const char* name : {"a.bin", "a.idx", "a.loss.idx", "a.json"}) std::ofstream(folder_ / "corpora" / name) << "";
    std::ofstream(folder_ / "notes.txt") << "";
  }
  void write_script(const std::string& shell) {
    const ProgramResult result = run_program("completion " + shell);
    ASSERT_EQ(result.code, 0) << result.err;
    std::ofstream(folder_ / "octet.completion") << result.out;
  }
  // `script` sources the completion and gets the line as its argument. It prints the offered words in one line.
  void expect(const std::string& shell, const std::string& script, const Cases& cases) {
    write_script(shell);
    std::ofstream(folder_ / "drive") << script;
    for (const auto& [line, offered] : cases) {
      const std::string command = "cd '" + folder_.path().string() + "' && " + shell + " ./drive '" + line + "'";
      EXPECT_EQ(words(output_of(command)), offered) << shell << ": " << line;
    }
  }

  TemporaryFolder folder_;
};

const Cases& common_cases() {
  static const Cases cases = {
      {"octet tr", {"train"}},
      {"octet data ", {"inspect", "prepare"}},
      {"octet data prepare --format j", {"jsonl"}},
      {"octet data prepare --format=j", {"--format=jsonl"}},
      {"octet completion ", {"bash", "fish", "zsh"}},
      {"octet train ru", {"run.toml"}},
      {"octet train run.toml --dr", {"--dry-run"}},
      {"octet train run.toml --training.steps", {"--training.steps="}},
      {"octet train run.toml --precision.recipe=fp8_b", {"--precision.recipe=fp8_block"}},
      {"octet train run.toml --precision.emulate=", {"--precision.emulate=false", "--precision.emulate=true"}},
      {"octet train run.toml --model.config=llama3.1-8", {"--model.config=llama3.1-8b"}},
      {"octet doctor --training.st", {}},
      {"octet probe --recipe mx", {"mxfp8"}},
      {"octet compare run.toml --recipes bf16,fp8_b", {"bf16,fp8_block"}},
      {"octet launch -n 2 -- tra", {"train"}},
      {"octet launch -n 2 -- train run.toml --training.steps", {"--training.steps="}},
      {"octet launch -n 2 -- train run.toml --dr", {"--dry-run"}},
      {"octet quantize --recipe bf", {}},
      {"octet quantize --recipe mx", {"mxfp8"}},
      {"octet generate --prompt ", {}},
      {"octet data prepare --chat qw", {"qwen3"}},
      {"octet generate --model m --chat au", {"auto"}},
      {"octet compare run.toml --recipes al", {"all"}},
      {"octet manual conf", {"configuration"}},
      {"octet manual configuration prec", {"precision"}},
      {"octet manual files run", {"run.json"}},
  };
  return cases;
}

// Returns the parts after `=`, because readline replaces only these.
std::vector<std::string> after_equals(std::vector<std::string> offered) {
  for (std::string& word : offered) {
    if (word.back() != '=') word = word.substr(word.find('=') + 1);
  }
  return offered;
}

TEST_F(Completion, Bash) {
  Cases cases;
  for (const auto& [line, offered] : common_cases()) cases[line] = after_equals(offered);
  cases["octet convert export --checkpoint corp"] = {"corpora"};  // folders only
  cases["octet train "] = {"corpora", "run.toml"};
  cases["octet data inspect corpora/"] = {"corpora/a"};
  cases["octet train run.toml --data.source.0.path=corpora/"] = {"corpora/a"};
  cases["octet compare run.toml --recipes bf16,fp32,bf"] = {};
  cases["octet train run.toml --run.output_dir=corp"] = {"corpora"};
  expect("bash", "source ./octet.completion\nCOMP_LINE=$1 COMP_POINT=${#1}\n_octet\necho \"${COMPREPLY[*]}\"\n", cases);
  // If `=` does not separate words, the whole word is replaced.
  expect("bash", "source ./octet.completion\nCOMP_WORDBREAKS=' '\nCOMP_LINE=$1 COMP_POINT=${#1}\n_octet\necho \"${COMPREPLY[*]}\"\n",
         common_cases());
}

TEST_F(Completion, Fish) {
  if (!has("fish")) GTEST_SKIP() << "no fish";
  Cases cases = common_cases();
  cases["octet convert export --checkpoint corp"] = {"corpora/"};
  cases["octet train run.toml --run.output_dir=corp"] = {"--run.output_dir=corpora/"};
  expect("fish", "source ./octet.completion\ncomplete -C $argv[1] | string split -f1 \\t\ntrue\n", cases);
}

// zsh completes only in its line editor. This test checks that the script can be read and registers itself.
TEST_F(Completion, ZshRegistersItself) {
  if (!has("zsh")) GTEST_SKIP() << "no zsh";
  write_script("zsh");
  const std::string command = "cd '" + folder_.path().string() +
                              "' && zsh -f -c 'autoload -U compinit; compinit -u -D; source ./octet.completion; print ${_comps[octet]}; "
                              "whence -w _octet'";
  EXPECT_EQ(output_of(command), "_octet\n_octet: function\n");
}

TEST(Manual, PrintsOnePartOfATopicOrAll) {
  const std::string all = run_program("manual configuration").out;
  const std::string precision = run_program("manual configuration precision").out;
  EXPECT_EQ(precision.rfind("## `[precision]`\n", 0), 0u) << precision;
  EXPECT_NE(all.find(precision), std::string::npos);
  EXPECT_EQ(run_program("manual").out, run_program("manual commands").out);
  EXPECT_NE(run_program("manual commands data prepare").out.find("## `octet data prepare`\n"), std::string::npos);
  EXPECT_TRUE(refused(run_program("manual commands trian"), 2, "`trian`", "(did you mean train?)"));
  EXPECT_TRUE(refused(run_program("manual configuration precisoin"), 2, "(did you mean precision?)"));
  EXPECT_TRUE(refused(run_program("manual files metrics"), 2, "`metrics`"));
  EXPECT_TRUE(refused(run_program("manual exit-codes 2"), 2, "`2`"));
  EXPECT_TRUE(refused(run_program("manual history"), 2, "`history` must be one of commands | configuration | files | exit-codes"));
  EXPECT_TRUE(refused(run_program("manual files --output x"), 2, "--output"));
}

// Reads the codes from the source, so that a new code cannot be missing on the page.
TEST(Manual, EveryExitCodeIsExplained) {
  const std::string header = read_file(fs::path(source_dir()) / "src/octet/base/require.h");
  const std::size_t begin = header.find("enum class ExitCode");
  const std::string body = header.substr(begin, header.find("};", begin) - begin);
  const std::string page = run_program("manual exit-codes").out;
  const std::regex code("= (\\d+),");
  int codes = 0;
  for (auto it = std::sregex_iterator(body.begin(), body.end(), code); it != std::sregex_iterator(); ++it, ++codes) {
    EXPECT_NE(page.find("\n| " + (*it)[1].str() + " | "), std::string::npos) << (*it)[1];
  }
  EXPECT_GE(codes, 9);
  EXPECT_EQ(count_lines(page), codes + 3) << "two lines of heading and an empty one at the end\n" << page;
}

TEST(Manual, WritesManPagesAndCompletions) {
  const TemporaryFolder folder;
  const ProgramResult written = run_program("manual --output share", folder.path());
  ASSERT_EQ(written.code, 0) << written.err;
  const auto read = [&](const std::string& path) { return read_file(folder / "share" / path); };
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string path = shell == std::string("bash")  ? "bash-completion/completions/octet"
                             : shell == std::string("zsh") ? "zsh/site-functions/_octet"
                                                           : "fish/vendor_completions.d/octet.fish";
    EXPECT_EQ(read(path), run_program(std::string("completion ") + shell).out);
  }
  EXPECT_EQ(read("zsh/site-functions/_octet").rfind("#compdef octet\n", 0), 0u) << "compinit looks for this line";
  EXPECT_NE(read("man/man1/octet-data-prepare.1").find("\\-\\-duplicates"), std::string::npos);
  EXPECT_NE(read("man/man5/octet-configuration.5").find("activation_checkpoint.mode"), std::string::npos);
  std::ofstream(folder / "mine") << "kept";
  EXPECT_EQ(run_program("manual --output mine/share", folder.path()).code, 2) << "a file is in the way";
  EXPECT_EQ(read_file(folder / "mine"), "kept");

  if (!has("mandoc")) GTEST_SKIP() << "no mandoc";
  // The pages have no date, so that the same program always prints the same pages.
  const std::string lint = "cd '" + folder.path().string() + "/share/man' && { mandoc -T lint -W warning */* || true; } "
                           "| grep -v 'missing date' || echo clean";
  EXPECT_EQ(output_of(lint), "clean\n");
}

}  // namespace
}  // namespace octet::testing

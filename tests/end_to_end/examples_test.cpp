// Runs the example of every command as it stands, and checks that docs/reference/files.md lists the files that a run leaves.
#include <set>
#include <sstream>

#include "octet/base/file.h"
#include "octet/base/names.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

using Example = std::vector<std::string>;  // command lines

// Returns what stands under each "Example:" of `octet manual commands` in order. Later ones may read what earlier ones wrote.
std::vector<Example> examples() {
  const std::string page = run_program("manual commands").out, begin = "Example:\n\n```sh\n";
  std::vector<Example> examples;
  for (std::size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at + 1)) {
    const std::size_t first = at + begin.size(), last = page.find("```", first);
    std::istringstream block(page.substr(first, last - first));
    Example& example = examples.emplace_back();
    for (std::string line; std::getline(block, line);) example.push_back(line);
  }
  return examples;
}

// These commands measure speed for minutes or on a GPU, or depend on the machine. Other tests run them.
bool is_left_out(const std::string& example) { return example.rfind("octet bench ", 0) == 0 || example == "octet doctor"; }

void replace(std::string& text, const std::string& before, const std::string& after) {
  const std::size_t at = text.find(before);
  ASSERT_NE(at, std::string::npos) << before;
  text.replace(at, before.size(), after);
}

// Writes the repository's configurations, a small model of the quickstart, and texts.
void fill(const fs::path& folder) {
  fs::create_directories(folder / "configs");
  fs::create_directories(folder / "my-texts");
  fs::copy_file(fs::path(source_dir()) / "configs" / "llama3.1-8b.toml", folder / "configs" / "llama3.1-8b.toml");
  fs::copy_file(fs::path(golden_dir()) / "llama" / "mha" / "tokens.safetensors", folder / "tokens.safetensors");
  std::string toml = read_file(fs::path(source_dir()) / "configs" / "quickstart.toml");
  replace(toml, "hidden_size = 192", "hidden_size = 32");
  replace(toml, "intermediate_size = 512", "intermediate_size = 64");
  replace(toml, "num_attention_heads = 6", "num_attention_heads = 2");
  replace(toml, "seq_len = 128", "seq_len = 16");
  replace(toml, "sequences = 64", "sequences = 8");
  write_text(folder / "configs" / "quickstart.toml", toml);
  int number = 0;
  for (const std::string& text : tiny_documents(40)) write_text(folder / "my-texts" / (std::to_string(number++) + ".txt"), text);
}

int run_examples(const std::vector<Example>& examples, const fs::path& folder) {
  int run = 0;
  for (const Example& example : examples) {
    for (const std::string& line : example) {
      EXPECT_EQ(line.rfind("octet ", 0), 0u) << line;
      if (is_left_out(line)) continue;
      const ProgramResult result = run_program(line.substr(6), folder, "export HOME=\"$PWD\"; exec");
      EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
      ++run;
    }
  }
  return run;
}

// The example of `octet` itself needs nothing but texts. Those of its commands run after ./quickstart, which leaves a comparison
// in out/quickstart. No example may put a run into that folder, because the report would then show the run alone.
TEST(Examples, RunAsTheyStand) {
  std::vector<Example> all = examples();
  ASSERT_GE(all.size(), 20u);
  const TemporaryFolder fresh, used;
  fill(fresh.path());
  EXPECT_EQ(run_examples({all.front()}, fresh.path()), 3);

  fill(used.path());
  for (const char* command :
       {"data prepare --input my-texts --output out/quickstart/corpus",
        "compare configs/quickstart.toml --recipes bf16,fp8_delayed --output out/quickstart --training.steps=20"})
    ASSERT_EQ(run_program(command, used.path()).code, 0) << command;
  all.erase(all.begin());
  EXPECT_GE(run_examples(all, used.path()), 20);
  EXPECT_FALSE(fs::exists(used / "out/quickstart/run.json"));
}

// Every file that a run leaves matches a row of docs/reference/files.md, and every row matches a file. Other tests see
// what this run does not leave: a tokenizer, which a model directory must bring, a lock, a damaged checkpoint, and what several
// hosts leave.
TEST(Files, OfARunAreOnTheirPage) {
  const std::string page = read_file(fs::path(source_dir()) / "docs" / "reference" / "files.md");
  std::map<std::string, int> rows;  // a pattern and the number of files that match it
  std::istringstream lines(page.substr(0, page.find("octet data prepare")));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| `", 0) == 0) rows[line.substr(3, line.find('`', 3) - 3)] = 0;
  }
  ASSERT_GE(rows.size(), 10u);
  const TinyRun run;
  ASSERT_EQ(run.train("--training.steps=4").code, 0);
  const ProgramResult second = run.run(
      "launch -n 1 --supervise -- train run.toml --training.steps=4 --resume none --run.set_aside=true "
      "--model.model_type=mixtral "
      "--model.num_local_experts=2 --model.num_experts_per_tok=1");
  ASSERT_EQ(second.code, 0) << second.err;
  ASSERT_EQ(run.run("report out").code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(run / "out")) {
    if (entry.is_directory()) continue;
    const std::string name = fs::relative(entry.path(), run / "out").string();
    bool known = false;
    for (auto& [pattern, files] : rows) {
      if (!glob_match(pattern, name)) continue;
      known = true;
      ++files;
    }
    EXPECT_TRUE(known) << name << " is not on docs/reference/files.md";
  }
  const std::set<std::string> others = {
      "checkpoints/tokenizer/*", "checkpoints/damaged/*", "run.lock",    ".token",
      "logs/node-*.log",         "stragglers.jsonl",      "remote.json", "remote-abandoned.json",
      "run.json.damaged*"};
  for (const auto& [pattern, files] : rows) EXPECT_EQ(files > 0, !others.contains(pattern)) << pattern;
}

}  // namespace
}  // namespace octet::testing

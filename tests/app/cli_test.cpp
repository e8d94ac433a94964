// Uses the command line as a user would.
#include <gtest/gtest.h>

#include <array>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/train/version.h"
#include "support/program.h"

namespace octet {
namespace {

using octet::testing::ProgramResult;
using octet::testing::run_program;
using octet::testing::TemporaryFolder;

const std::string kModel = "[model]\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2\nvocab_size = 256\n";

void expect_error(const std::string& arguments, int code, const std::string& message) {
  const ProgramResult result = run_program(arguments);
  EXPECT_EQ(result.code, code) << arguments;
  EXPECT_EQ(result.err, "octet" + message + "\n") << arguments;
  EXPECT_EQ(result.out, "") << arguments;
}

TEST(CommandLine, AloneItExplainsItself) {
  for (const char* arguments : {"", "--help", "-h"}) {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
    for (const char* text : {"octet data prepare --input", "octet train configs/quickstart.toml", "doctor", "compare", "quantize"}) {
      EXPECT_NE(result.out.find(text), std::string::npos) << text;
    }
  }
  EXPECT_EQ(run_program("--version").out, concat("octet ", train::version(), " (commit ", train::commit(), ")\n"));
}

// The manual lists the commands.
TEST(CommandLine, HelpIsAnotherWayToAskForHelp) {
  EXPECT_EQ(run_program("help").out, run_program("--help").out);
  EXPECT_EQ(run_program("help data prepare").out, run_program("data prepare --help").out);
  EXPECT_TRUE(refused(run_program("help trian"), 2, "unknown command `trian`", "(did you mean train?)"));
  EXPECT_TRUE(refused(run_program("help data inspekt"), 2, "unknown command `inspekt`", "(did you mean inspect?)"));
  EXPECT_EQ(run_program("help train --help").out, run_program("train --help").out);
  expect_error("help train foo", 2, " train: unexpected argument `foo`. See `octet train --help`.");
  expect_error("--version x", 2, ": `--version` takes no other arguments");
  EXPECT_NE(run_program("help launch").out.find("Usage: octet launch -n N|auto [OPTIONS] -- COMMAND [ARGUMENT...]\n"), std::string::npos);
}

TEST(CommandLine, EveryCommandHasHelpWithAnExample) {
  const std::string page = run_program("manual commands").out;
  int commands = 0;
  for (std::size_t at = page.find("## `octet"); at != std::string::npos; at = page.find("## `octet", at + 1), ++commands) {
    const std::string name = page.substr(at + 4, page.find('`', at + 4) - at - 4);
    const ProgramResult result = run_program(name.substr(5) + " --help");
    EXPECT_EQ(result.code, 0) << name;
    EXPECT_NE(result.out.find("\nUsage: " + name), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("\nExample:\n  octet "), std::string::npos) << name;
    for (std::size_t line = 0, end; line < result.out.size(); line = end + 1) {
      end = result.out.find('\n', line);
      const std::string text = result.out.substr(line, end - line);
      EXPECT_TRUE(text.size() <= 100 || text.find("octet ") != std::string::npos) << name << ": a line of more than 100 characters:\n" << text;
    }
  }
  EXPECT_GE(commands, 29);
  for (const char* group : {"data", "bench", "convert"}) {
    const ProgramResult result = run_program(group);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out, run_program(std::string(group) + " --help").out);
  }
  EXPECT_NE(run_program("train --help").out.find("--section.key=value"), std::string::npos);
}

TEST(CommandLine, UnknownNamesSuggestTheNearest) {
  expect_error("trian", 2, ": unknown command `trian` (did you mean train?)");
  expect_error("data inspct", 2, " data: unknown command `inspct` (did you mean inspect?)");
  expect_error("data frobnicate", 2, " data: unknown command `frobnicate`. See `octet data --help`.");
  expect_error("version", 2, ": unknown command `version` (did you mean --version?)");
  expect_error("-v", 2, ": unknown option `-v` (did you mean --version?)");
  expect_error("-q", 2, ": unknown option `-q`. See `octet --help`.");
  for (const char* option : {"--steps=5", "--steps", "--step=1"})
    expect_error(std::string("train a.toml ") + option, 2, std::string(" train: unknown option `") + option + "` (did you mean --training.steps?)");
  expect_error("train a.toml --learning_rate=1", 2, " train: unknown option `--learning_rate=1` (did you mean --optimizer.lr?)");
  expect_error("train a.toml --hybrid_shard_degree=2", 2,
               " train: unknown option `--hybrid_shard_degree=2` (did you mean --parallel.shard?)");
  expect_error("train a.toml --delayed_param=true", 2,
               " train: unknown option `--delayed_param=true` (octet always creates parameters shard by shard)");
  expect_error("compare a.toml --recipe bf16", 2, " compare: unknown option `--recipe` (did you mean --recipes?)");
  expect_error("train --dryrun", 2, " train: unknown option `--dryrun` (did you mean --dry-run?)");
  expect_error("probe --modle x", 2, " probe: unknown option `--modle` (did you mean --model?)");
  expect_error("train a.toml b.toml", 2, " train: unexpected argument `b.toml`. See `octet train --help`.");
  expect_error("train a.toml --verbose", 2,
               " train: unknown option `--verbose`. Keys of the run have the form `--section.key=value`. See `octet train --help`.");
  expect_error("doctor --precision.recipe=x", 2, " doctor: unknown option `--precision.recipe=x`. See `octet doctor --help`.");
  expect_error("train \"$(printf 'a\\nb')\" c", 2, " train: unexpected argument `c`. See `octet train --help`.");
  expect_error("train c \"$(printf 'a\\nb')\"", 2, " train: unexpected argument `a\\nb`. See `octet train --help`.");
}

// The error must be the same wherever the file stands. The parser alone would take 5 for the file.
TEST(CommandLine, KeysTakeTheirValueWithAnEqualsSign) {
  const std::string message = " train: unexpected argument `5`. Options take a value with `=`: `--training.steps=5`.";
  for (const char* arguments : {"train a.toml --training.steps 5", "train --training.steps 5 a.toml", "train --training.steps 5"})
    expect_error(arguments, 2, message);
}

TEST(CommandLine, MissingAndWrongArguments) {
  expect_error("train", 2, " train: RUN.toml is required. See `octet train --help`.");
  expect_error("data prepare --input x", 2, " data prepare: --output is required. See `octet data prepare --help`.");
  expect_error("train none.toml", 2, ": none.toml: No such file or directory");
  expect_error("generate --model x --prompt y --max-tokens many", 2,
               " generate: --max-tokens: `many` must be a whole number. See `octet generate --help`.");
  expect_error("generate --model x --prompt y --max-tokens 2.5", 2,
               " generate: --max-tokens: `2.5` must be a whole number. See `octet generate --help`.");
  expect_error("generate --model x --prompt y --max-tokens 0", 2,
               " generate: --max-tokens: `0` must be at least 1. See `octet generate --help`.");
  expect_error("generate --model x --prompt y --seed=-1", 2, " generate: --seed: `-1` must be at least 0. See `octet generate --help`.");
  expect_error("generate --model x --prompt y --temperature warm", 2,
               " generate: --temperature: `warm` must be a number. See `octet generate --help`.");
  expect_error("generate --model x --prompt y --seed 99999999999999999999", 2,
               " generate: --seed: `99999999999999999999` is too large. See `octet generate --help`.");
  expect_error("quantize --input x --recipe fp8_block --role weight --output y --scale nan", 2,
               " quantize: --scale: `nan` must be finite. See `octet quantize --help`.");
  for (const auto& [arguments, command, option] :
       std::vector<std::array<const char*, 3>>{{"train ''", "train", "RUN.toml"},
                                               {"train a.toml --resume ''", "train", "--resume"},
                                               {"eval a.toml --checkpoint ''", "eval", "--checkpoint"},
                                               {"generate --prompt x --model ''", "generate", "--model"},
                                               {"status ''", "status", "DIR"},
                                               {"report a ''", "report", "DIR"},
                                               {"data inspect ''", "data inspect", "PREFIX"},
                                               {"data prepare --output x --input ''", "data prepare", "--input"}}) {
    expect_error(arguments, 2,
                 concat(" ", command, ": ", option,
                        ": the path is empty; perhaps a variable of the shell is not set. See `octet ", command, " --help`."));
  }
  expect_error("launch --hosts '' -n 1 --supervise -- train run.toml", 2,
               " launch: --hosts: the list is empty; perhaps a variable of the shell is not set. See `octet launch --help`.");
  expect_error("data prepare --chat --input x --output y", 2, " data prepare: `--chat` needs a value: --chat=TEMPLATE");
  expect_error("convert export --checkpoint x --output y --adapter --dtype fp8", 2,
               " convert export: --dtype excludes --adapter. See `octet convert export --help`.");
  expect_error("plan a.toml --gpus 8xH100 --picture x.png", 2, ": --picture=x.png: the name must end in .svg");
  expect_error("compare a.toml --recipes bf16,fp32,bf16", 2,
               ": --recipes: bf16 is given twice; each recipe is trained once, with --gpus on each number of ranks");
  expect_error("compare a.toml --recipes bf16 --gpus 1,x", 2,
               " compare: --gpus: `x` must be a whole number. See `octet compare --help`.");
  expect_error("train a.toml --until 3 --until 4", 2,
               " train: `--until` is given more than once; give it once. See `octet train --help`.");
  expect_error("data prepare --input x --output y --format josnl", 2,
               " data prepare: --format: `josnl` must be one of auto | text | jsonl | llmc | nanogpt (did you mean jsonl?). See `octet data "
               "prepare --help`.");
}

TEST(CommandLine, NothingIsLeftOutInSilence) {
  for (const char* rest : {"train a.toml -- --training.steps=2", "report a -- --json", "status -- a"}) {
    const std::string name = std::string(rest).substr(0, std::string(rest).find(' '));
    expect_error(
        rest, 2,
        concat(" ", name,
               ": unexpected argument `--`. Leave it out: only `octet launch` has one, before the command of the ranks."));
  }
  for (const char* recipes : {"bf16,,", ",bf16", "bf16,,fp32"}) {
    expect_error(concat("compare a.toml --recipes ", recipes), 2,
                 concat(" compare: --recipes: `", recipes, "` has an empty element. See `octet compare --help`."));
  }
  expect_error("compare a.toml --recipes bf16 --gpus=1,", 2,
               " compare: --gpus: `1,` has an empty element. See `octet compare --help`.");
  expect_error("train a.toml --dry-run=now", 2, " train: `--dry-run=now`: --dry-run takes no value. See `octet train --help`.");
  const TemporaryFolder folder;
  const std::string text = folder.write("a.txt", "text").string(), prefix = (folder.path() / "corpus").string();
  expect_error("data prepare --input " + text + " --field body --output " + prefix, 2,
               ": --field body: no input is JSONL or Parquet; leave it out, or give --format jsonl");
  EXPECT_EQ(run_program("data prepare --input " + text + " --output " + prefix).code, 0);
}

TEST(CommandLine, MistakesNameWhatWasTyped) {
  const TemporaryFolder folder;
  const std::string run = folder.write("run.toml", kModel + "[[data.source]]\npath = \"corpus\"\n").string();
  expect_error("train " + run + " --checkpoint.remote=foo", 2,
               ": " + run + ": checkpoint.remote = \"foo\": must be s3://BUCKET/PREFIX");
  expect_error("train " + run + " --comm.interface=10.0.0.0/99", 2,
               ": comm.interface = 10.0.0.0/99: must be the name of an interface or a range of addresses such as 10.0.0.0/8");
  const std::string probe = "probe --model x --tokens y --recipe bf16 --output " + (folder.path() / "z").string();
  expect_error(probe + " --set foo=1", 2, ": --set foo=1: foo: unknown key");
  expect_error(probe + " --set foo", 2, ": --set foo: must be --set section.key=value");
}

// A measurement takes minutes; it must not end without a place for its numbers.
TEST(CommandLine, BenchmarksLookForTheFolderOfTheirNumbersFirst) {
  expect_error(
      "bench gemm --json absent/x.json", 2,
      " bench gemm: --json: absent: cannot write to this folder: No such file or directory. See `octet bench gemm --help`.");
}

TEST(CommandLine, SizesAreReadAsPeopleWriteThem) {
  for (const char* option : {"convert import --input x --output y --max-shard-size", "data prepare --input x --output y --max-output"}) {
    const std::string command = std::string(option).substr(0, std::string(option).find(" --")), name = std::string(option).substr(std::string(option).rfind("--"));
    expect_error(std::string(option) + " 5QQ", 2,
                 " " + command + ": " + name + ": `5QQ` must be a number of bytes with or without a unit, such as 500MB, 5GB or 4GiB. See `octet " +
                     command + " --help`.");
    expect_error(std::string(option) + " 0", 2, " " + command + ": " + name + ": `0` must be at least 1. See `octet " + command + " --help`.");
  }
}

TEST(CommandLine, PathsAreNoUrls) {
  for (const std::string arguments :
       {"data prepare --input c --output s3://b", "train s3://b", "report s3://b", "report x --output s3://b",
        "convert import --input x --output s3://b", "compare a.toml --recipes bf16 --output s3://b", "bench gemm --json s3://b",
        "plan a.toml --gpus 8xH100 --picture s3://b", "quantize --input s3://b --recipe fp8_block --role weight --output y",
        "manual --output s3://b"}) {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_NE(result.err.find("`s3://b`: s3:// is not supported; give a path of a file system that is mounted here"), std::string::npos)
        << arguments << ": " << result.err;
  }
}

TEST(CommandLine, KeysOfTheRunAreOptions) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "run.toml") << kModel << "[optimizer]\nlr = 1.0\n";
  const ProgramResult result =
      run_program("train run.toml --print-config --optimizer.lr=0.5 '--run.name=a b' --precision.skip=x,y", folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* line : {"lr = 0.5 ", "name = \"a b\"", "skip = [\"x\", \"y\"]", "hidden_size = 32", "keep_latest_k = 3"}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << "\n" << result.out;
  }
  std::ofstream(folder.path() / "printed.toml") << result.out;
  EXPECT_EQ(run_program("train printed.toml --print-config", folder.path()).out, result.out);

  const auto error = [&](const std::string& option) { return run_program("train run.toml " + option, folder.path()); };
  EXPECT_EQ(error("--optimizer.learning_rate=1").err,
            "octet: --optimizer.learning_rate=1: optimizer.learning_rate: unknown key (did you mean optimizer.lr?)\n");
  EXPECT_EQ(error("--optimizer.lr").err, "octet: --optimizer.lr: must be --section.key=value\n");
  EXPECT_EQ(error("--optimizer.lr=x").err, "octet: --optimizer.lr=x: must be a number, not a string\n");
  EXPECT_EQ(error("--optimizer.lr=x").code, 2);
  EXPECT_EQ(error("--optimizer.lr=inf").err, "octet: --optimizer.lr=inf: must be at least 0 and at most 1e+30\n");
  EXPECT_EQ(error("--training.steps=1.5").err, "octet: --training.steps=1.5: must be a whole number\n");
  EXPECT_EQ(error("--training.steps=true").err, "octet: --training.steps=true: must be a whole number, not true or false\n");
  EXPECT_EQ(error("--run.seed=99999999999999999999").err,
            "octet: --run.seed=99999999999999999999: too large for a number of 64 bits\n");
}

TEST(CommandLine, MistakesInTheFileNameFileAndLine) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "run.toml") << "[optimizer]\nlearning_rate = 1.0\n";
  const ProgramResult result = run_program("train run.toml", folder.path());
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "octet: run.toml:2: optimizer.learning_rate: unknown key (did you mean optimizer.lr?)\n");
}

TEST(Data, PreparesAndInspects) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "a.txt") << "Hello, corpus.";
  std::ofstream(folder.path() / "b.jsonl") << "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const ProgramResult prepared = run_program("data prepare --input a.txt b.jsonl --output c --json", folder.path());
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_EQ(prepared.err, "");
  EXPECT_EQ(json_of(prepared.out)["documents"], 3);
  EXPECT_EQ(json_of(prepared.out)["tokens"], 20);
  const ProgramResult inspected = run_program("data inspect c --json", folder.path());
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_EQ(json_of(inspected.out)["documents"], 3);
  EXPECT_NE(run_program("data inspect c", folder.path()).out.find("Hello, corpus."), std::string::npos);

  EXPECT_EQ(run_program("data prepare --input none --output d", folder.path()).code, 76);
  EXPECT_EQ(run_program("data inspect none", folder.path()).code, 76);
  std::filesystem::resize_file(folder.path() / "c.idx", 30);
  const ProgramResult broken = run_program("data inspect c", folder.path());
  EXPECT_EQ(broken.code, 76);
  EXPECT_NE(broken.err.find("c.idx"), std::string::npos);
}

TEST(Report, DrawsOneRunAndSeveral) {
  const TemporaryFolder folder;
  for (const char* name : {"fp8_block", "bf16"}) {
    std::filesystem::create_directories(folder.path() / "runs" / name);
    std::ofstream file(folder.path() / "runs" / name / "metrics.jsonl");
    for (int step = 1; step <= 20; ++step) {
      file << R"({"step":)" << step << R"(,"loss":)" << 5.0 / step << R"(,"tokens_per_s_per_gpu":1000})" << "\n";
    }
  }
  const ProgramResult several = run_program("report runs", folder.path());
  EXPECT_EQ(several.code, 0) << several.err;
  EXPECT_NE(several.out.find("report: runs/report.html"), std::string::npos) << several.out;
  EXPECT_LT(several.out.find("bf16"), several.out.find("fp8_block")) << several.out;  // the baseline comes first
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "runs" / "report.html"));
  EXPECT_EQ(json_of(run_program("report runs --json", folder.path()).out)["rows"].size(), 2u);
  EXPECT_EQ(run_program("report runs --baseline fp8_block", folder.path()).code, 0);
  const ProgramResult wrong = run_program("report runs --baseline fp8_blcok", folder.path());
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "octet: --baseline=fp8_blcok: no run has this name (did you mean fp8_block?)\n");
  EXPECT_EQ(run_program("report runs --baseline x", folder.path()).err,
            "octet: --baseline=x: no run has this name; there are bf16, fp8_block\n");
  EXPECT_EQ(run_program("report runs --output runs/bf16/metrics.jsonl/x", folder.path()).code, 2);
  EXPECT_EQ(run_program("report runs/bf16 --output one", folder.path()).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "one" / "report.html"));
  EXPECT_EQ(run_program("report none", folder.path()).err,
            "octet: none: no such folder; give the folder of a run, or one that holds several\n");
  std::filesystem::create_directories(folder.path() / "empty");
  const ProgramResult empty = run_program("report empty", folder.path());
  EXPECT_EQ(empty.code, 76);
  EXPECT_EQ(empty.err, "octet: empty: no metrics.jsonl here or in a folder below; give the folder of a run\n");
}

// If output cannot be written, the program fails instead of staying silent.
TEST(CommandLine, AFullStdoutIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  for (const auto& [command, why] : {std::pair("--help", ""), std::pair("manual", ": No space left on device")}) {
    const ProgramResult result = run_program(concat(command, " >/dev/full"));
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.err, concat("octet: cannot write to stdout", why, "\n"));
  }
}

}  // namespace
}  // namespace octet

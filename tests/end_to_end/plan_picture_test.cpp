// `octet plan --picture` and `--schedule`, and the pictures of them in docs/.
#include <regex>
#include <sstream>
#include <tuple>

#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

class PlanPicture : public ::testing::Test {
 protected:
  ProgramResult plan(const std::string& options) const {
    return run_.run("plan run.toml --gpus 4xH100 --training.micro_batch_size=1 --training.global_batch_size=8 " + options);
  }
  TinyRun run_;
};

std::map<std::string, std::size_t> bytes_of(const std::string& svg) {
  const std::regex form("<title>([^:<]+): ([0-9,]+) bytes</title>");
  std::map<std::string, std::size_t> bytes;
  for (std::sregex_iterator match(svg.begin(), svg.end(), form), end; match != end; ++match) {
    std::string digits = (*match)[2];
    std::erase(digits, ',');
    bytes[(*match)[1]] = std::stoull(digits);
  }
  return bytes;
}

TEST_F(PlanPicture, HasTheBytesOfThePlan) {
  const ProgramResult result = plan("--picture memory.svg --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json memory = json_of(result.out)["memory_bytes"];
  std::map<std::string, std::size_t> bytes = bytes_of(read_file(run_ / "memory.svg"));
  std::size_t sum = 0;
  for (const auto& [name, amount] : bytes) sum += amount;
  EXPECT_EQ(sum, memory["needed"].get<std::size_t>());
  for (const char* name : {"weights", "master weights", "moments", "gradients", "activations", "workspace", "state"}) {
    EXPECT_EQ(bytes[name], memory[name].get<std::size_t>()) << name;
  }
  EXPECT_EQ(bytes["CUDA"], memory["context"].get<std::size_t>());
  EXPECT_EQ(bytes["NCCL"], memory["nccl"].get<std::size_t>());
}

TEST_F(PlanPicture, ReplacesItsOwnPictureAndNoOtherFile) {
  ASSERT_EQ(plan("--picture memory.svg").code, 0);
  const std::string first = read_file(run_ / "memory.svg");
  ASSERT_EQ(plan("--picture memory.svg --optimizer.state_dtype=bf16").code, 0);
  EXPECT_NE(read_file(run_ / "memory.svg"), first);

  for (const std::string text : {"", "<svg>mine</svg>\n"}) {
    write_file_atomically(run_ / "mine.svg", text);
    const ProgramResult result = plan("--picture mine.svg");
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("mine.svg exists and is not a picture of `octet plan`"), std::string::npos) << result.err;
    EXPECT_EQ(read_file(run_ / "mine.svg"), text);
  }
  fs::create_directory(run_ / "folder.svg");
  EXPECT_EQ(plan("--picture folder.svg").code, 2);
}

TEST_F(PlanPicture, ShowsARunThatDoesNotFit) {
  const ProgramResult result =
      run_program("plan configs/llama3-70b.toml --gpus 8xH100 --picture " + (run_ / "memory.svg").string(), source_dir());
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(read_file(run_ / "memory.svg").find("does not fit; "), std::string::npos);
}

TEST_F(PlanPicture, IsOfOneLayout) {
  for (const std::string options : {"--search --picture memory.svg", "--search --schedule", "--search --parameters",
                                    "--search --stage 0", "--parameters --schedule"}) {
    EXPECT_EQ(plan(options).code, 2) << options;
  }
  EXPECT_FALSE(fs::exists(run_ / "memory.svg"));
}

struct Range {
  std::string stream, name;
  double begin = 0, end = 0;
  int depth = 0;
};

std::vector<Range> ranges_of(const std::string& text) {
  std::vector<Range> ranges;
  std::istringstream lines(text.substr(text.find("stream ")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    Range range;
    words >> range.stream >> range.begin >> range.end;
    std::getline(words, range.name);
    const std::size_t indent = range.name.find_first_not_of(' ');
    range.depth = static_cast<int>(indent - 2) / 2;
    range.name = range.name.substr(indent);
    ranges.push_back(range);
  }
  return ranges;
}

// For programs, a schedule has everything that its table has, and every task that the table leaves out.
TEST_F(PlanPicture, TheScheduleIsJsonForPrograms) {
  const std::string options = "--parallel.pipeline=2 --model.num_hidden_layers=4 --schedule --stage 1";
  const ProgramResult json = plan(options + " --json");
  ASSERT_EQ(json.code, 0) << json.err;
  const Json schedule = json_of(json.out);
  EXPECT_EQ(schedule["stage"], 1);
  ASSERT_EQ(schedule["passes_of_stages"].size(), 2u);
  EXPECT_EQ(schedule["passes_of_stages"][1].size(), 8u) << "two passes of each of four micro-batches";
  const std::string text = plan(options).out;
  for (const char* list : {"ranges", "tasks", "tasks_of_update"}) EXPECT_FALSE(schedule[list].empty()) << list;
  for (const Json& range : schedule["ranges"]) EXPECT_LE(range["begin_s"], range["end_s"]) << range;
  const Json& tasks = schedule["tasks"];
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    for (const Json& other : tasks[i]["waits_for"]) {
      ASSERT_LT(other, i);
      EXPECT_LE(tasks[other.get<std::size_t>()]["end_s"], tasks[i]["end_s"]) << i;
    }
  }
  EXPECT_NE(text.find(tasks[0]["task"].get<std::string>()), std::string::npos) << tasks[0];
}

// The blocks come in order, each after what it needs, and no two ranges of a stream overlap. Times are printed in microseconds.
TEST_F(PlanPicture, ScheduleIsThatOfThePredictedStep) {
  const std::string options =
      "--parallel.reshard_after_forward=true --parallel.gradients=sharded --training.global_batch_size=4 "
      "--training.reduce_dtype=bf16 ";
  const ProgramResult result = plan(options + "--schedule");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<Range> ranges = ranges_of(result.out);
  std::vector<std::string> computed;
  std::map<std::string, const Range*> by_name, last;
  for (const Range& range : ranges) {
    EXPECT_LE(range.begin, range.end) << range.name;
    by_name[range.name] = &range;
    if (range.stream == "compute" && range.name.starts_with("block ")) computed.push_back(range.name);
    if (range.name == "optimizer") continue;  // contains other ranges, which are indented
    EXPECT_EQ(range.depth, range.name.starts_with("squares") || range.name.starts_with("update") ? 1 : 0) << range.name;
    if (const Range*& before = last[range.stream]) {
      EXPECT_GE(range.begin + 0.0011, before->end) << before->name << ", " << range.name;
    }
    last[range.stream] = &range;
  }
  EXPECT_EQ(computed, (std::vector<std::string>{"block 0 forward", "block 1 forward", "block 1 backward", "block 0 backward"}));
  ASSERT_TRUE(by_name.contains("optimizer"));
  const Json step = json_of(plan(options + "--json").out)["predicted"];
  EXPECT_NEAR(1e-3 * by_name["optimizer"]->end,
              step["compute_s"].get<double>() + step["memory_s"].get<double>() + step["waited_s"].get<double>(), 1e-6);
}

// tools/pictures.py draws this schedule. If a change is meant to change it, `octet plan` writes the new one.
TEST_F(PlanPicture, TheScheduleThatDocsShow) {
  const ProgramResult result = run_program(
      "plan configs/llama3.1-8b.toml --gpus 8xH100 --model.num_hidden_layers=4 --training.global_batch_size=8 "
      "--training.micro_batch_size=1 --training.reduce_dtype=bf16 --parallel.reshard_after_forward=true "
      "--parallel.gradients=sharded "
      "--schedule",
      source_dir());
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string golden = golden_dir() + "/plan/schedule.txt";
  EXPECT_EQ(result.out, read_file(golden)) << golden;
  const std::size_t begin = result.out.find("\n    8 "), end = result.out.find("\n   12 ", begin);
  const std::string shown = result.out.substr(begin, end - begin);  // lines 8 to 11
  EXPECT_NE(read_file(source_dir() + "/docs/walk.md").find(shown), std::string::npos) << "docs/walk.md should show" << shown;
}

// docs/walk.md shows lines of these lists. They must stand in the list in the same way, one below the other.
TEST_F(PlanPicture, TheExchangesThatDocsShow) {
  const std::string common =
      "plan configs/llama3.1-8b.toml --gpus 8xH100 --model.num_hidden_layers=4 --training.global_batch_size=8 "
      "--training.micro_batch_size=1 --parallel.reshard_after_forward=true --parallel.gradients=sharded --schedule ";
  const std::string page = read_file(source_dir() + "/docs/walk.md");
  const auto expect_shown = [&](const std::string& options, const std::string& from, const std::string& to) {
    const ProgramResult result = run_program(common + options, source_dir());
    ASSERT_EQ(result.code, 0) << result.err;
    const std::size_t begin = result.out.rfind('\n', result.out.find(from)) + 1, end = result.out.find(to) + 1;
    ASSERT_LT(begin, end) << result.out;
    EXPECT_NE(page.find("```text\n" + result.out.substr(begin, end - begin) + "```"), std::string::npos)
        << "docs/walk.md should show\n"
        << result.out.substr(begin, end - begin);
  };
  expect_shown("--training.seq_len=16384 --parallel.context=4", "block 2 backward: keys", "\n   56 ");
  expect_shown("--parallel.tensor=4", "block 1 forward: qkv", "\n   14 ");
}

// The number, name and times of each task, as the lines of --schedule have them.
struct Line {
  std::string stream, name;
  double begin = 0, end = 0;
};
std::map<std::string, Line> lines_of(const std::string& text, const std::string& heading) {
  std::map<std::string, Line> lines;
  const std::size_t at = text.find(heading);
  EXPECT_NE(at, std::string::npos) << text;
  std::istringstream rest(text.substr(at));
  std::string line;
  std::getline(rest, line);
  std::getline(rest, line);
  while (std::getline(rest, line) && !line.empty()) {
    std::istringstream words(line);
    std::string number;
    Line task;
    words >> number >> task.begin >> task.end >> task.stream >> std::ws;
    std::getline(words, task.name);
    task.name = task.name.substr(0, task.name.find("  waits for "));
    if (number == "...") continue;
    EXPECT_TRUE(lines.emplace(number, task).second) << line;
  }
  return lines;
}

// Without a tensor axis no task exchanges over it. With one, all parts of a block with linears do.
TEST_F(PlanPicture, SaysWhichTasksExchangeOverTheTensorAxis) {
  const std::string exchanges = "  exchanges ";
  EXPECT_EQ(plan("--schedule").out.find(exchanges), std::string::npos);
  const ProgramResult result = plan("--parallel.tensor=2 --schedule --picture list.svg");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::map<std::string, Line> lines = lines_of(result.out, "The first micro-batch as each rank enqueues it");
  std::map<std::string, bool> with;  // whether the tasks of block 1 and the head exchange
  for (const auto& [number, line] : lines) {
    const std::size_t at = line.name.find(exchanges);
    with[line.name.substr(0, at)] = at != std::string::npos;
  }
  for (const char* part :
       {"forward: qkv", "forward: attention", "forward: feed", "backward: feed", "backward: output", "backward: qkv"}) {
    EXPECT_TRUE(with.at(concat("block 1 ", part))) << part;
  }
  for (const char* part : {"backward: output_wgrad", "backward: attention"})
    EXPECT_FALSE(with.at(concat("block 1 ", part))) << part;
  EXPECT_TRUE(with.at("head: loss and its gradient"));
  EXPECT_FALSE(with.at("load"));
  EXPECT_NE(read_file(run_ / "list.svg").find("ms over the tensor axis"), std::string::npos);
}

// What the tips of the boxes say: "17 block 2 forward: qkv: 11.033 to 11.523 ms; waits for ...", by number.
struct Box {
  std::string name;
  double x = 0, y = 0, width = 0, begin = 0, end = 0;
};
std::vector<Box> boxes_of(const std::string& svg) {
  const std::regex form(
      "<rect class=\"t\\d\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" [^>]*><title>([^<]*): (-?[0-9.]+) to (-?[0-9.]+) "
      "ms");
  std::vector<Box> boxes;
  for (std::sregex_iterator match(svg.begin(), svg.end(), form), end; match != end; ++match) {
    const auto number = [&](std::size_t i) { return std::stod((*match)[i]); };
    boxes.push_back({(*match)[4], number(1), number(2), number(3), number(5), number(6)});
  }
  return boxes;
}

void expect_no_overlap(std::vector<Box> boxes) {
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return std::tuple(a.y, a.x) < std::tuple(b.y, b.x); });
  for (std::size_t i = 1; i < boxes.size(); ++i) {
    if (boxes[i].y != boxes[i - 1].y) continue;
    EXPECT_GE(boxes[i].x + 0.02, boxes[i - 1].x + boxes[i - 1].width) << boxes[i - 1].name << ", " << boxes[i].name;
  }
}

// Every task of the list is drawn once, on the lane of its stream, with the times of its line.
TEST_F(PlanPicture, DrawsEveryTaskOfTheList) {
  const std::string options =
      "--parallel.reshard_after_forward=true --parallel.gradients=sharded --training.reduce_dtype=bf16 "
      "--model.num_hidden_layers=";
  for (const std::string layers : {"3", "9", "3 --parallel.context=2"}) {
    SCOPED_TRACE(layers);
    const std::size_t streams = layers.ends_with("context=2") ? 3 : 2;
    const ProgramResult result = plan(options + layers + " --schedule --picture list.svg");
    ASSERT_EQ(result.code, 0) << result.err;
    const std::map<std::string, Line> lines = lines_of(result.out, "The first micro-batch as each rank enqueues it");
    const std::string svg = read_file(run_ / "list.svg");
    const std::vector<Box> boxes = boxes_of(svg);
    EXPECT_GT(lines.size(), 40u);
    EXPECT_EQ(boxes.size(), lines.size());
    std::map<std::string, double> lane_of;
    std::vector<Box> with_time;
    for (const Box& box : boxes) {
      const std::string number = box.name.substr(0, box.name.find(' '));
      ASSERT_TRUE(lines.contains(number)) << box.name;
      const Line& line = lines.at(number);
      EXPECT_EQ(box.name, number + " " + line.name);
      EXPECT_EQ(std::pair(box.begin, box.end), std::pair(line.begin, line.end)) << box.name;
      if (box.end <= box.begin) continue;
      EXPECT_EQ(lane_of.emplace(line.stream, box.y).first->second, box.y) << box.name;
      with_time.push_back(box);
    }
    EXPECT_EQ(lane_of.size(), streams);
    EXPECT_NE(lane_of["compute"], lane_of["communication"]);
    expect_no_overlap(with_time);
    EXPECT_EQ(svg.find("blocks 2 to 6") != std::string::npos, layers == "9");
  }
}

// Two lanes take turns, and their rows travel on a stream of its own. A bracket covers one turn of a lane.
TEST_F(PlanPicture, DrawsTheTurnsOfLanes) {
  const ProgramResult result = run_program(
      "plan configs/mixtral-8x7b.toml --gpus 64xH100 --model.num_hidden_layers=2 --parallel.expert=8 --parallel.expert_lanes=2 "
      "--training.global_batch_size=128 --schedule --picture " +
          (run_ / "lanes.svg").string(),
      source_dir());
  ASSERT_EQ(result.code, 0) << result.err;
  const std::map<std::string, Line> lines = lines_of(result.out, "The first micro-batch as each rank enqueues it");
  const std::string svg = read_file(run_ / "lanes.svg");
  std::vector<Box> boxes = boxes_of(svg);
  EXPECT_EQ(boxes.size(), lines.size());
  // By time: the picture widens the shortest boxes.
  std::sort(boxes.begin(), boxes.end(),
            [](const Box& a, const Box& b) { return std::tuple(a.y, a.begin) < std::tuple(b.y, b.begin); });
  for (std::size_t i = 1; i < boxes.size(); ++i) {
    if (boxes[i].y != boxes[i - 1].y) continue;
    EXPECT_GE(boxes[i].begin + 0.0011, boxes[i - 1].end) << boxes[i].name;
  }
  for (const char* pass : {"block 0 m0 forward", "block 0 m1 forward", "block 1 m1 backward"}) {
    const std::string bracket = concat("<title>", pass, "</title>");
    const std::size_t first = svg.find(bracket);
    EXPECT_NE(first, std::string::npos) << pass;
    EXPECT_NE(svg.find(bracket, first + 1), std::string::npos) << pass << " has several turns";
  }
}

TEST_F(PlanPicture, DrawsThePassesOfAllStages) {
  for (const std::string chunks : {"", " --parallel.pipeline_schedule=interleaved --parallel.pipeline_chunks=2"}) {
    const ProgramResult result = run_.run(
        "plan run.toml --gpus 2xH100 --training.micro_batch_size=1 --training.global_batch_size=4 "
        "--parallel.pipeline=2 --model.num_hidden_layers=4 --schedule --picture stages.svg" +
        chunks);
    ASSERT_EQ(result.code, 0) << result.err;
    std::map<std::string, std::pair<double, double>> lines;
    std::istringstream text(result.out.substr(result.out.find("The passes of all stages")));
    std::string line;
    std::getline(text, line);
    std::getline(text, line);
    while (std::getline(text, line) && !line.empty()) {
      std::istringstream words(line);
      std::string stage, name;
      double begin = 0, end = 0;
      words >> stage >> begin >> end >> std::ws;
      std::getline(words, name);
      EXPECT_TRUE(lines.emplace("stage " + stage + " " + name, std::pair(begin, end)).second) << line;
    }
    const std::vector<Box> boxes = boxes_of(read_file(run_ / "stages.svg"));
    EXPECT_EQ(boxes.size(), 2u * 2 * 4 * (chunks.empty() ? 1 : 2));
    EXPECT_EQ(boxes.size(), lines.size());
    for (const Box& box : boxes) {
      ASSERT_TRUE(lines.contains(box.name)) << box.name;
      EXPECT_EQ(std::pair(box.begin, box.end), lines[box.name]) << box.name;
    }
    expect_no_overlap(boxes);
  }
}

// The picture and the text of a long step show only its first and last micro-batches.
TEST_F(PlanPicture, LeavesOutTheSteadyPartOfALongStep) {
  const ProgramResult result = run_.run(
      "plan run.toml --gpus 2xH100 --training.micro_batch_size=1 --training.global_batch_size=40 "
      "--parallel.pipeline=2 --schedule --picture stages.svg");
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string svg = read_file(run_ / "stages.svg");
  const std::vector<Box> boxes = boxes_of(svg);
  EXPECT_LT(boxes.size(), 2u * 2 * 40 / 2);
  EXPECT_GE(boxes.size(), 2u * 2 * 6);
  for (const char* pass : {"stage 0 forward m0:", "stage 0 backward m39:", "stage 1 forward m39:", ">alike</text>"}) {
    EXPECT_NE(svg.find(pass), std::string::npos) << pass;
  }
  EXPECT_EQ(svg.find("stage 0 forward m20:"), std::string::npos);
  for (const char* line : {"0              ... forward m3 to m37, backward m2 to m36 alike\n", " backward m39\n1  "}) {
    EXPECT_NE(result.out.find(line), std::string::npos) << line << result.out;
  }
  EXPECT_EQ(result.out.find("forward m20"), std::string::npos);
}

// Returns the lists of the text, one after another. A number that is not there must be in a line that says what was left out.
std::vector<std::vector<std::string>> lists_of(const std::string& text) {
  std::vector<std::vector<std::string>> lists;
  std::istringstream lines(text.substr(text.find("as each rank")));
  std::string line;
  std::size_t next = 0;
  const std::regex task(" *(\\d+) +-?[0-9.]+ +-?[0-9.]+ .*"), gap("  \\.\\.\\. lines? (\\d+)(?: to (\\d+))?: .+ alike");
  while (std::getline(lines, line)) {
    std::smatch match;
    if (line.find(" each rank") != std::string::npos || line.starts_with("The ")) {
      lists.emplace_back();
    } else if (std::regex_match(line, match, task) || std::regex_match(line, match, gap)) {
      const std::size_t first = std::stoull(match[1]);
      EXPECT_EQ(first, lists.back().empty() && lists.size() > 1 && first > 0 ? first : lists.back().empty() ? 0 : next) << line;
      next = (match.size() > 2 && match[2].matched ? std::stoull(match[2]) : first) + 1;
      lists.back().push_back(line);
    }
  }
  return lists;
}

bool has_line(const std::vector<std::string>& list, const std::string& what) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

TEST_F(PlanPicture, EveryNumberOfAListIsShownOrMarkedAsLeftOut) {
  const std::string layers = "--schedule --model.num_hidden_layers=";
  const std::string sharded = "--parallel.reshard_after_forward=true --parallel.gradients=sharded ";
  for (const std::string& options :
       {std::string(), sharded, sharded + "--parallel.context=2 ", std::string("--parallel.tensor=2 "),
        std::string("--optimizer.offload=true "), std::string("--parallel.pipeline=2 --training.global_batch_size=24 ")}) {
    const bool stages = options.find("pipeline") != std::string::npos;
    const ProgramResult result = plan(layers + (stages ? "10 " : "9 ") + options);
    ASSERT_EQ(result.code, 0) << result.err;
    const auto lists = lists_of(result.out);
    ASSERT_GE(lists.size(), 2u);
    EXPECT_TRUE(has_line(lists[0], stages ? ": forward m2 to m9" : ": blocks 2 to 6 alike")) << result.out;
    for (const auto& list : lists) EXPECT_LT(list.size(), 250u);
    const std::string& last = lists[0].back();
    EXPECT_TRUE(last.find(" close ") != std::string::npos || last.find(" reduce ") != std::string::npos ||
                last.find(" embedding backward") != std::string::npos || last.find(" send ") != std::string::npos)
        << last;
  }
}

// Whole gradients are reduced in the last micro-batch, which has a list of its own.
TEST_F(PlanPicture, ShowsWhatReductionsOfWholeGradientsWaitFor) {
  const auto lists = lists_of(plan("--parallel.gradients=whole --schedule").out);
  ASSERT_EQ(lists.size(), 3u);
  EXPECT_FALSE(has_line(lists[0], "reduce "));
  EXPECT_TRUE(has_line(lists[1], "communication reduce head  waits for all of compute above"));
  EXPECT_FALSE(has_line(lists[1], " forward: "));
  EXPECT_EQ(lists_of(plan("--parallel.gradients=sharded --schedule").out).size(), 2u);
}

// Rows of the first block are shown with the gather of the next unit, which the communication stream runs meanwhile.
TEST_F(PlanPicture, ShowsTheGathersBesideTheBlocksThatItShows) {
  const auto lists = lists_of(plan("--model.num_hidden_layers=9 --parallel.reshard_after_forward=true --schedule").out);
  EXPECT_TRUE(has_line(lists[0], "gather block 2  waits for"));
}

TEST_F(PlanPicture, NamesChunksAndShowsNoCloseThatNothingWaitsFor) {
  const std::string chunks =
      "--parallel.pipeline=2 --model.num_hidden_layers=4 --parallel.pipeline_schedule=interleaved --parallel.pipeline_chunks=2 ";
  const auto staged = lists_of(plan(chunks + "--parallel.tensor=2 --schedule").out);
  EXPECT_TRUE(has_line(staged[0], "load m0 chunk 0"));
  EXPECT_TRUE(has_line(staged[0], "load m0 chunk 1"));
  EXPECT_FALSE(has_line(staged[0], " close "));
}

TEST_F(PlanPicture, TheStagesThatDocsShow) {
  const ProgramResult result = run_program(
      "plan configs/llama3.1-8b.toml --gpus 4xH100 --parallel.pipeline=4 --training.micro_batch_size=1 "
      "--training.global_batch_size=8 --schedule --picture " +
          (run_ / "pipeline.svg").string(),
      source_dir());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(run_ / "pipeline.svg"), read_file(fs::path(source_dir()) / "docs/pictures/pipeline.svg"));
}

TEST_F(PlanPicture, TheMemoryThatDocsShow) {
  const ProgramResult result = run_program(
      "plan configs/runs/llama3.1-8b-8xh100.toml --gpus 8xH100 --picture " + (run_ / "memory.svg").string(), source_dir());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_file(run_ / "memory.svg"), read_file(fs::path(source_dir()) / "docs/pictures/memory.svg"));
}

}  // namespace
}  // namespace octet::testing

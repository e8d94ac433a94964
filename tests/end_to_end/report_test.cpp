// `octet report`: its pictures, and the page of a run in progress.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "octet/comm/socket.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;

// Runs `octet report --watch` and gets pages from it.
class Watched {
 public:
  Watched(const std::string& arguments, const fs::path& folder) : process_("report " + arguments + " --watch --port 0", folder) {
    const std::string line = process_.read_line().value_or("");
    const std::string address = "report: http://127.0.0.1:";
    EXPECT_EQ(line.rfind(address, 0), 0u) << line;
    port_ = std::stoi(line.substr(address.size()));
  }
  std::string get(const std::string& path, const std::string& host = "localhost") const {
    const Descriptor socket = comm::connect_to("127.0.0.1", port_, Clock::now() + std::chrono::seconds(10));
    const int flags = ::fcntl(socket.get(), F_GETFL);
    ::fcntl(socket.get(), F_SETFL, flags & ~O_NONBLOCK);
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n";
    EXPECT_EQ(::send(socket.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
    return answer;
  }
  // Gets the page until it contains `text`. Returns the last page if it never does.
  std::string get_with(const std::string& text) const {
    std::string page;
    for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
      page = get("/");
      if (page.find(text) != std::string::npos) break;
      ::usleep(50'000);
    }
    return page;
  }
  ProgramResult stop(int signal) {
    process_.send(signal);
    return process_.wait();
  }

 private:
  Process process_;
  int port_ = 0;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Report, WatchesARunFromBeforeItsFirstStep) {
  const TinyRun run;
  fs::create_directory(run / "out");
  Watched watched("out", run.path());
  EXPECT_TRUE(has(watched.get("/"), "Waiting: out: no metrics.jsonl here or in a folder below"));
  ASSERT_EQ(run.train().code, 0);
  const std::string page = watched.get_with("step 24 of 24, done");
  EXPECT_TRUE(has(page, "step 24 of 24, done")) << page.substr(0, 2000);
  EXPECT_TRUE(has(page, "<h2>Loss</h2>"));
  EXPECT_TRUE(has(watched.get("/watch.js"), "fetch(\"/\""));
  EXPECT_TRUE(has(watched.get("/", "rebound.example"), "403 Forbidden"));
  EXPECT_TRUE(has(watched.get("/metrics.jsonl"), "404 Not Found"));
  const ProgramResult result = watched.stop(SIGINT);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(fs::exists(run / "out/report.html")) << "watching writes nothing";
}

TEST(Report, WatchingEndsWithATermination) {
  const TinyRun run;
  fs::create_directory(run / "out");
  Watched watched("out", run.path());
  EXPECT_EQ(watched.stop(SIGTERM).code, 0);
}

TEST(Report, WatchingRefusesWhatCannotBe) {
  const TinyRun run;
  EXPECT_TRUE(refused(run.run("report none --watch"), 76, "none: no such folder; give the folder of a run"));
  EXPECT_TRUE(refused(run.run("report . --watch --json"), 2, "report: "));
  EXPECT_TRUE(refused(run.run("report . --watch --picture a.svg"), 2, "report: "));
  EXPECT_TRUE(refused(run.run("report . --port 80"), 2, "--port requires --watch"));
  EXPECT_TRUE(refused(run.run("report . --watch --port 70000"), 2, "--port"));
}

// Runs that nobody has named have the same name.
TEST(Report, CallsRunsByTheirFoldersIfTheirNamesAreTheSame) {
  const TinyRun run;
  for (const std::string folder : {"one --run.name=octet", "two --run.name=octet", "named --run.name=bf16"})
    ASSERT_EQ(run.train("--training.steps=4 --run.output_dir=out/" + folder).code, 0);
  const Json report = json_of(run.run("report out/one/ out/two out/named --baseline out/two --json").out);
  std::vector<std::string> names;
  for (const Json& row : report["rows"]) names.push_back(row["name"]);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"bf16", "out/one", "out/two"}));
  EXPECT_EQ(report["baseline"], "out/two");
}

TEST(Report, CallsRunsByTheirFoldersIfTheyWereGivenOneName) {
  const TinyRun run;
  for (const std::string folder : {"one", "two"})
    ASSERT_EQ(run.train("--training.steps=4 --run.name=bf16 --precision.recipe=bf16 --run.output_dir=out/" + folder).code, 0);
  const Json report = json_of(run.run("report out/one out/two --json").out);
  EXPECT_EQ(report["rows"][0]["name"], "bf16") << "the first is the baseline";
  EXPECT_EQ(report["rows"][1]["name"], "out/two");
}

// If `octet train` makes a run called NAME-repeat, it is the repeat of NAME, as in a comparison.
TEST(Report, DrawsPicturesForBothThemes) {
  const TinyRun run;
  for (const std::string name : {"bf16", "bf16-repeat", "fp8_block"}) {
    const std::string recipe = name == "fp8_block" ? name : "bf16";
    ASSERT_EQ(
        run.train("--training.steps=8 --run.name=" + name + " --run.output_dir=all/" + name + " --precision.recipe=" + recipe)
            .code,
        0);
  }
  const ProgramResult both = run.run("report all --picture pictures/loss.svg --title 'Two & three'");
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_TRUE(has(both.out, "report: all/report.html\npicture: pictures/loss-light.svg\npicture: pictures/loss-dark.svg\n"))
      << both.out;
  EXPECT_TRUE(has(both.out, "Two bf16 runs")) << both.out;
  const std::string light = read_file(run / "pictures/loss-light.svg"), dark = read_file(run / "pictures/loss-dark.svg");
  for (const char* text : {">Two &amp; three<", ">fp8_block<", ">bf16-repeat<", ">% above bf16<"}) {
    EXPECT_TRUE(has(light, text)) << text;
    EXPECT_TRUE(has(dark, text)) << text;
  }
  ASSERT_EQ(run.run("report all --picture one.svg --theme dark --title 'Two & three'").code, 0);
  EXPECT_EQ(read_file(run / "one.svg"), dark);
  ASSERT_EQ(run.run("report all --picture one.svg --theme light").code, 0) << "a picture of its own is drawn anew";
  write_text(run / "mine-dark.svg", "<svg>mine</svg>");
  EXPECT_TRUE(
      refused(run.run("report all --picture mine.svg"), 2, "mine-dark.svg exists and is not a picture of `octet report`"));
  EXPECT_EQ(read_file(run / "mine-dark.svg"), "<svg>mine</svg>");
  EXPECT_FALSE(fs::exists(run / "mine-light.svg"));
  EXPECT_TRUE(refused(run.run("report all --picture one.png"), 2, "--picture=one.png: the name must end in .svg"));
  EXPECT_TRUE(refused(run.run("report all --theme dark"), 2, "--theme requires --picture"));
  EXPECT_TRUE(refused(run.run("report all --picture a.svg --theme blue"), 2, "--theme"));
}

}  // namespace
}  // namespace octet::testing

// Checks that tools/check_layers.py reports what breaks the rules of docs/layers.md.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/paths.h"
#include "support/program.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using octet::testing::TemporaryFolder;

class Layers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* folder : {"docs", "src/octet/base", "src/octet/low", "src/octet/left", "src/octet/right", "src/octet/top"}) {
      fs::create_directories(root_.path() / folder);
    }
    write(
        "docs/layers.md",
        "# Layers\n\n    2 top\n    1 left | right\n    0 base\n\n| layers | `left/core.*` | 2 |\n| all | | 2 |\n\nThe core may "
        "have at most 4 "
        "lines.\n");
    write("src/octet/CMakeLists.txt", "octet_room(base)\noctet_room(left base)\noctet_room(right base)\noctet_room(top left)\n");
    fs::remove(root_.path() / "src/octet/low");
    write("src/octet/base/a.h", "#include <vector>\n");
    write("src/octet/left/a.cpp", "#include \"octet/base/a.h\"\n#include \"octet/left/b.h\"\n");
    write("src/octet/left/core.h", "\n\n");
    write("src/octet/top/a.cpp", "#include \"octet/left/a.h\"\n");
  }
  void write(const std::string& path, const std::string& text) { std::ofstream(root_.path() / path) << text; }

  std::string check() {
    const std::string command = std::string("python3 '") + testing::source_dir() + "/tools/check_layers.py' '" + root_.path().string() + "' 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string out;
    char buffer[4096];
    for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    code_ = WEXITSTATUS(::pclose(pipe));
    return out;
  }
  void expect_finding(const std::string& text) {
    const std::string out = check();
    EXPECT_EQ(code_, 1) << out;
    EXPECT_NE(out.find(text), std::string::npos) << out;
  }

  TemporaryFolder root_;
  int code_ = -1;
};

TEST_F(Layers, AGoodTreePasses) {
  const std::string out = check();
  EXPECT_EQ(code_, 0) << out;
}

TEST_F(Layers, ALargerCore) {
  write("src/octet/left/core.h", "\n\n\n");
  expect_finding("| `left/core.*` | 2 | should say 3");
  write("src/octet/left/core.h", "\n\n\n\n\n");
  expect_finding("the core has 5 lines, and may have at most 4 lines");
  fs::create_directories(root_.path() / "src/octet/nn");
  write("src/octet/nn/a.cpp", "");
  expect_finding("nn/a.cpp counts for 0 capabilities, not one");
}

TEST_F(Layers, UpwardInclude) {
  write("src/octet/base/a.h", "\n#include \"octet/top/a.h\"\n");
  expect_finding("base/a.h:2: base (layer 0) includes top (layer 2)");
}

TEST_F(Layers, SidewaysInclude) {
  write("src/octet/left/a.cpp", "#include <octet/right/a.h>\n");
  expect_finding("left/a.cpp:1: left (layer 1) includes right (layer 1)");
}

TEST_F(Layers, RelativeInclude) {
  write("src/octet/left/deep.cpp", "#include \"../right/a.h\"\n");
  expect_finding("left/deep.cpp:1: left (layer 1) includes right (layer 1)");
}

TEST_F(Layers, IncludeWithoutLink) {
  write("src/octet/top/a.cpp", "#include \"octet/right/a.h\"\n");
  expect_finding("top/a.cpp:1: top includes right without linking it");
}

TEST_F(Layers, UpwardAndSidewaysLinks) {
  write("src/octet/CMakeLists.txt", "octet_room(base top)\noctet_room(left right)\noctet_room(right base)\noctet_room(top left)\n");
  expect_finding("CMakeLists.txt:1: base (layer 0) links top (layer 2)");
  expect_finding("CMakeLists.txt:2: left (layer 1) links right (layer 1)");
}

TEST_F(Layers, LinksOfAnyForm) {
  write("src/octet/CMakeLists.txt",
        "octet_room(base)\noctet_room(left\n  right)\noctet_room(right base)\noctet_room(top left)\n"
        "target_link_libraries(octet_base PRIVATE\n  octet_top)\n");
  expect_finding("CMakeLists.txt:2: left (layer 1) links right (layer 1)");
  expect_finding("CMakeLists.txt:1: base (layer 0) links top (layer 2)");
}

TEST_F(Layers, DeclarationOfAnUpperRoom) {
  write("src/octet/base/a.h", "namespace octet::top {\nclass Trainer;\n}\n");
  expect_finding("base/a.h:1: base declares names of top without linking it");
}

TEST_F(Layers, FilesThatNoCheckReads) {
  write("src/octet/base/table.inc", "#include \"octet/top/a.h\"\n");
  expect_finding("base/table.inc: sources are called .h, .cpp, .cu or .cuh");
}

TEST_F(Layers, UnknownRoom) {
  write("src/octet/left/a.cpp", "#include \"octet/nowhere/a.h\"\n");
  expect_finding("left/a.cpp:1: includes octet/nowhere, which is not in the table");
}

TEST_F(Layers, ParsersAndThreadsHaveOnePlace) {
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"auto x = nlohmann::json::parse(text);", "parses JSON without a limit"},
      {"bool ok = Json::accept(text);", "parses JSON without a limit"},
      {"json::sax_parse(text, &reader);", "parses JSON without a limit"},
      {"auto x = nlohmann::ordered_json::parse(text);", "parses JSON without a limit"},
      {"auto x = nlohmann::json::from_cbor(bytes);", "parses JSON without a limit"},
      {"auto table = toml::parse(text);", "parses TOML without a limit"},
      {"#include <nlohmann/json.hpp>", "includes a parser"},
      {"#include <toml++/toml.h>", "includes a parser"},
      {"thread_ = std::thread([this] { run(); });", "starts a thread"},
      {"std::thread watcher([] {});", "starts a thread"},
      {"std::thread watcher(&Watcher::run, this);", "starts a thread"},
      {"threads.push_back(std::thread{run});", "starts a thread"},
      {"thread_ = std::make_unique<std::thread>(run);", "starts a thread"},
      {"auto f = std::async(std::launch::async, g);", "starts a thread"},
      {"threads.emplace_back([&] { run(); });", "starts a thread"}};
  for (const auto& [line, finding] : lines) {
    write("src/octet/left/a.cpp", "// json::parse(text), std::async\n" + line + "\n");
    expect_finding("left/a.cpp:2: " + finding);
  }
  write("src/octet/left/a.cpp", "std::thread thread_;\nstd::vector<std::thread> threads;\nauto x = octet::parse_json(text, name);\n");
  const std::string out = check();
  EXPECT_EQ(code_, 0) << out;
}

TEST_F(Layers, LongFile) {
  write("src/octet/base/long.h", std::string(600, '\n'));
  check();
  EXPECT_EQ(code_, 0);
  write("src/octet/base/long.h", std::string(601, '\n'));
  expect_finding("base/long.h: 601 lines, more than 600");
  fs::create_directories(root_.path() / "tools");
  write("tools/long.sh", std::string(601, '\n'));
  expect_finding("tools/long.sh: 601 lines, more than 600");
}

}  // namespace
}  // namespace octet

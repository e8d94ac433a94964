#include "octet/data/parquet/parquet_file.h"

#include <random>

#include "data/parquet/files.h"
#include "octet/data/jsonl.h"

namespace octet::data {
namespace {

// Returns all texts from row `from` on.
std::vector<std::string> texts_of(const std::filesystem::path& path, std::int64_t from = 0, const std::string& column = "text") {
  ParquetFile file(path, column);
  file.skip(from);
  std::vector<std::string> texts;
  while (const auto value = file.next()) texts.emplace_back(*value);
  EXPECT_EQ(file.row(), file.rows());
  EXPECT_EQ(static_cast<std::int64_t>(texts.size()), file.rows() - from);
  return texts;
}

using ParquetFileTest = ParquetTest;

TEST_F(ParquetFileTest, ReadsEveryEncodingAndCompression) {
  std::vector<std::string> expected;
  std::ifstream lines(folder_ / "texts.jsonl");
  for (std::string line; std::getline(lines, line);) expected.push_back(jsonl_text(line, "text", "texts.jsonl", 1));
  ASSERT_EQ(expected.size(), 3000u);
  int files = 0;
  for (const std::string& name : names_in(folder_.path())) {
    if (name.rfind("same-", 0) != 0) continue;
    ++files;
    EXPECT_TRUE(texts_of(folder_ / name) == expected) << name;
  }
  EXPECT_EQ(files, 20);
  EXPECT_EQ(texts_of(file("three")), (std::vector<std::string>{"first", std::string("second\0\n", 8), "sch\xC3\xB6n"}));
  EXPECT_TRUE(texts_of(file("no-rows")).empty());
}

TEST_F(ParquetFileTest, PassesOverRows) {
  for (const char* name : {"same-snappy", "same-pages", "same-pages-v2", "same-required", "same-DELTA_BYTE_ARRAY"}) {
    const std::vector<std::string> all = texts_of(file(name));
    for (const std::int64_t from : {0, 1, 255, 256, 999, 1000, 1001, 1233, 1234, 2000, 2999, 3000}) {
      EXPECT_TRUE(texts_of(file(name), from) == std::vector<std::string>(all.begin() + from, all.end()))
          << name << " from " << from;
    }
    // Also skips within a batch.
    ParquetFile stepping(file(name), "text");
    for (std::size_t row = 0; row + 8 < all.size(); row += 8) {
      const auto value = stepping.next();
      ASSERT_TRUE(value);
      ASSERT_TRUE(*value == all[row]) << name << " row " << row;
      stepping.skip(7);
    }
  }
}

TEST_F(ParquetFileTest, KnowsNullFromEmpty) {
  ParquetFile nulls(file("null"), "text");
  nulls.skip(999);
  const auto empty = nulls.next();
  ASSERT_TRUE(empty);
  EXPECT_EQ(*empty, "");
  nulls.skip(233);
  EXPECT_TRUE(
      contains(error_of(ExitCode::data, [&] { nulls.next(); }), "null.parquet:1234: column \"text\" is null, not a string"));
  // Skipped rows are not checked. A null in them must not shift the values after it.
  const std::vector<std::string> all = texts_of(file("same-snappy"));
  for (const std::int64_t from : {1234, 1235, 2001}) {
    EXPECT_TRUE(texts_of(file("null"), from) == std::vector<std::string>(all.begin() + from, all.end())) << "from " << from;
  }
}

TEST_F(ParquetFileTest, RefusesColumnsThatHoldNoTexts) {
  const auto refusal = [&](const std::string& column) {
    return error_of(ExitCode::data, [&] { ParquetFile(file("kinds"), column); });
  };
  EXPECT_TRUE(contains(refusal("text"), "no column \"text\" (there are: ints, lists, structures, fixed, nothing, decimal)"));
  EXPECT_TRUE(contains(refusal("ints"), "column \"ints\" holds INT64, not strings"));
  EXPECT_TRUE(contains(refusal("lists"), "column \"lists\" holds lists or structures, not strings"));
  EXPECT_TRUE(contains(refusal("structures"), "column \"structures\" holds lists or structures"));
  EXPECT_TRUE(contains(refusal("structures.text"), "no column \"structures.text\""));
  EXPECT_TRUE(contains(refusal("fixed"), "column \"fixed\" holds FIXED_LEN_BYTE_ARRAY"));
  EXPECT_TRUE(contains(refusal("nothing"), "column \"nothing\" holds INT32"));
  EXPECT_TRUE(contains(refusal("decimal"), "column \"decimal\" holds FIXED_LEN_BYTE_ARRAY"));
}

TEST_F(ParquetFileTest, RefusesWhatIsNotParquet) {
  const auto refusal = [&](const std::string& bytes) {
    const auto path = folder_.write("bad.parquet", bytes);
    return error_of(ExitCode::data, [&] { texts_of(path); });
  };
  const std::string whole = read_file(file("same-zstd"));
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 1 + whole.size() / 97) refusal(whole.substr(0, bytes));
  refusal(whole.substr(0, whole.size() - 1));
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    std::string noise(static_cast<std::size_t>(i) * 7, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    refusal(noise);
    // The noise stands where the footer should be.
    std::string footer;
    put(footer, static_cast<std::uint32_t>(noise.size()));
    if (!noise.empty()) refusal("PAR1" + noise + footer + "PAR1");
  }
  EXPECT_TRUE(
      contains(error_of(ExitCode::data, [&] { ParquetFile(folder_ / "none.parquet", "text"); }), "cannot open: No such file"));
}

// Wrong bytes may still give texts, or an error of one line. Nothing else may happen.
TEST_F(ParquetFileTest, SurvivesWrongBytes) {
  std::mt19937 random(6);
  int refused = 0;
  for (const std::string name :
       {"same-snappy", "same-pages-v2", "same-plain", "same-DELTA_BYTE_ARRAY", "same-dictionary", "calls"}) {
    const std::string whole = read_file(file(name));
    const bool lists = name == "calls";
    for (int i = 0; i < 120; ++i) {
      std::string bytes = whole;
      // Half of the changes hit the footer, which stands after all pages.
      const std::size_t span = i % 2 == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 1500);
      for (int k = 0; k < 1 + i % 3; ++k) bytes[bytes.size() - 1 - random() % span] = static_cast<char>(random());
      const auto path = folder_.write("wrong.parquet", bytes);
      try {
        ParquetFile wrong(path, lists ? "messages" : "text", lists ? ParquetFile::Values::messages : ParquetFile::Values::text);
        if (i % 4 < 2) wrong.skip(1 + static_cast<std::int64_t>(random() % 500));
        while (wrong.next()) {
        }
      } catch (const Error& error) {
        ++refused;
        ASSERT_EQ(static_cast<int>(error.code()), static_cast<int>(ExitCode::data)) << error.what();
        ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_GE(refused, 100);
}

// A structure in the schema of a Parquet file, with so many fields; -1: a string.
std::string schema_node(const std::string& name, int fields, bool repeated = false) {
  const auto number = [](int value) { return static_cast<char>(2 * value); };  // as Thrift writes small ones
  std::string node = fields < 0 ? std::string("\x15\x0C\x25", 3) : "\x35";
  node += number(repeated ? 2 : 1);
  node += '\x18';
  node += static_cast<char>(name.size()) + name;
  if (fields >= 0) node += {'\x15', number(fields)};
  return node + '\0';
}

// A file without rows.
std::string parquet_of(const std::vector<std::string>& schema) {
  std::string footer = "\x15\x02\x19";
  footer += static_cast<char>(schema.size() << 4 | 12);
  for (const std::string& node : schema) footer += node;
  footer += std::string("\x16\0\x19\x0C\0", 5);
  std::string size;
  put(size, static_cast<std::uint32_t>(footer.size()));
  return "PAR1" + footer + size + "PAR1";
}

TEST_F(ParquetFileTest, RefusesStructuresWithoutFields) {
  const auto open = [&](int fields_of_calls, int fields_of_tools) {
    std::vector<std::string> schema = {schema_node("schema", 2), schema_node("messages", 1), schema_node("list", 1, true),
                                       schema_node("element", 2), schema_node("content", -1)};
    for (const auto& [name, fields] : {std::pair("tool_calls", fields_of_calls), std::pair("tools", fields_of_tools)}) {
      schema.push_back(schema_node(name, fields));
      for (int i = 0; i < fields; ++i) schema.push_back(schema_node("id", -1));
    }
    ParquetFile file(folder_.write("empty.parquet", parquet_of(schema)), "messages", ParquetFile::Values::messages);
    EXPECT_EQ(file.rows(), 0);
  };
  open(1, 1);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { open(0, 1); }), "\"tool_calls\" is a structure without fields"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { open(1, 0); }), "\"tools\" is a structure without fields"));
}

TEST_F(ParquetFileTest, ComparesChecksumsOfPages) {
  std::string bytes = read_file(file("checksums"));
  const std::size_t at = bytes.find("text 1234 ");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = 'T';
  const auto path = folder_.write("flipped.parquet", bytes);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { texts_of(path); }), "CRC"));
}

TEST(ParquetPlugin, IsBesideTheProgramOrInstalledOrNamed) {
  const TemporaryFolder folder;
  const auto installed = folder.write("lib/octet/octet_parquet.so", "");
  std::filesystem::create_directories(folder / "bin");
  std::filesystem::create_directories(folder / "elsewhere/deep");
  EXPECT_TRUE(std::filesystem::equivalent(find_parquet_plugin("", folder / "bin"), installed));
  const auto beside = folder.write("bin/octet_parquet.so", "");
  EXPECT_EQ(find_parquet_plugin("", folder / "bin"), beside);
  EXPECT_EQ(find_parquet_plugin(installed.string(), folder / "bin"), installed);
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { find_parquet_plugin((folder / "none.so").string(), folder / "bin"); }),
                       "none.so: no such file"));
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { find_parquet_plugin("", folder / "elsewhere/deep"); }),
                       "install pyarrow or Apache Arrow and build Octet with -DOCTET_ARROW="));
}

}  // namespace
}  // namespace octet::data

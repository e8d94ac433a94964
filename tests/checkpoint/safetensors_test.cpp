#include "octet/checkpoint/safetensors.h"

#include <sys/stat.h>

#include <numeric>

#include "checkpoint/files.h"

namespace octet::checkpoint {
namespace {

TEST(Safetensors, ReadsAHandMadeFile) {
  const TemporaryFolder folder;
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\x40\x7f", 9);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}  )";
  const auto file = SafetensorsFile::open(folder.write("x.safetensors", safetensors_bytes(header, data)));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));
  const Tensor a = file.get("a");
  EXPECT_EQ(a.shape, (Shape{2, 1}));
  EXPECT_EQ(a.as<float>()[0], 1.0f);
  EXPECT_EQ(a.as<float>()[1], 2.0f);
  EXPECT_EQ(file.get("b").as_bytes()[0], 0x7f);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { file.get("c"); }), "x.safetensors: no tensor \"c\""));
}

struct Lie {
  std::string name, header, data, message;
};

TEST(Safetensors, RefusesHostileHeaders) {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string eight(8, 'x');
  const std::vector<Lie> lies = {
      {"not JSON", "{\"w\":", "", "not valid JSON"},
      {"not an object", "[1]", "", "does not begin with {"},
      {"invalid UTF-8", "{\"\xff\":1}", "", "not valid JSON"},
      {"trailing text", "{} {}", "", "not valid JSON"},
      {"duplicate names",
       R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight,
       "\"w\" occurs twice"},
      {"duplicate fields", R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", eight, "occurs twice"},
      {"unknown dtype", tensor("F33", "[2]", "[0,8]"), eight, "tensor \"w\": unknown dtype \"F33\""},
      {"dtype is a number", R"({"w":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", eight, "dtype is 3"},
      {"unknown field", R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", eight, "unknown field \"x\""},
      {"no shape", R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", eight, "no shape"},
      {"entry is a list", R"({"w":[1,2,3]})", eight, "not an object but an array of 3"},
      {"negative dim", tensor("F32", "[-2]", "[0,8]"), eight, "dim -2"},
      {"fractional dim", tensor("F32", "[2.0]", "[0,8]"), eight, "dim 2.0"},
      {"dim of 2^63", tensor("F32", "[9223372036854775808]", "[0,8]"), eight, "dim 9223372036854775808"},
      {"dim of 2^64", tensor("F32", "[18446744073709551616]", "[0,8]"), eight, "dim 1.8446744073709552e+19"},
      {"overflowing shape", tensor("F32", "[4294967296,4294967296,2]", "[0,8]"), eight, "overflows 64 bits"},
      {"product wraps to the right size", tensor("U8", "[4611686018427387906,4]", "[0,8]"), eight, "overflows 64 bits"},
      {"offset beyond the file", tensor("F32", "[4]", "[0,16]"), eight, "data offsets [0, 16) in a file with 8 bytes"},
      {"offset of 2^63", tensor("F32", "[2]", "[0,9223372036854775808]"), eight, "data offset 9223372036854775808"},
      {"negative offset", tensor("F32", "[2]", "[-8,0]"), eight, "data offset -8"},
      {"offsets reversed", tensor("F32", "[2]", "[8,0]"), eight, "data offsets [8, 0)"},
      {"three offsets", tensor("F32", "[2]", "[0,4,8]"), eight, "data_offsets is an array of 3"},
      {"size differs from the shape", tensor("F32", "[1]", "[0,8]"), eight, "F32 [1] needs 4 bytes"},
      {"half a byte", tensor("F4", "[3]", "[0,1]"), "x", "not a whole number of bytes"},
      {"overlap",
       R"({"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", eight,
       "tensor \"w\": data offsets [2, 6) overlap"},
      {"hole", tensor("F32", "[1]", "[4,8]"), eight, "leave a hole after 0"},
      {"trailing bytes", tensor("F32", "[1]", "[0,4]"), eight, "4 bytes after the last tensor"},
      {"no tensors but data", "{}", "x", "1 bytes after the last tensor"},
      {"deep nesting", "{\"w\":" + std::string(1'000'000, '['), "", "nested deeper than 3"},
      {"deep objects",
       [] {
         std::string s;
         for (int i = 0; i < 100'000; ++i) s += "{\"a\":";
         return s;
       }(),
       "", "nested deeper than 3"},
      {"metadata is a list", R"({"__metadata__":["a"]})", "", "__metadata__ is not an object"},
      {"metadata of numbers", R"({"__metadata__":{"a":1}})", "", "__metadata__ \"a\" is not a string"},
      {"a name of two lines", R"({"a\nb":3})", "", R"(tensor "a\nb")"},
  };
  const TemporaryFolder folder;
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    const auto path = folder.write("lie.safetensors", safetensors_bytes(lie.header, lie.data));
    const std::string message = error_of(ExitCode::data, [&] { SafetensorsFile::open(path); });
    EXPECT_EQ(message.rfind(path.string() + ": ", 0), 0u) << message;
    EXPECT_TRUE(contains(message, lie.message));
    EXPECT_LT(message.size(), 800u);
  }
}

TEST(Safetensors, RefusesHeaderLengthsThatLie) {
  const TemporaryFolder folder;
  const auto with_length = [&](std::uint64_t length) {
    std::string bytes = safetensors_bytes("{}      ", "");
    std::memcpy(bytes.data(), &length, 8);
    return error_of(ExitCode::data, [&] { SafetensorsFile::open(folder.write("x", bytes)); });
  };
  EXPECT_TRUE(contains(with_length(0), "header length 0 in a file of 16 bytes"));
  EXPECT_TRUE(contains(with_length(9), "header length 9 in a file of 16 bytes"));
  EXPECT_TRUE(contains(with_length(100'000'001), "above the format's limit"));
  EXPECT_TRUE(contains(with_length(std::uint64_t{1} << 63), "header length 9223372036854775808"));
  EXPECT_TRUE(contains(with_length(~std::uint64_t{0}), "header length 18446744073709551615"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { SafetensorsFile::open(folder.write("x", "")); }), "0 bytes"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { SafetensorsFile::open(folder.write("x", "1234567")); }), "7 bytes"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { SafetensorsFile::open(folder / "absent"); }), "absent"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { SafetensorsFile::open(folder.path()); }), "not a regular file"));
}

TEST(Safetensors, EveryTruncationOfAFileIsRefused) {
  const TemporaryFolder folder;
  Memory memory;
  write_safetensors(folder / "whole", {{"a", memory.counting({3, 2})}, {"b", memory.counting({1})}});
  const std::string whole = slurp(folder / "whole");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    error_of(ExitCode::data, [&] { SafetensorsFile::open(folder.write("cut", whole.substr(0, size))); });
  }
  SafetensorsFile::open(folder.write("cut", whole));
}

TEST(Safetensors, ListsButDoesNotGiveOutWhatOctetHasNoUseFor) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"flag":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"five":{"dtype":"U8","shape":[1,1,1,1,2],)"
      R"("data_offsets":[2,4]},"four":{"dtype":"F4","shape":[4],"data_offsets":[4,6]}})";
  const auto file = SafetensorsFile::open(folder.write("x", safetensors_bytes(header, "abcdef")));
  EXPECT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.find("flag")->dtype_name, "BOOL");
  EXPECT_EQ(file.bytes(*file.find("four")).size(), 2u);
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { file.get("flag"); }), "tensor \"flag\": dtype BOOL"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { file.get("five"); }), "shape [1, 1, 1, 1, 2] has more than 4 dims"));
}

// Versions of safetensors before 0.3 did not align data. An empty tensor begins where the next one does.
TEST(Safetensors, GivesAlignedViewsOfUnalignedData) {
  const TemporaryFolder folder;
  std::string data = "x";
  const double values[2] = {1.5, -2.25};
  data.append(reinterpret_cast<const char*>(values), sizeof values);
  const std::string header = R"({"e":{"dtype":"F64","shape":[0],"data_offsets":[1,1]},"u":{"dtype":"U8","shape":[1],)"
                             R"("data_offsets":[0,1]},"w":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})";
  for (std::size_t padding = 0; padding < 8; ++padding) {
    SafetensorsFile opened =
        SafetensorsFile::open(folder.write("x", safetensors_bytes(header + std::string(padding, ' '), data)));
    const auto file = std::make_unique<SafetensorsFile>(std::move(opened));
    const Tensor w = file->get("w");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(w.data) % 8, 0u);
    EXPECT_EQ(w.as<double>()[0], 1.5);
    EXPECT_EQ(w.as<double>()[1], -2.25);
    EXPECT_EQ(file->get("e").elements(), 0);
    EXPECT_EQ(file->get("u").as_bytes()[0], 'x');
  }
}

TEST(Safetensors, RoundTripsEveryDType) {
  const TemporaryFolder folder;
  Memory memory;
  std::vector<NamedTensor> tensors;
  for (const DType dtype :
       {DType::u8, DType::f8_e4m3, DType::f8_e5m2, DType::bf16, DType::f16, DType::i32, DType::f32, DType::i64, DType::f64}) {
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{0, 4}, Shape{5, 7}, Shape{2, 3, 4, 1}}) {
      const Tensor tensor = memory.tensor(dtype, shape);
      for (std::size_t i = 0; i < tensor.bytes(); ++i) tensor.as_bytes()[i] = static_cast<std::uint8_t>(i * 37 + tensors.size());
      tensors.push_back({concat(name_of(dtype), " é\"\n", shape), tensor});
    }
  }
  write_safetensors(folder / "x", tensors, {{"format", "pt"}, {"note", "\"quoted\"\n"}});
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x"});
  const auto file = SafetensorsFile::open(folder / "x");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("note"), "\"quoted\"\n");
  for (const NamedTensor& expected : tensors) {
    const Tensor actual = file.get(expected.name);
    EXPECT_EQ(actual.dtype, expected.tensor.dtype);
    EXPECT_EQ(actual.shape, expected.tensor.shape);
    EXPECT_EQ(std::memcmp(actual.data, expected.tensor.data, actual.bytes()), 0) << expected.name;
    const std::span<const std::byte> raw = file.bytes(*file.find(expected.name));
    const bool aligned = raw.empty() || reinterpret_cast<std::uintptr_t>(raw.data()) % size_of(actual.dtype) == 0;
    EXPECT_TRUE(aligned) << expected.name;
  }
}

TEST(Safetensors, TheHeaderIsPaddedToEightBytes) {
  const TemporaryFolder folder;
  Memory memory;
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"}) {
    write_safetensors(folder / "x", {{name, memory.counting({1})}});
    const std::string bytes = slurp(folder / "x");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    EXPECT_EQ(length % 8, 0u);
    EXPECT_EQ(bytes.size(), 8 + length + 4);
  }
}

TEST(SafetensorsWriter, PiecesMayComeInAnyOrder) {
  const TemporaryFolder folder;
  const std::vector<TensorDeclaration> tensors = {{"a", DType::f32, {2}}, {"empty", DType::f32, {0}}, {"b", DType::u8, {5}}};
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  {
    SafetensorsWriter writer(folder / "order", tensors);
    writer.write(bytes("01234567abcde"));
    writer.finish();
  }
  SafetensorsWriter writer(folder / "x", tensors);
  writer.write_at(2, 3, bytes("de"));
  writer.write_at(0, 4, bytes("4567"));
  for (const auto& [number, offset] : std::vector<std::pair<std::size_t, std::size_t>>{{2, 4}, {1, 0}, {3, 0}, {0, 9}}) {
    EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { writer.write_at(number, offset, bytes("zz")); }), "more data")) << number;
  }
  writer.write_at(2, 0, bytes("abc"));
  EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { writer.finish(); }), "4 bytes"));
  writer.write_at(0, 0, bytes("0123"));
  writer.finish();
  EXPECT_EQ(slurp(folder / "x"), slurp(folder / "order"));
}

TEST(SafetensorsWriter, DestroysNeitherPipesNorLinks) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of(ExitCode::config, [&] { SafetensorsWriter writer(folder / "pipe", {}); }), "not a regular file but a pipe"));
  std::filesystem::create_symlink("x", folder / "link");
  SafetensorsWriter(folder / "link", {}).finish();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"link", "pipe", "x"}));
}

TEST(SafetensorsWriter, LeavesNothingUnlessFinished) {
  const TemporaryFolder folder;
  folder.write("x", "old");
  {
    SafetensorsWriter writer(folder / "x", {{"a", DType::u8, {4}}});
    writer.write(std::as_bytes(std::span("ab", 2)));
    EXPECT_EQ(slurp(folder / "x"), "old");
    EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { writer.write(std::as_bytes(std::span("cde", 3))); }), "more data"));
    EXPECT_TRUE(contains(error_of(ExitCode::internal, [&] { writer.finish(); }), "2 bytes"));
  }
  EXPECT_EQ(slurp(folder / "x"), "old");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x"});
  EXPECT_TRUE(contains(error_of(ExitCode::internal,
                                [&] {
                                  SafetensorsWriter writer(folder / "y", {{"a", DType::u8, {4}}, {"a", DType::u8, {4}}});
                                }),
                       "declared twice"));
  EXPECT_TRUE(
      contains(error_of(ExitCode::internal, [&] { SafetensorsWriter writer(folder / "no" / "y", {}); }), "cannot create"));
}

}  // namespace
}  // namespace octet::checkpoint

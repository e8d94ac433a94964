#include "octet/checkpoint/reader.h"

#include <cmath>
#include <regex>

#include "checkpoint/files.h"
#include "octet/base/checksum.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Writer writer({.root = folder_.path(), .mode = WriteMode::now});
    for (const int step : {1, 2, 3}) {
      writer.save(step, memory_.stream(),
                  std::vector<Entry>{Entry::whole("a", memory_.counting({4, 5}, step)), Entry::whole("b", memory_.counting({3}))},
                  {{"step", step}});
    }
  }
  fs::path directory(int step) const { return folder_ / step_name(step); }
  fs::path data_file(int step) const { return directory(step) / "rank-00000.safetensors"; }
  // Flips one bit of a byte. Negative positions count from the end.
  static void damage(const fs::path& path, std::ptrdiff_t position) {
    std::string bytes = slurp(path);
    char& byte = position < 0 ? *(bytes.end() + position) : bytes[static_cast<std::size_t>(position)];
    byte = static_cast<char>(byte ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // Returns the step of the checkpoint that open_latest() opens, or -1. Keeps its warnings.
  std::int64_t latest() {
    warnings_.clear();
    const auto reader = Reader::open_latest(folder_.path(), [this](std::string_view line) { warnings_.emplace_back(line); });
    return reader ? reader->step() : -1;
  }

  TemporaryFolder folder_;
  Memory memory_;
  std::vector<std::string> warnings_;
};

TEST_F(ReaderTest, TakesTheNewest) {
  EXPECT_EQ(latest(), 3);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(ReaderTest, NoCheckpointIsNoError) {
  const TemporaryFolder empty;
  const auto none = [](std::string_view line) { ADD_FAILURE() << line; };
  EXPECT_FALSE(Reader::open_latest(empty.path(), none).has_value());
  EXPECT_FALSE(Reader::open_latest(empty / "absent", none).has_value());
}

TEST_F(ReaderTest, PassesOverADamagedOneMovesItAndSaysSo) {
  damage(data_file(3), -1);
  const std::string damaged = slurp(data_file(3));
  EXPECT_EQ(latest(), 2);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_TRUE(contains(warnings_[0], data_file(3).string() + ": tensor \"b\": its bytes are damaged"));
  const std::regex sums("XXH3 sum ([0-9a-f]{16}), the manifest says ([0-9a-f]{16})\\)");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(warnings_[0], found, sums)) << warnings_[0];
  EXPECT_TRUE(contains(slurp(folder_ / "damaged/step-00000003/manifest.json"), found[2].str())) << "as the manifest has it";
  EXPECT_TRUE(contains(warnings_[0], "; using " + directory(2).string() + " in its place; the damaged one is now " +
                                         (folder_ / "damaged/step-00000003").string()));
  EXPECT_EQ(slurp(folder_ / "damaged/step-00000003/rank-00000.safetensors"), damaged);
  EXPECT_FALSE(fs::exists(directory(3)));

  fs::resize_file(data_file(2), fs::file_size(data_file(2)) - 1);
  EXPECT_EQ(latest(), 1);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_TRUE(contains(warnings_[0], data_file(2).string() + ": "));
  EXPECT_TRUE(contains(warnings_[0], "; using " + directory(1).string() + " in its place"));

  // Another damaged one of the same step gets another name.
  fs::copy(directory(1), directory(2), fs::copy_options::recursive);
  fs::remove(directory(2) / kManifestName);
  EXPECT_EQ(latest(), 1);
  EXPECT_EQ(names_in(folder_ / "damaged"), (std::vector<std::string>{"step-00000002", "step-00000002-2", "step-00000003"}));
}

TEST_F(ReaderTest, WhenAllAreDamagedNoneIsMoved) {
  for (const int step : {1, 2, 3}) fs::remove(directory(step) / kManifestName);
  const std::string message = error_of(ExitCode::data, [&] { latest(); });
  EXPECT_TRUE(contains(message, folder_.path().string() + ": no checkpoint of 3 can be read: "));
  for (const int step : {1, 2, 3}) EXPECT_TRUE(contains(message, directory(step).string()));
  EXPECT_EQ(names_in(folder_.path()).size(), 3u);
}

// Only what was read can be called damaged. Here the system cannot follow a link.
TEST_F(ReaderTest, WhatCannotBeReadIsNotCalledDamaged) {
  fs::rename(directory(3) / kManifestName, folder_ / "kept");
  fs::create_symlink("manifest.json", directory(3) / kManifestName);
  const std::string reason = (directory(3) / kManifestName).string() + ": Too many levels of symbolic links";
  EXPECT_EQ(error_of(ExitCode::data, [&] { latest(); }), reason);
  EXPECT_EQ(error_of(ExitCode::data, [&] { newest_meta(folder_.path()); }), reason);
  fs::remove(directory(3) / kManifestName);
  fs::rename(folder_ / "kept", directory(3) / kManifestName);
  fs::rename(data_file(3), folder_ / "kept");
  fs::create_symlink("rank-00000.safetensors", data_file(3));
  EXPECT_EQ(error_of(ExitCode::data, [&] { latest(); }), data_file(3).string() + ": Too many levels of symbolic links");
  fs::remove(data_file(3));
  fs::rename(folder_ / "kept", data_file(3));
  EXPECT_EQ(latest(), 3) << "nothing was touched";
  EXPECT_TRUE(warnings_.empty());
}

// What a link leads to may be on a file system that is not mounted.
TEST_F(ReaderTest, WhatALostLinkLeadsToIsNotCalledDamaged) {
  const fs::path away = folder_ / "away";
  const std::string words = ": a link that leads nowhere, to " + away.string() + ". Is a file system not mounted?";
  for (const fs::path& lost : {directory(3), data_file(3), directory(3) / kManifestName}) {
    fs::rename(lost, folder_ / "kept");
    fs::create_symlink(away, lost);
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { latest(); }), lost.string() + words)) << lost;
    fs::rename(folder_ / "kept", away);
    EXPECT_EQ(latest(), 3) << "nothing was touched, and the file system is there again";
    fs::remove(lost);
    fs::rename(away, lost);
  }
  fs::create_symlink(away, folder_ / "checkpoints");
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { newest_meta(folder_ / "checkpoints"); }), words));
  EXPECT_TRUE(warnings_.empty());
}

// An older program must not go on from an older checkpoint and replace what followed it.
TEST_F(ReaderTest, ALaterVersionIsNotCalledDamaged) {
  const fs::path manifest = directory(3) / kManifestName;
  const std::string whole = slurp(manifest);
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{{"/version", 2}, {"/tensors/a/dtype", "F4"}}) {
    Json document = parse_json(whole, "the manifest");
    document[Json::json_pointer(key)] = value;
    document.erase("xxh3");
    RunningChecksum sum;
    sum.update(document.dump());
    document["xxh3"] = sum.hex();
    std::ofstream(manifest) << document;
    EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { latest(); }), "; use a newer octet, or name an older checkpoint")) << key;
    error_of(ExitCode::data, [&] { newest_meta(folder_.path()); });
    EXPECT_EQ(Reader::open(directory(2)).step(), 2);
    EXPECT_EQ(names_in(folder_.path()).size(), 3u);
  }
}

TEST_F(ReaderTest, AFolderThatCannotBeListedIsNotEmpty) {
  fs::create_symlink("loop", folder_ / "loop");
  const auto none = [](std::string_view line) { ADD_FAILURE() << line; };
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Reader::open_latest(folder_ / "loop", none); }), "Too many levels"));
  error_of(ExitCode::data, [&] { newest_meta(folder_ / "loop"); });
  error_of(ExitCode::data, [&] { find_checkpoints(folder_ / "loop"); });
}

TEST_F(ReaderTest, TheNewestMetaNeedsTheManifestAlone) {
  damage(data_file(3), -1);
  EXPECT_EQ(newest_meta(folder_.path()), Json({{"step", 3}}));
  damage(directory(3) / kManifestName, -10);
  fs::remove(directory(2) / kManifestName);
  EXPECT_EQ(newest_meta(folder_.path()), Json({{"step", 1}}));
  damage(directory(1) / kManifestName, 10);
  EXPECT_EQ(newest_meta(folder_.path()), Json::object());
  EXPECT_EQ(newest_meta(folder_ / "absent"), Json::object());
}

TEST_F(ReaderTest, NoticesEveryDamagedByteOfTheData) {
  const std::string whole = slurp(data_file(3));
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (std::size_t i = 8 + header; i < whole.size(); ++i) {
    damage(data_file(3), static_cast<std::ptrdiff_t>(i));
    error_of(ExitCode::data, [&] { Reader::open(directory(3)); });
    std::ofstream(data_file(3), std::ios::binary) << whole;
  }
  EXPECT_EQ(latest(), 3);
}

TEST_F(ReaderTest, NoticesFilesOfAnotherCheckpoint) {
  fs::remove(data_file(3));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Reader::open(directory(3)); }), data_file(3).string() + ": No such file"));
  fs::copy_file(data_file(2), data_file(3));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Reader::open(directory(3)); }), "tensor \"a\": its bytes are damaged"));
  write_safetensors(data_file(3), {{"a", memory_.counting({5, 4})}, {"b", memory_.counting({3})}});
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Reader::open(directory(3)); }),
                       "\"a\" is I32 [5, 4], the manifest says I32 [4, 5]"));
  write_safetensors(data_file(3), {{"a", memory_.counting({4, 5})}});
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { Reader::open(directory(3)); }), "no tensor \"b\""));
}

TEST_F(ReaderTest, SaysAllThatDiffersAtOnceAndWritesNothing) {
  const Reader reader = Reader::open(directory(3));
  const Tensor untouched = memory_.counting({3}, 100);
  const std::vector<Entry> entries = {Entry::whole("b", untouched), Entry::whole("aa", memory_.counting({4, 5})),
                                      Entry::whole("moment", memory_.counting({2}))};
  const std::string message = error_of(ExitCode::data, [&] { reader.load(memory_.stream(), entries); });
  EXPECT_EQ(message, (directory(3) / kManifestName).string() +
                         ": 2 missing tensors: \"aa\" (did you mean a?), \"moment\"; 1 unexpected tensor: \"a\"");
  EXPECT_EQ(untouched.as<std::int32_t>()[0], 100);

  const std::vector<Entry> misshapen = {Entry::whole("b", memory_.counting({2})),
                                        Entry::whole("a", memory_.tensor(DType::f32, {4, 5}))};
  EXPECT_EQ(error_of(ExitCode::data, [&] { reader.load(memory_.stream(), misshapen); }),
            (directory(3) / kManifestName).string() +
                ": 2 unfit tensors: \"b\" is I32 [3], expected I32 [2], \"a\" is I32 [4, 5], expected F32 [4, 5]");

  reader.load(memory_.stream(), std::vector<Entry>{Entry::whole("b", untouched)}, {"a*"});
  EXPECT_EQ(untouched.as<std::int32_t>()[0], 0);
}

// 1 + 2^-8 is a tie between two BF16 numbers and goes to the even one; 1 + 3 x 2^-8 goes to the other side.
TEST_F(ReaderTest, ConvertsFloatsOnlyWhenAsked) {
  const std::vector<float> values = {1 + 0x1p-8f, 1 + 0x3p-8f, -1 - 0x1.01p-8f, 0x1p-30f, -0.0f, 3, 1 + 0x1p-23f, 5};
  const std::vector<float> rounded = {1, 1 + 0x4p-8f, -1 - 0x2p-8f, 0x1p-30f, -0.0f, 3, 1, 5};
  const Tensor wide = memory_.tensor(DType::f32, {8}), narrow = memory_.tensor(DType::bf16, {8});
  std::copy(values.begin(), values.end(), wide.as<float>());
  for (std::size_t i = 0; i < 8; ++i) narrow.as<BFloat16>()[i] = BFloat16(rounded[i]);
  Writer writer({.root = folder_.path(), .mode = WriteMode::now});
  writer.save(4, memory_.stream(),
              std::vector<Entry>{{"w", wide.slice_rows(0, 3), {8}, Slice::flat({8}, 0, 3)},
                                 {"w", wide.slice_rows(3, 8), {8}, Slice::flat({8}, 3, 8)},
                                 Entry::whole("n", narrow),
                                 Entry::whole("i", memory_.counting({3}))},
              nlohmann::json::object());
  const Reader reader = Reader::open(directory(4));
  // A rank of another mesh holds elements 1 to 6, from both slices.
  const Tensor part = memory_.tensor(DType::bf16, {6}), exact = memory_.tensor(DType::f32, {8}),
               whole = memory_.tensor(DType::i32, {3});
  const std::vector<Entry> entries = {
      {"w", part, {8}, Slice::flat({8}, 1, 7)}, Entry::whole("n", exact), Entry::whole("i", whole)};
  const std::string refusal = error_of(ExitCode::data, [&] { reader.load(memory_.stream(), entries); });
  EXPECT_TRUE(contains(refusal, "\"w\" is F32 [8], expected BF16 [8]"));
  EXPECT_TRUE(contains(refusal, "\"n\" is BF16 [8], expected F32 [8]"));
  reader.load(memory_.stream(), entries, {}, OtherDtype::convert);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(static_cast<float>(part.as<BFloat16>()[i]), rounded[i + 1]) << i;
    EXPECT_EQ(std::signbit(static_cast<float>(part.as<BFloat16>()[i])), std::signbit(rounded[i + 1])) << i;
  }
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(exact.as<float>()[i], rounded[i]) << i;
  // Counts are never converted.
  const std::vector<Entry> counts = {entries[0], entries[1], Entry::whole("i", memory_.tensor(DType::f32, {3}))};
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { reader.load(memory_.stream(), counts, {}, OtherDtype::convert); }),
                       "\"i\" is I32 [3], expected F32 [3]"));
}

TEST_F(ReaderTest, TheMetaDeviceChecksAndCopiesNothing) {
  const Reader reader = Reader::open(directory(3));
  const auto device = make_device(DeviceKind::meta);
  const auto stream = device->make_stream();
  const std::vector<Entry> entries = {Entry::whole("a", Tensor(nullptr, DType::i32, {4, 5})),
                                      Entry::whole("b", Tensor(nullptr, DType::i32, {3}))};
  reader.load(*stream, entries);
  error_of(ExitCode::data, [&] { reader.load(*stream, std::span(entries).first(1)); });
  Writer writer({.root = folder_.path()});
  writer.save(4, *stream, entries, Json::object());
  writer.wait();
  EXPECT_EQ(latest(), 3);
}

}  // namespace
}  // namespace octet::checkpoint

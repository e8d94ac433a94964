#include "octet/checkpoint/manifest.h"

#include "checkpoint/files.h"
#include "octet/base/checksum.h"

namespace octet::checkpoint {
namespace {

using Json = nlohmann::json;

Manifest example() {
  Manifest manifest;
  manifest.step = 1000;
  manifest.meta = {{"seed", 18446744073709551615u}, {"loss", 4.812}, {"tiny", 1e-310}, {"none", nullptr}, {"text", "é\n"}};
  StoredTensor w;
  w.dtype = DType::bf16;
  w.shape = {4, 6};
  w.slices.push_back({"rank-00000.safetensors", "w", Slice::box({0, 0}, {4, 2}), 0xFEDCBA9876543210u});
  Slice first = Slice::box({0, 2}, {4, 6}), second = first;
  first.end = second.begin = 7;
  w.slices.push_back({"rank-00000.safetensors", "w#1", first, 1});
  w.slices.push_back({"rank-00001.safetensors", "w", second, 2});
  manifest.tensors["w"] = w;
  manifest.tensors["step"] = {DType::i32, Shape{}, {{"rank-00000.safetensors", "step", Slice::whole({}), 3}}};
  return manifest;
}

// The text of the document with a sum that fits, so that what lies elsewhere is found on its own.
std::string with_sum(Json document) {
  document.erase("xxh3");
  const std::string body = document.dump();
  char sum[17];
  std::snprintf(sum, sizeof sum, "%016llx",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(body.data(), body.size())))));
  document["xxh3"] = sum;
  return document.dump();
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest expected = example();
  const Manifest actual = parse_manifest(to_json(expected), "manifest.json");
  EXPECT_EQ(actual.step, 1000);
  EXPECT_EQ(actual.meta, expected.meta);
  ASSERT_EQ(actual.tensors.size(), 2u);
  const StoredTensor &w = actual.tensors.at("w"), &v = expected.tensors.at("w");
  EXPECT_EQ(w.dtype, DType::bf16);
  EXPECT_EQ(w.shape, v.shape);
  ASSERT_EQ(w.slices.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(w.slices[i].file, v.slices[i].file);
    EXPECT_EQ(w.slices[i].name, v.slices[i].name);
    EXPECT_EQ(w.slices[i].slice, v.slices[i].slice);
    EXPECT_EQ(w.slices[i].sum, v.slices[i].sum);
  }
  EXPECT_EQ(stored_shape(v.slices[0].slice), (Shape{4, 2}));
  EXPECT_EQ(stored_shape(v.slices[1].slice), (Shape{7}));
}

TEST(Manifest, EveryChangedByteIsNoticed) {
  const std::string text = to_json(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    // White space between tokens carries nothing; a digit for a digit and a letter for a letter do.
    if (!std::isalnum(static_cast<unsigned char>(text[i]))) continue;
    std::string changed = text;
    changed[i] = static_cast<char>(text[i] == '9' ? '8' : text[i] == 'z' ? 'y' : text[i] + 1);
    error_of(ExitCode::data, [&] { parse_manifest(changed, "manifest.json"); });
  }
  for (std::size_t size = 0; size + 2 < text.size(); size += 7) {
    error_of(ExitCode::data, [&] { parse_manifest(text.substr(0, size), "manifest.json"); });
  }
}

TEST(Manifest, RefusesLies) {
  const auto message = [](const std::function<void(Json&)>& change) {
    Json document = Json::parse(to_json(example()));
    change(document);
    return error_of(ExitCode::data, [&] { parse_manifest(with_sum(document), "m.json"); });
  };
  Json document = Json::parse(to_json(example()));
  parse_manifest(with_sum(document), "m.json");

  const auto slice = [](Json& d, int i) -> Json& { return d["tensors"]["w"]["slices"][static_cast<std::size_t>(i)]; };
  EXPECT_TRUE(contains(message([](Json& d) { d["version"] = 2; }), "m.json: version 2, this program reads version 1"));
  EXPECT_TRUE(contains(message([](Json& d) { d["format"] = "x"; }), "format \"x\""));
  EXPECT_TRUE(contains(message([](Json& d) { d.erase("step"); }), "no step"));
  EXPECT_TRUE(contains(message([](Json& d) { d["step"] = -1; }), "step has the value \"-1\""));
  EXPECT_TRUE(contains(message([](Json& d) { d["meta"] = 3; }), "meta is not an object"));
  EXPECT_TRUE(contains(message([](Json& d) { d["tensors"] = Json::array(); }), "tensors is not an object"));
  EXPECT_TRUE(contains(message([](Json& d) { d["tensors"]["w"]["dtype"] = "F7"; }), "tensor \"w\": unknown dtype \"F7\""));
  EXPECT_TRUE(contains(message([](Json& d) {
                         d["tensors"]["w"]["shape"] = {4, 7};
                       }),
                       "tensor \"w\": its slices do not cover [4, 7] once"));
  EXPECT_TRUE(contains(message([](Json& d) {
                         d["tensors"]["w"]["shape"] = {1, 2, 3, 4, 5};
                       }),
                       "shape is not an array of at most 4"));
  EXPECT_TRUE(contains(message([](Json& d) { d["tensors"]["w"]["shape"] = {4, std::uint64_t{1} << 62}; }), "overflows"));
  EXPECT_TRUE(
      contains(message([&](Json& d) { slice(d, 0)["file"] = "../../etc/passwd"; }), "\"../../etc/passwd\" is not a file"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 0)["file"] = ".."; }), "is not a file of this directory"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 0)["xxh3"] = "12"; }), "\"12\" is no XXH3 sum"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {0, 17}; }), "leaves its tensor [4, 6]"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {1, 7}; }), "do not cover"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {0, 8}; }), "do not cover"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {0, 1.5}; }), "flat has the value"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 0)["box"] = {{0, 4}, {0}}; }), "not [start, stop]"));
  EXPECT_TRUE(contains(message([&](Json& d) { d["tensors"]["w"]["slices"].clear(); }), "do not cover"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { parse_manifest("[]", "m.json"); }), "m.json: not an object"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { parse_manifest(R"({"a":1,"a":2})", "m.json"); }), "\"a\" stands twice"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { parse_manifest(std::string(9999, '['), "m.json"); }), "nested deeper"));
}

}  // namespace
}  // namespace octet::checkpoint

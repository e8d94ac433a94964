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

// Returns the document's text with a matching checksum, so that the parser finds the other faults in it.
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
    // White space between tokens means nothing. Replaces each digit by a digit and each letter by a letter.
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
    Json document = json_of(to_json(example()));
    change(document);
    return error_of(ExitCode::data, [&] { parse_manifest(with_sum(document), "m.json"); });
  };
  Json document = json_of(to_json(example()));
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
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 0)["xxh3"] = "12"; }), "\"12\" is not an XXH3 checksum"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {0, 17}; }), "leaves its tensor [4, 6]"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {1, 7}; }), "do not cover"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {0, 8}; }), "do not cover"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 1)["flat"] = {0, 1.5}; }), "flat has the value"));
  EXPECT_TRUE(contains(message([&](Json& d) { slice(d, 0)["box"] = {{0, 4}, {0}}; }), "not [start, stop]"));
  EXPECT_TRUE(contains(message([&](Json& d) { d["tensors"]["w"]["slices"].clear(); }), "do not cover"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { parse_manifest("[]", "m.json"); }), "m.json: not an object"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { parse_manifest(R"({"a":1,"a":2})", "m.json"); }), "\"a\" occurs twice"));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [] { parse_manifest(std::string(9999, '['), "m.json"); }), "nested deeper"));
}

// Returns a manifest in which one rank has written the elements [begin, end) of a tensor.
Manifest part(int rank, std::int64_t begin, std::int64_t end, const Shape& shape = {10}, DType dtype = DType::f32) {
  Manifest manifest;
  manifest.step = 5;
  manifest.meta = {{"rank", rank}};
  StoredTensor& tensor = manifest.tensors["a\n"] = {dtype, shape, {}};
  const auto sum = static_cast<std::uint64_t>(rank);
  if (end > begin)
    tensor.slices.push_back({concat("rank-0000", rank, ".safetensors"), "a\n", Slice::flat(shape, begin, end), sum});
  return manifest;
}

std::string merge_error(std::vector<Manifest> parts) {
  return error_of(ExitCode::internal, [&] { merge_manifests(std::move(parts)); });
}

TEST(Manifest, PartsMerge) {
  Manifest last = part(3, 4, 10);
  last.tensors["b"] = {DType::bf16, Shape{0, 4}, {}};
  Manifest nothing;
  nothing.step = 5;
  const Manifest merged = merge_manifests({part(0, 0, 3), nothing, part(2, 3, 4), last, part(4, 0, 0)});
  EXPECT_EQ(merged.step, 5);
  EXPECT_EQ(merged.meta, (Json{{"rank", 0}}));
  ASSERT_EQ(merged.tensors.size(), 2u);
  const std::vector<StoredSlice>& slices = merged.tensors.at("a\n").slices;
  ASSERT_EQ(slices.size(), 3u);
  for (std::size_t k = 0; k < 3; ++k) {
    const std::uint64_t rank = std::vector<std::uint64_t>{0, 2, 3}[k];
    EXPECT_EQ(slices[k].sum, rank);
    EXPECT_EQ(slices[k].file, concat("rank-0000", rank, ".safetensors"));
  }
  const Manifest read = parse_manifest(to_json(merged), "manifest.json");
  EXPECT_EQ(read.tensors.at("b").shape, (Shape{0, 4}));
  EXPECT_TRUE(read.tensors.at("b").slices.empty());
  EXPECT_EQ(merge_manifests({example()}).tensors.size(), 2u);
}

TEST(Manifest, PartsThatDoNotFitAreRefusedByName) {
  const std::string once = "tensor \"a\\n\": its slices do not cover [10] once: there are ";
  EXPECT_EQ(merge_error({part(0, 0, 3), part(1, 4, 10)}), once + "2, with 9 of 10 elements");
  EXPECT_EQ(merge_error({part(0, 0, 5), part(1, 4, 10)}), once + "2, with 11 of 10 elements");
  EXPECT_EQ(merge_error({part(0, 0, 5), part(1, 4, 9)}), once + "2, with 10 of 10 elements");
  EXPECT_EQ(merge_error({part(0, 0, 10), part(1, 0, 10)}), once + "2, with 20 of 10 elements");
  EXPECT_EQ(merge_error({part(0, 0, 0), part(1, 0, 0)}), once + "0, with 0 of 10 elements");
  EXPECT_EQ(merge_error({part(0, 0, 5), part(1, 5, 10), part(2, 0, 0, {2, 5})}),
            "tensor \"a\\n\": F32 [10] is F32 [2, 5] on rank 2");
  EXPECT_EQ(merge_error({part(0, 0, 5), part(1, 5, 10, {10}, DType::bf16)}),
            "tensor \"a\\n\": F32 [10] is BF16 [10] on rank 1");
  Manifest other = part(1, 5, 10);
  other.step = 6;
  EXPECT_EQ(merge_error({part(0, 0, 5), other}), "step 5 is step 6 on rank 1");
}

TEST(Manifest, APartNeedNotCover) {
  const std::string text = to_json(part(1, 4, 10));
  EXPECT_EQ(parse_manifest_part(text, "part").tensors.at("a\n").slices[0].slice, Slice::flat({10}, 4, 10));
  EXPECT_TRUE(contains(error_of(ExitCode::data, [&] { parse_manifest(text, "manifest.json"); }), "do not cover [10] once"));
}

}  // namespace
}  // namespace octet::checkpoint

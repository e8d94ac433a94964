// Model directories and corpora in S3, against a server on loopback.
#include "octet/base/directory.h"
#include "octet/storage/object_store.h"
#include "support/paths.h"
#include "support/s3_server.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;
using storage::ObjectStore;
using storage::parse_object_url;

class ObjectStorage : public S3Test {
 protected:
  void SetUp() override {
    S3Test::SetUp();
    ::setenv("XDG_CACHE_HOME", (run_ / "cache").c_str(), 1);
  }

  static void upload(const fs::path& file, const std::string& url) {
    ObjectStore store(5);
    ASSERT_TRUE(store.put_file(parse_object_url(url), file)) << url;
  }
  std::map<std::string, std::string> model_of(const std::string& folder) const {
    return tensors_of(run_ / folder / "model" / "model.safetensors");
  }

  const TinyRun run_;
};

TEST_F(ObjectStorage, ModelsAndCorporaAreCopiedOnce) {
  const S3Server server;
  ASSERT_EQ(run_.train("--training.steps=2").code, 0);
  for (const std::string& name : names_in(run_ / "out/model"))
    upload(run_ / ("out/model/" + name), "s3://bucket/models/tiny/" + name);
  for (const char* extension : {".bin", ".idx", ".json"})
    upload(run_ / (std::string("corpus") + extension), std::string("s3://bucket/texts/corpus") + extension);
  const std::string from_files = "--model.init_from=out/model --training.steps=4 ", model = "s3://bucket/models/tiny";
  const std::string from_objects =
      "--model.init_from=" + model + " --data.source.0.path=s3://bucket/texts/corpus --training.steps=4 --run.output_dir=";
  const std::string toml = read_file(run_ / "run.toml"), keys = toml.substr(0, toml.find("[model]"));
  const std::string rest = toml.substr(toml.find("[[data.source]]"));
  write_text(run_ / "run.toml", keys + rest);
  ASSERT_EQ(run_.train(from_files + "--run.output_dir=files").code, 0);

  ProgramResult result = run_.train(from_objects + "objects");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "copying s3://bucket/models/tiny to " + (run_ / "cache/octet/s3/bucket/models/tiny@").string()));
  EXPECT_TRUE(says(result.err, "copying s3://bucket/texts/corpus to "));
  EXPECT_EQ(model_of("objects"), model_of("files"));
  // What the run remembers is the URL, not the copy.
  const Json manifest = parse_ordered_json(read_file(last_checkpoint(run_ / "objects") / "manifest.json"), "manifest");
  EXPECT_EQ(manifest["meta"]["config"]["model"]["init_from"], model);
  EXPECT_EQ(manifest["meta"]["config"]["data"]["source"][0]["path"], "s3://bucket/texts/corpus");

  // A second run asks for no bytes. Two ranks of a machine use one copy.
  server.requests();
  result = run_.run("launch -n 2 -- train run.toml --training.steps=6 " +
                    from_objects.substr(0, from_objects.find("--training")) + "--run.output_dir=objects");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const std::string& request : server.requests())
    EXPECT_TRUE(request.find("GET /bucket/models/tiny/") == std::string::npos) << request;
  EXPECT_EQ(run_.run("generate --model " + model + " --prompt 'the model' --max-tokens 3 --temperature 0").code, 0);
  EXPECT_EQ(run_.run("data inspect s3://bucket/texts/corpus").code, 0);

  EXPECT_TRUE(refused(run_.run("generate --prompt x --model s3://bucket/models/none"), 76,
                      "s3://bucket/models/none: there are no objects in this folder"));
  EXPECT_TRUE(refused(run_.run("data inspect s3://bucket/texts/none"), 76, "s3://bucket/texts/none: no corpus here"));
  EXPECT_TRUE(
      refused(run_.run("generate --prompt x --model s3://elsewhere/x"), 76, "s3://elsewhere/x: refused", "NO_SUCH_BUCKET"));
  EXPECT_TRUE(refused(run_.run("generate --prompt x --model s3://key:secret@bucket/x"), 2, "credentials do not belong in a URL"));
}

}  // namespace
}  // namespace octet::testing

// Model directories and corpora in S3, and checkpoints that are copied there and fetched from there, against a server on
// loopback.
#include <unistd.h>

#include <csignal>

#include "octet/base/directory.h"
#include "octet/checkpoint/remote.h"
#include "octet/checkpoint/steps.h"
#include "support/paths.h"
#include "support/s3_server.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::RemoteCheckpoint;
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
  static std::vector<RemoteCheckpoint> remote(const std::string& url = "s3://bucket/run") {
    ObjectStore store(5);
    return checkpoint::remote_checkpoints(store, parse_object_url(url));
  }
  static std::vector<std::int64_t> steps_of(const std::vector<RemoteCheckpoint>& found) {
    std::vector<std::int64_t> steps;
    for (const RemoteCheckpoint& checkpoint : found) steps.push_back(checkpoint.step);
    return steps;
  }
  std::map<std::string, std::string> model_of(const std::string& folder) const {
    return tensors_of(run_ / folder / "model" / "model.safetensors");
  }

  const TinyRun run_;
  const std::string remote_ =
      "--checkpoint.remote=s3://bucket/run --checkpoint.interval=4 --training.steps=12 --checkpoint.retry_s=1 ";
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

TEST_F(ObjectStorage, ANewMachineGoesOnFromTheNewestCheckpoint) {
  const S3Server server;
  ASSERT_EQ(run_.train("--training.steps=12 --checkpoint.interval=4 --run.output_dir=untouched").code, 0);
  ASSERT_EQ(run_.train(remote_ + "--checkpoint.keep_latest_k=1 --until 4 --run.output_dir=first").code, 0);
  ProgramResult result = run_.train(remote_ + "--checkpoint.keep_latest_k=1 --until 8 --run.output_dir=first");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(steps_of(remote()), (std::vector<std::int64_t>{8, 4}));  // nothing is deleted there
  EXPECT_EQ(names_in(run_ / "first/checkpoints"), (std::vector<std::string>{"step-00000008"}));
  EXPECT_TRUE(says(run_.run("status first").out, "remote      of step 8, "));

  result = run_.train(remote_ + "--run.output_dir=second");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "fetching the checkpoint of step 8 from s3://bucket/run/step-00000008-"));
  EXPECT_TRUE(says(result.err, "resuming after step 8 from second/checkpoints/step-00000008"));
  EXPECT_EQ(model_of("second"), model_of("untouched"));
  EXPECT_EQ(steps_of(remote()), (std::vector<std::int64_t>{12, 8, 4}));

  // The first machine comes back. Its newest checkpoint is older than the one there.
  result = run_.train(remote_ + "--run.output_dir=first");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 12 from first/checkpoints/step-00000012"));

  // A run that begins anew is refused, and leaves what is there.
  EXPECT_TRUE(refused(run_.train(remote_ + "--run.output_dir=third --resume none"), 2, "there are checkpoints up to step 12",
                      "--run.set_aside=true, which marks those after step 0 as abandoned"));
  result = run_.train(remote_ + "--run.output_dir=third --resume none --run.set_aside=true --until 4");
  ASSERT_EQ(result.code, 0) << result.err;
  std::vector<RemoteCheckpoint> now = remote();
  EXPECT_EQ(steps_of(now), (std::vector<std::int64_t>{12, 8, 4, 4}));  // the same bits as before, beside what is abandoned
  std::erase_if(now, [](const RemoteCheckpoint& c) { return c.abandoned; });
  EXPECT_EQ(steps_of(now), (std::vector<std::int64_t>{4}));
  result = run_.train(remote_ + "--run.output_dir=fourth --until 4");
  EXPECT_TRUE(says(result.err, "resuming after step 4 from fourth/checkpoints/step-00000004"));
}

// The bucket does not take the marks before the process ends. The next one knows which checkpoints it had left, unless another
// machine has trained on from them.
TEST_F(ObjectStorage, AnAbandonedCheckpointDoesNotComeBackAfterAnOutage) {
  const S3Server server;
  for (const char* until : {"--until 4", "--until 8", ""}) ASSERT_EQ(run_.train(remote_ + until).code, 0);
  ASSERT_EQ(steps_of(remote()), (std::vector<std::int64_t>{12, 8, 4}));
  server.control("fail?count=1000000&kind=503&method=PUT&path=abandoned");
  ProgramResult result = run_.train(remote_ + "--resume out/checkpoints/step-00000004 --run.set_aside=true --until 6");
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(says(result.err, "checkpoints in s3://bucket/run are not marked as abandoned") ||
              says(result.err, "the checkpoint of step 6 is not copied"))
      << result.err;
  EXPECT_TRUE(path_exists(run_ / "out/remote-abandoned.json"));
  fs::copy(run_ / "out", run_ / "late", fs::copy_options::recursive);

  server.control("fail?count=0&kind=");
  result = run_.train(remote_ + "--until 6");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 6 from out/checkpoints/step-00000006")) << result.err;
  EXPECT_FALSE(path_exists(run_ / "out/remote-abandoned.json"));
  std::vector<RemoteCheckpoint> now = remote();
  EXPECT_EQ(steps_of(now), (std::vector<std::int64_t>{12, 8, 6, 4}));
  std::erase_if(now, [](const RemoteCheckpoint& c) { return c.abandoned; });
  EXPECT_EQ(steps_of(now), (std::vector<std::int64_t>{6, 4}));

  ASSERT_EQ(run_.train(remote_ + "--training.steps=16 --run.output_dir=of-another-machine").code, 0);
  result = run_.train(remote_ + "--training.steps=16 --run.output_dir=late");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "another machine has continued training from a checkpoint after step 4")) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 16 from late/checkpoints/step-00000016")) << result.err;
}

// The copy is of the newest checkpoint that no rollback has left, or of the one that is named.
TEST_F(ObjectStorage, AnotherRunGoesOnFromACheckpointThere) {
  const S3Server server;
  ASSERT_EQ(run_.train("--training.steps=12 --checkpoint.interval=4 --run.output_dir=untouched").code, 0);
  for (const char* until : {"--until 4", "--until 8", ""}) ASSERT_EQ(run_.train(remote_ + until).code, 0);
  const std::vector<RemoteCheckpoint> found = remote();
  ASSERT_EQ(steps_of(found), (std::vector<std::int64_t>{12, 8, 4}));
  ObjectStore store(5);
  store.put_text(parse_object_url("s3://bucket/run/" + found[0].name + "/abandoned"), "");

  const std::string other = "train run.toml --training.steps=12 --run.output_dir=";
  ProgramResult result = run_.run(other + "second --resume s3://bucket/run");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "copying s3://bucket/run/" + found[1].name + " to "));
  EXPECT_TRUE(says(result.err, "resuming after step 8 from " + (run_ / "cache/octet/s3/bucket/run").string()));
  EXPECT_EQ(model_of("second"), model_of("untouched"));
  const Json manifest = parse_ordered_json(read_file(last_checkpoint(run_ / "second") / "manifest.json"), "manifest");
  EXPECT_EQ(manifest["meta"]["config"]["checkpoint"]["resume"], "s3://bucket/run");

  result = run_.run("launch -n 2 -- " + other + "third --checkpoint.resume=s3://bucket/run/" + found[2].name);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 4 from "));
  EXPECT_EQ(run_.run("generate --model s3://bucket/run --prompt 'the model' --max-tokens 3 --temperature 0").code, 0);

  EXPECT_TRUE(refused(run_.run(other + "fourth --resume s3://bucket/none"), 76, "s3://bucket/none: there are no objects"));
  EXPECT_TRUE(refused(run_.run("convert import --input s3://bucket/run --output x"), 76,
                      "s3://bucket/run: there are no objects in this folder, but checkpoints of a run below it"));
  EXPECT_TRUE(refused(run_.run(other + "fourth --resume gs://bucket/run"), 2, "gs:// is not supported"));
  EXPECT_FALSE(path_exists(run_ / "fourth"));
}

TEST_F(ObjectStorage, TextsArePreparedAsIfTheyWereFiles) {
  const S3Server server;
  const std::map<std::string, std::string> texts = {{"a.jsonl", R"({"text": "first"})"},
                                                    {"deep/down/b.jsonl", R"({"text": "second"})"},
                                                    {"deep/c.txt", "third"},
                                                    {"out/built.txt", "not read in a folder, only if a pattern names it"},
                                                    {"deep-er/e.txt", "fourth"},
                                                    {"x[1]/f.txt", "fifth"},
                                                    {".hidden/d.txt", "not read in a folder"}};
  ObjectStore store(5);
  for (const auto& [name, text] : texts) {
    fs::create_directories((run_ / "texts" / name).parent_path());
    write_text(run_ / "texts" / name, text);
    store.put_text(parse_object_url("s3://bucket/texts/" + name), text);
  }
  const auto prepare = [&](const std::string& input, const std::string& output) {
    return run_.run("data prepare --input " + input + " --output " + output);
  };
  for (const std::string input :
       {"texts", "texts/deep/c.txt", "texts/*/*/*.jsonl", "texts/?.jsonl", "texts/*/*.txt", "texts/d*", "texts/x[1]"}) {
    const ProgramResult of_files = prepare("'" + input + "'", "files"),
                        of_objects = prepare("'s3://bucket/" + input + "'", "objects");
    ASSERT_EQ(of_files.code, 0) << of_files.err;
    ASSERT_EQ(of_objects.code, 0) << of_objects.err;
    for (const char* extension : {".bin", ".idx"})
      EXPECT_EQ(read_file(run_ / ("files" + std::string(extension))), read_file(run_ / ("objects" + std::string(extension))))
          << input;
  }
  EXPECT_TRUE(refused(prepare("s3://bucket/none", "x"), 76, "s3://bucket/none: no such object"));
  EXPECT_TRUE(
      refused(prepare("'s3://bucket/texts/*.csv'", "x"), 76, "s3://bucket/texts/*.csv: no object or folder matches this"));
  EXPECT_TRUE(refused(prepare("s3://bucket/texts --max-tokens 5", "x"), 2, "needs --chat"));
  store.put_text(parse_object_url("s3://bucket/both/a"), "1");
  store.put_text(parse_object_url("s3://bucket/both/a/b"), "2");
  EXPECT_TRUE(refused(prepare("s3://bucket/both", "x"), 76, "s3://bucket/both/a: is an object and a folder"));

  // A second command copies nothing again. The tokenizer of a model directory comes without the weights.
  ASSERT_EQ(run_.train("--training.steps=2").code, 0);
  for (const std::string& name : names_in(run_ / "out/model"))
    upload(run_ / ("out/model/" + name), "s3://bucket/models/tiny/" + name);
  server.requests();
  ASSERT_EQ(prepare("s3://bucket/texts --tokenizer s3://bucket/models/tiny", "again").code, 0);
  for (const std::string& request : server.requests()) {
    EXPECT_TRUE(request.find("GET /bucket/texts/") == std::string::npos) << request;
    EXPECT_TRUE(request.find("safetensors") == std::string::npos) << request;
  }
}

TEST_F(ObjectStorage, RanksFetchAndCopyOnce) {
  const S3Server server;
  const std::string two = "launch -n 2 -- train run.toml " + remote_;
  ProgramResult result = run_.run(two + "--until 4 --run.output_dir=first");
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(steps_of(remote()), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(remote()[0].files.size(), 3u);  // a file of each rank, and the manifest
  result = run_.run(two + "--run.output_dir=second");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "resuming after step 4 from second/checkpoints/step-00000004"));
  EXPECT_EQ(remote().front().step, 12);
  EXPECT_EQ(remote().back().step, 4);
}

// The rank that copies is slower than the others, which have nothing to do any more.
TEST_F(ObjectStorage, ARunThatIsAskedToStopCopiesItsLastCheckpoint) {
  const S3Server server;
  Process process("launch -n 2 --supervise -- train run.toml " + remote_ + "--training.steps=100000 --checkpoint.interval=0",
                  run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  server.control("fail?count=1&kind=slow&method=PUT&path=rank-00001");
  process.send(SIGTERM);
  const ProgramResult result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  ASSERT_EQ(remote().size(), 1u) << result.err;
  EXPECT_EQ(checkpoint::step_name(remote()[0].step), last_checkpoint(run_ / "out").filename());
}

// A folder may have attempts, checkpoints and local copies of an earlier job, and another machine has trained on since. Only a
// later attempt of the same job knows that what it has is the newest, and does not need the service.
TEST_F(ObjectStorage, ASupervisedRunComesBackToAnOldFolder) {
  const std::string options =
      "--checkpoint.memory_every=1 --training.global_batch_size=16 --metrics.tensorboard=false " + remote_;
  for (const std::string& disk : {std::string(), std::string("--checkpoint.local_dir=disk ")}) {
    const S3Server server;
    const std::string folder = disk.empty() ? "first" : "with-disk";
    const std::string first = "launch -n 2 --supervise -- train run.toml --training.steps=100000 --lr_scheduler.decay=constant " +
                              options + disk + "--training.steps=100000 --run.output_dir=" + folder;
    {
      Process process(first, run_.path());
      ASSERT_TRUE(process.read_to_step(6));
      signal_process(process.pid(), SIGKILL);
    }
    ASSERT_EQ(run_.train(options + "--training.steps=100000 --lr_scheduler.decay=constant --until 60 --checkpoint.interval=20 "
                                   "--run.output_dir=of-another-machine")
                  .code,
              0);
    Process process(first, run_.path());
    ASSERT_TRUE(process.read_to_step(70));
    const std::string log = read_file(run_ / (folder + "/logs/rank-00000.log"));
    EXPECT_TRUE(says(log, "fetching the checkpoint of step 60 from s3://bucket/run/step-00000060-")) << log;
    EXPECT_TRUE(says(log, "resuming after step 60 from " + folder + "/checkpoints/step-00000060")) << log;
    server.control("fail?count=1000000&kind=503");
    signal_process(run_.pid_of_rank(0), SIGKILL);
    PendingResult end(process);
    const fs::path said = run_ / (folder + "/logs/node-000.log");
    const auto node_log = [&] { return path_exists(said) ? read_file(said) : ""; };
    for (int tries = 0; tries < 3000 && !says(node_log(), "attempt 3 trains from step "); ++tries) ::usleep(10'000);
    server.control("fail?count=0&kind=");
    process.send(SIGTERM);
    EXPECT_EQ(end.get().code, 75);
    EXPECT_TRUE(says(node_log(), "attempt 3 trains from step "));
    remove_tree(run_ / "of-another-machine");
  }
}

// The service is away when a rank of a supervised run starts again. That is no reason to give the run up.
TEST_F(ObjectStorage, ACorpusWithoutAnAnswerGetsTimeToComeBack) {
  const S3Server server;
  for (const char* extension : {".bin", ".idx", ".json"})
    upload(run_ / (std::string("corpus") + extension), std::string("s3://bucket/texts/corpus") + extension);
  Process process(concat("launch -n 1 --supervise -- train run.toml --data.source.0.path=s3://bucket/texts/corpus ",
                         "--checkpoint.retry_s=1 --training.steps=100000 --lr_scheduler.decay=constant"),
                  run_.path());
  ASSERT_TRUE(process.read_to_step(3));
  server.control("fail?count=1000000&kind=503");
  signal_process(run_.pid_of_rank(0), SIGKILL);
  PendingResult end(process);
  const fs::path said = run_ / "out/logs/node-000.log";
  const auto waits = [&] { return path_exists(said) && says(read_file(said), "; restarts in 60 s"); };
  for (int tries = 0; tries < 3000 && !waits(); ++tries) ::usleep(10'000);
  EXPECT_TRUE(waits());
  process.send(SIGTERM);
  const ProgramResult result = end.get();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(says(result.err, ": no answer")) << result.err;
}

TEST_F(ObjectStorage, NoAnswerIsNeverNothingThere) {
  const S3Server server;
  ASSERT_EQ(run_.train(remote_ + "--until 4").code, 0);
  server.control("fail?count=1000000&kind=503");
  EXPECT_TRUE(says(run_.train(remote_ + "--run.output_dir=other").err, "s3://bucket/run: no answer"));
  EXPECT_EQ(run_.train(remote_ + "--run.output_dir=other").code, 76);
  EXPECT_EQ(run_.train(remote_).code, 76);  // nor where the run folder has one, which may be older
  EXPECT_FALSE(path_exists(run_ / "other" / "checkpoints" / "step-00000004"));
  server.control("fail?count=0&kind=");
  EXPECT_TRUE(refused(run_.train(remote_ + "--checkpoint.remote=s3://elsewhere/run --run.output_dir=other"), 76,
                      "s3://elsewhere/run: refused", "NO_SUCH_BUCKET"));
  server.control("auth");
  EXPECT_TRUE(
      refused(run_.train(remote_ + "--run.output_dir=other"), 76, "s3://bucket/run: refused", "credentials are those of"));
}

TEST_F(ObjectStorage, AFailedCopyNeverStopsTraining) {
  const S3Server server;
  ASSERT_EQ(run_.train(remote_ + "--until 4").code, 0);
  server.control("fail?count=1000000&kind=503&method=POST");  // all uploads
  const ProgramResult result = run_.train(remote_);
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(says(result.err, "is not copied to s3://bucket/run: s3://bucket/run/step-00000"));
  EXPECT_TRUE(says(result.err, "the newest there is of step 4 and "));
  EXPECT_TRUE(says(result.err, "the run is complete in out, but its checkpoint of step 12 is not in s3://bucket/run: "));
  EXPECT_TRUE(path_exists(run_ / "out/model/model.safetensors"));
  EXPECT_EQ(steps_of(remote()), (std::vector<std::int64_t>{4}));
  server.control("fail?count=0&kind=");
  EXPECT_EQ(run_.train(remote_).code, 0);  // copies what is missing
  EXPECT_EQ(remote().front().step, 12);
}

// kill -9 while a part of the first file is sent, and while the manifest is. Nothing looks complete, and the same command goes
// on.
TEST_F(ObjectStorage, AKilledUploadLeavesNoCheckpointThatLooksComplete) {
  const S3Server server;
  ASSERT_EQ(run_.train("--training.steps=12 --checkpoint.interval=0 --run.output_dir=untouched").code, 0);
  int round = 0;
  for (const std::string& request : {std::string("PUT rank-00000.safetensors"), std::string("HEAD manifest.json")}) {
    const std::string method = request.substr(0, request.find(' ')), name = request.substr(request.find(' ') + 1);
    const std::string url = "s3://bucket/run-" + std::to_string(++round);
    const std::string options = remote_ + "--checkpoint.interval=0 --checkpoint.remote=" + url + " --run.output_dir=";
    server.control("fail?count=1000000&kind=hang&method=" + method + "&path=" + name);
    server.requests();
    {
      Process process("train run.toml " + options + "out-" + std::to_string(round), run_.path());
      ASSERT_TRUE(process.read_to_step(12));
      for (bool hangs = false; !hangs; ::usleep(20'000)) {
        for (const std::string& seen : server.requests())
          hangs = hangs || (seen.starts_with(method) && seen.find(name) != std::string::npos);
      }
      process.send(SIGKILL);
      EXPECT_EQ(process.wait().code, 137);
    }
    ObjectStore store(5);
    EXPECT_TRUE(remote(url).empty());
    EXPECT_EQ(store.list(parse_object_url(url)).size(), round == 1 ? 0u : 1u);
    server.control("fail?count=0&kind=");
    EXPECT_EQ(run_.train(options + "new").code, 0);  // a new machine, for which nothing is there
    EXPECT_EQ(run_.train(options + "out-" + std::to_string(round)).code, 0);
    const std::vector<RemoteCheckpoint> found = remote(url);
    ASSERT_FALSE(found.empty());
    EXPECT_NO_THROW(
        checkpoint::fetch_checkpoint(store, parse_object_url(url), found.front(), run_ / ("fetched-" + std::to_string(round))));
    EXPECT_EQ(found.front().step, 12);
    EXPECT_EQ(model_of("out-" + std::to_string(round)), model_of("untouched"));
    remove_tree(run_ / "new");
  }
}

// What is damaged here is fetched, whether an older checkpoint is here or none.
TEST_F(ObjectStorage, ACheckpointThatIsDamagedHereIsFetched) {
  const S3Server server;
  ASSERT_EQ(run_.train("--training.steps=12 --checkpoint.interval=4 --run.output_dir=untouched").code, 0);
  for (const std::string step : {"4", "8"}) {
    ASSERT_EQ(run_.train(remote_ + "--until " + step).code, 0);
    const fs::path file = last_checkpoint(run_ / "out") / "rank-00000.safetensors";
    std::string bytes = read_file(file);
    bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
    write_text(file, bytes);
  }
  const ProgramResult result = run_.train(remote_);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "fetching the checkpoint of step 8 from s3://bucket/run/step-00000008-"));
  EXPECT_TRUE(says(result.err, "resuming after step 8 from out/checkpoints/step-00000008"));
  EXPECT_EQ(model_of("out"), model_of("untouched"));
  EXPECT_EQ(names_in(run_ / "out/checkpoints/damaged"), (std::vector<std::string>{"step-00000004", "step-00000008"}));
}

// The restart of a job does not take an older one, and leaves no mark on the sound one in the bucket.
TEST_F(ObjectStorage, ARestartFetchesWhatIsDamagedHere) {
  const S3Server server;
  const std::string options = remote_ + "--checkpoint.memory_every=0 --lr_scheduler.decay=constant --training.steps=100000 ";
  for (const char* until : {"--until 4", "--until 8"}) ASSERT_EQ(run_.train(options + until).code, 0);
  Process process("launch -n 1 --supervise -- train run.toml " + options + "--checkpoint.interval=100000", run_.path());
  ASSERT_TRUE(process.read_to_step(12));
  const fs::path file = last_checkpoint(run_ / "out") / "rank-00000.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write_text(file, bytes);
  signal_process(run_.pid_of_rank(0), SIGKILL);
  PendingResult end(process);
  const fs::path said = run_ / "out/logs/node-000.log";
  const auto node_log = [&] { return path_exists(said) ? read_file(said) : ""; };
  for (int tries = 0; tries < 3000 && !says(node_log(), "attempt 2 trains from step "); ++tries) ::usleep(10'000);
  process.send(SIGTERM);
  EXPECT_EQ(end.get().code, 75);
  const std::string log = read_file(run_ / "out/logs/rank-00000.log");
  EXPECT_TRUE(says(log, "fetching the checkpoint of step 8 from s3://bucket/run/step-00000008-")) << log;
  EXPECT_TRUE(says(node_log(), "attempt 2 trains from step 8")) << node_log();
  for (const RemoteCheckpoint& found : remote()) EXPECT_FALSE(found.abandoned) << found.name;
}

// A new machine needs only the bucket.
TEST_F(ObjectStorage, ACheckpointGoesAlongWithItsTokenizer) {
  const S3Server server;
  ASSERT_EQ(run_.train("--training.steps=2").code, 0);
  Json config = parse_ordered_json(read_file(run_ / "out/model/config.json"), "config.json");
  config.erase("tokenizer");
  config["eos_token_id"] = 0;
  upload(run_ / "out/model/model.safetensors", "s3://bucket/models/tiny/model.safetensors");
  const std::map<std::string, std::string> files = {
      {"config.json", config.dump()}, {"tokenizer.json", "{}"}, {"generation_config.json", "{\"temperature\": 0.5}"}};
  for (const auto& [name, text] : files) {
    write_text(run_ / name, text);
    upload(run_ / name, "s3://bucket/models/tiny/" + name);
  }
  Json corpus = parse_ordered_json(read_file(run_ / "corpus.json"), "corpus.json");
  corpus["tokenizer"] = "s3://bucket/models/tiny";
  write_text(run_ / "corpus.json", corpus.dump());
  const std::string toml = read_file(run_ / "run.toml");
  write_text(run_ / "run.toml", toml.substr(0, toml.find("[model]")) + "[model]\ninit_from = \"s3://bucket/models/tiny\"\n" +
                                    toml.substr(toml.find("[[data.source]]")));
  ASSERT_EQ(run_.train(remote_ + "--until 4").code, 0);
  ASSERT_EQ(run_.train("--training.steps=2 --lora.rank=2 --run.output_dir=lora").code, 0);
  ASSERT_EQ(run_.run("convert export --adapter --checkpoint lora --output adapter").code, 0);
  for (const char* adapter : {"lora/adapter", "adapter"}) {
    const std::string about = read_file(run_ / adapter / "adapter_config.json");
    EXPECT_TRUE(says(about, "\"base_model_name_or_path\": \"s3://bucket/models/tiny\"")) << adapter;
  }
  EXPECT_EQ(run_.run("convert export --checkpoint adapter --output merged").code, 0);  // the base is fetched
  EXPECT_EQ(read_file(run_ / "merged/tokenizer.json"), "{}");

  const TemporaryFolder elsewhere;
  ::setenv("XDG_CACHE_HOME", (elsewhere / "cache").c_str(), 1);
  const ProgramResult exported = run_program("convert export --checkpoint s3://bucket/run --output exported", elsewhere.path());
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_FALSE(path_exists(elsewhere / "cache/octet/s3/bucket/models"));
  ASSERT_EQ(run_.train(remote_ + "--run.output_dir=second").code, 0);
  for (const char* name : {"tokenizer.json", "generation_config.json"}) {
    EXPECT_EQ(read_file(elsewhere / "exported" / name), files.at(name));
    EXPECT_EQ(read_file(run_ / "second/model" / name), files.at(name));
    EXPECT_EQ(read_file(run_ / "second/checkpoints/tokenizer" / name), files.at(name));
  }
}

TEST_F(ObjectStorage, ADamagedCheckpointGivesWayToTheOneBefore) {
  const S3Server server;
  ASSERT_EQ(run_.train(remote_ + "--until 4").code, 0);
  ASSERT_EQ(run_.train(remote_ + "--until 8").code, 0);
  const RemoteCheckpoint newest = remote().front();
  std::string bytes = read_file(last_checkpoint(run_ / "out") / "rank-00000.safetensors");
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  overwrite_object("bucket", "run/" + newest.name + "/rank-00000.safetensors", bytes);
  const ProgramResult result = run_.train(remote_ + "--run.output_dir=second");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(says(result.err, "its bytes are damaged"));
  EXPECT_TRUE(says(result.err, "resuming after step 4 from second/checkpoints/step-00000004"));
  EXPECT_TRUE(path_exists(run_ / "second/checkpoints/damaged"));
}

}  // namespace
}  // namespace octet::testing

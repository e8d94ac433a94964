// A model whose SwiGLU has a channel of outliers, made by tools/make_outlier_model.py, and the model that it is made of.
#include "octet/telemetry/health_verdict.h"
#include "support/paths.h"
#include "support/tiny_run.h"

namespace octet::testing {
namespace {

std::vector<std::string> findings_of_top_channel(const std::filesystem::path& run) {
  std::vector<telemetry::HealthSample> samples;
  for (const Json& line : read_lines(run / "fp8_health.jsonl")) {
    samples.push_back({.step = line["step"], .tensor = line["tensor"]});
    if (!line["top_channel_pct"].is_null()) samples.back().top_channel_pct = line["top_channel_pct"].get<double>();
  }
  std::vector<std::string> layers;
  for (const telemetry::HealthFinding& finding : telemetry::find_unhealthy(samples)) layers.push_back(finding.layer);
  return layers;
}

TEST(OutlierChannel, IsWatchedInHealthFilesAndReport) {
  const TinyRun run;
  ASSERT_EQ(run.train("--run.output_dir=base --training.steps=24 --metrics.health_freq=1").code, 0);
  EXPECT_TRUE(findings_of_top_channel(run / "base").empty());
  const std::string make = concat("'", python_path(), "' '", source_dir(), "/tools/make_outlier_model.py' '",
                                  (run / "base/model").string(), "' '", (run / "outlier").string(), "' --swiglu");
  ASSERT_EQ(std::system(make.c_str()), 0);
  // In BF16 both compute the same.
  const auto loss = [&](const std::string& model) {
    return json_of(run.run("eval run.toml --json --precision.recipe=bf16 --model " + model).out)["eval_loss"];
  };
  EXPECT_EQ(loss("outlier"), loss("base/model"));
  for (const std::string recipe : {"fp8_delayed", "fp8_block", "mxfp8"}) {
    const std::string options = "--training.steps=3 --optimizer.lr=1e-5 --precision.recipe=" + recipe;
    ASSERT_EQ(run.train("--model.init_from=base/model --run.output_dir=h-" + recipe + " " + options).code, 0);
    EXPECT_TRUE(findings_of_top_channel(run / ("h-" + recipe)).empty()) << recipe;
    ASSERT_EQ(run.train("--model.init_from=outlier --run.output_dir=o-" + recipe + " " + options).code, 0);
    EXPECT_EQ(findings_of_top_channel(run / ("o-" + recipe)),
              (std::vector<std::string>{"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}))
        << recipe;
  }
  ASSERT_EQ(run.run("report o-fp8_delayed").code, 0);
  const std::string html = read_file(run / "o-fp8_delayed/report.html");
  EXPECT_NE(html.find("share of the top channel in all channels"), std::string::npos);
  EXPECT_NE(html.find("after SwiGLU: at most "), std::string::npos);
}

}  // namespace
}  // namespace octet::testing

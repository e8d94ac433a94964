#include <fmt/format.h>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/threads.h"
#include "octet/app/work_progress.h"
#include "octet/base/log.h"
#include "octet/telemetry/format.h"
#include "octet/train/adapter_files.h"
#include "octet/train/convert.h"
#include "octet/train/restore.h"

namespace octet::app {
namespace {

train::WeightType type_named(const std::string& dtype) {
  return dtype == "fp8" ? train::WeightType::fp8 : dtype == "fp32" ? train::WeightType::fp32 : train::WeightType::bf16;
}

int convert(const std::filesystem::path& source, const std::filesystem::path& output, const std::string& dtype,
            std::int64_t max_shard_size) {
  use_threads({});
  WorkProgress progress(output.string());
  const train::Converted converted =
      train::convert_model(source, {.output = output,
                                    .type = type_named(dtype),
                                    .max_shard_bytes = max_shard_size,
                                    .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }});
  if (!converted.ragged.empty()) {
    const bool one = converted.ragged.size() == 1;
    log_warning(concat(output.string(), ": ", converted.ragged.size(), one ? " FP8 matrix has" : " FP8 matrices have",
                       " a dimension that is not a multiple of 128 (", converted.ragged.front(), one ? "" : ", ...",
                       "). vLLM may refuse ", one ? "it" : "them", "; transformers without a GPU decodes ", one ? "it" : "them",
                       " wrongly"));
  }
  if (const auto& names = converted.not_finite; !names.empty()) {
    log_warning(concat(output.string(), ": ", names.size(), names.size() == 1 ? " tensor has" : " tensors have",
                       " values that are NaN or infinite: ", names.front(), names.size() > 1 ? ", ..." : ""));
  }
  const std::string weights =
      dtype == "fp8" ? fmt::format("{} matrices in fp8, the rest in bf16", converted.fp8_matrices) : dtype;
  fmt::print("{}: config.json and weights, {} parameters, {}\n", output.string(),
             telemetry::format_compact(static_cast<double>(converted.parameters)), weights);
  return 0;
}

}  // namespace

int run_convert_import(const ConvertImportArgs& args) {
  const std::filesystem::path input = fetched_folder(args.input);
  train::demand_one(input, "a model directory");
  train::demand_no_run_folder(input);
  return convert(input, args.output, args.dtype, args.max_shard_size);
}

int run_convert_export(const ConvertExportArgs& args) {
  if (args.adapter) {
    use_threads({});
    train::export_adapter(train::model_at(fetched_checkpoint(args.checkpoint)), args.output);
    fmt::print("{}: adapter_config.json and adapter_model.safetensors\n", args.output.string());
    return 0;
  }
  return convert(train::model_at(fetched_checkpoint(args.checkpoint)), args.output, args.dtype, args.max_shard_size);
}

}  // namespace octet::app

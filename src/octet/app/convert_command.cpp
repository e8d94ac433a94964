#include <fmt/format.h>

#include "octet/app/commands.h"
#include "octet/app/threads.h"
#include "octet/checkpoint/model_dir.h"
#include "octet/models/registry.h"
#include "octet/train/restore.h"
#include "octet/train/tokenizer.h"

namespace octet::app {

int run_convert_export(const ConvertExportArgs& args) {
  use_threads({});
  demand(args.dtype == "bf16" || args.dtype == "fp32", ExitCode::config, "--dtype ", args.dtype, ": must be bf16 | fp32");
  const auto engine = train::open_model(args.checkpoint, DeviceKind::cpu, 1);
  std::filesystem::create_directories(args.output);
  checkpoint::save_weights(engine->queue(), args.output, models::names_of(engine->model()),
                           {.dtype = args.dtype == "bf16" ? DType::bf16 : DType::f32});
  models::write_config(args.output, engine->model().config());
  train::copy_tokenizer(train::tokenizer_of_model(args.checkpoint, engine->model().config()), args.output);
  fmt::print("{}: config.json and weights in {}\n", args.output.string(), args.dtype);
  return 0;
}

}  // namespace octet::app

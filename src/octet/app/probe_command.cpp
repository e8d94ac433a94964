#include <array>

#include "octet/app/commands.h"
#include "octet/app/fetched.h"
#include "octet/app/output_file.h"
#include "octet/app/set_option.h"
#include "octet/app/threads.h"
#include "octet/train/probe.h"
#include "octet/train/restore.h"
#include "octet/train/setup.h"

namespace octet::app {

int run_probe(const ProbeArgs& args) {
  demand(!args.output.empty(), ExitCode::config, "--output \"\": the file to write needs a name");
  // A plain optimizer, so that the update is easily made elsewhere; --set changes it.
  train::Config config;
  config.precision.recipe = args.recipe;
  config.run.device = args.device;
  config.optimizer.lr = 1e-3;
  config.optimizer.weight_decay = 0.0;
  config.optimizer.max_grad_norm = 0.0;
  config.training.micro_batch_size = 0;
  apply_set(config, args.set,
            {"precision.*", "optimizer.*", "activation_checkpoint.*", "training.micro_batch_size", "training.grad_dtype",
             "run.seed", "run.threads", "run.deterministic"});
  use_threads(config);
  const DeviceKind device = train::device_of(config);
  train::ProbeOptions options{.model = train::exported_model_at(fetched_folder(args.model)),
                              .tokens = args.tokens,
                              .calibrate = args.calibrate,
                              .output = args.output,
                              .device = device,
                              .grads = args.grads,
                              .steps = args.steps,
                              .dump = args.dump,
                              .micro_batch_size = config.training.micro_batch_size,
                              .lr = config.optimizer.lr,
                              .engine = train::optimizer_options(config, train::recipe_of(config, device))};
  demand(args.dump.empty() || args.steps > 0, ExitCode::config, "--dump ", args.dump, " needs --steps");
  demand_own_file("--output", args.output, std::array{args.tokens, args.calibrate, options.model});
  train::probe(options);
  return 0;
}

}  // namespace octet::app

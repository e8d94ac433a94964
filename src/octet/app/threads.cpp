#include "octet/app/threads.h"

#include "octet/base/threads.h"

namespace octet::app {

void use_threads(const train::Config& config) { set_num_threads(config.run.threads > 0 ? config.run.threads : available_cores()); }

}  // namespace octet::app

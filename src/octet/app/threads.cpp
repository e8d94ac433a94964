#include "octet/app/threads.h"

#include <algorithm>

#include "octet/base/start_thread.h"
#include "octet/base/threads.h"

namespace octet::app {

void use_threads(const train::Config& config, int local_ranks) {
  check_threads("run.threads", config.run.threads);
  set_num_threads(config.run.threads > 0 ? config.run.threads : std::max(1, available_cores() / local_ranks));
}

}  // namespace octet::app

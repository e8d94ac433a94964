#include "octet/app/threads.h"

#include <algorithm>

#include "octet/base/threads.h"

namespace octet::app {

void use_threads(const train::Config& config, int local_ranks) {
  set_num_threads(config.run.threads > 0 ? config.run.threads : std::max(1, available_cores() / local_ranks));
}

}  // namespace octet::app

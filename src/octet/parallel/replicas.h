// The replicate axis: ranks that hold the same and see other data add up their gradients once a step.
#pragma once

#include "octet/comm/group.h"
#include "octet/device/arena.h"
#include "octet/device/device.h"
#include "octet/parallel/parameter.h"

namespace octet::parallel {

// Every gradient becomes its sum over the ranks of `replicas`; to be called once, after the last micro-batch.
void reduce_gradients(Queue& queue, Arena& scratch, comm::Group& replicas, ParameterStore& store);

}  // namespace octet::parallel

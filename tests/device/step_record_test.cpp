#include "support/step_record.h"

#include <gtest/gtest.h>

namespace octet::testing {
namespace {

// Stream 1 waits for the product of stream 0, stream 2 waits for stream 1, and the host waits for stream 2.
TEST(StepRecord, NamesWhatMustHaveEnded) {
  StepRecord record;
  const auto device = make_recording_device(record);
  const auto compute = device->make_stream(), params = device->make_stream(), context = device->make_stream();
  compute->count("norm", {.bytes = 8});
  compute->count("gemm", {.flops = 6, .fp8_flops = 6, .bytes = 4, .shape = {1, 2, 3}});
  params->wait(*compute->record());
  compute->zero(nullptr, 16);
  params->count("all_gather", {.bytes = 32, .group = "shards"});
  params->count("all_gather", {.bytes = 2, .group = "shards", .joins = true});
  record.heading("then");
  context->wait(*params->record());
  context->copy(nullptr, nullptr, 5);
  context->synchronize();
  compute->count("swiglu", {});
  EXPECT_EQ(
      record.text(),
      "stream 0\n  1 norm 8 B\n  2 gemm 1x2x3 4 B 6 FLOP fp8\n  3 zero 16 B\n  -- then\n  4 swiglu 0 B after 1:2 after 2:1\n"
      "stream 1\n  1 all_gather 32 B over shards after 0:2\n  2 all_gather 2 B over shards joins\n  -- then\n"
      "stream 2\n  -- then\n  1 copy 5 B after 0:2 after 1:2\n");
}

}  // namespace
}  // namespace octet::testing

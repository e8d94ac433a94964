// Attention within documents. cuDNN treats each document as a sequence of its own.
#include "octet/kernels/attention/attention_documents.h"

#include "gpu/attention_fixture.h"

namespace octet::testing {
namespace {

class AttentionDocumentsTest : public AttentionGpuTest {
 protected:
  // Returns where documents of 1, 2, 3, ... tokens begin among `keys` keys.
  static std::vector<std::int64_t> growing(std::int64_t keys) {
    std::vector<std::int64_t> begins;
    for (std::int64_t at = 0, length = 1; at < keys; at += length++) begins.push_back(at);
    return begins;
  }
  Operands with_documents(const AttentionSizes& sizes, const std::vector<std::int64_t>& begins, std::int64_t keys_before = 0) {
    Operands x = operands(sizes);
    give_documents(x, begins, keys_before);
    return x;
  }

  // The documents that a plain loop over the queries finds.
  struct Expected {
    std::vector<std::int64_t> begins, queries, key_begins, keys;
  };
  static Expected expected_documents(const Operands& x) {
    const AttentionSizes& s = x.sizes;
    const std::int32_t* first_keys = x.first_keys.cpu.as<std::int32_t>();
    Expected e;
    for (std::int64_t i = 0; i < s.batch * s.sq; ++i) {
      const std::int64_t b = i / s.sq, own = i % s.sq + s.sk - s.sq;
      const std::int64_t first = std::max<std::int64_t>(0, first_keys[i] - x.keys_before);
      if (i % s.sq == 0 || first_keys[i] != first_keys[i - 1]) {
        e.begins.push_back(i);
        e.queries.push_back(0);
        e.key_begins.push_back(b * s.sk + first);
        e.keys.push_back(0);
      }
      ++e.queries.back();
      e.keys.back() = own + 1 - first;
    }
    return e;
  }
};

TEST_F(AttentionDocumentsTest, AreFoundFromFirstKeys) {
  for (const auto& [sizes, begins, before] : std::vector<std::tuple<AttentionSizes, std::vector<std::int64_t>, std::int64_t>>{
           {{1, 1, 1, 7, 7, 16}, {0}, 0},
           {{2, 1, 1, 100, 100, 16}, {0, 1, 40, 99}, 0},
           {{3, 1, 1, 1300, 1300, 16}, growing(1300), 0},  // more queries than threads
           {{1, 1, 1, 2500, 5000, 16}, growing(5000), 0},  // a chunk on its prefix
           {{1, 1, 1, 50, 80, 16}, {35, 60}, 20}}) {       // whose first document began before its keys
    SCOPED_TRACE(sizes.text());
    const Operands x = with_documents(sizes, begins, before);
    const std::int64_t n = kernels::document_entries(x.documents, sizes.batch * sizes.sq), queries = sizes.batch * sizes.sq;
    const std::size_t bytes = kernels::document_arrays_bytes(queries);
    const Buffer memory = gpu->allocate(bytes, MemoryCategory::workspace);
    kernels::cuda::FindDocuments find{.first_keys = x.first_keys.gpu,
                                      .keys_before = before,
                                      .batch = sizes.batch,
                                      .sq = sizes.sq,
                                      .sk = sizes.sk,
                                      .entries = n};
    for (std::size_t i = 0; i < kernels::kAttentionOperands; ++i) find.strides[i] = static_cast<std::int64_t>(i + 1);
    find_documents(*gpu_stream, find, kernels::DocumentArrays(memory.data(), n));
    std::vector<std::byte> host(bytes);
    gpu_stream->copy_to_host(host.data(), memory.data(), bytes);
    gpu_stream->synchronize();
    const kernels::DocumentArrays actual(host.data(), n);
    const Expected expected = expected_documents(x);
    const auto count = static_cast<std::int64_t>(expected.begins.size());
    ASSERT_LE(count, n);
    int wrong = 0;
    for (std::int64_t d = 0; d <= n; ++d) {
      const auto at = static_cast<std::size_t>(d);
      const std::int64_t begin = d < count ? expected.begins[at] : queries;
      const std::int64_t key_begin = d < count ? expected.key_begins[at] : sizes.batch * sizes.sk;
      if (d < n) {
        wrong += actual.queries[d] != (d < count ? expected.queries[at] : 0);
        wrong += actual.keys[d] != (d < count ? expected.keys[at] : 0);
      }
      for (std::size_t i = 0; i < kernels::kAttentionOperands; ++i) {
        const bool keys = i == 1 || i == 2 || i == 7 || i == 8;  // k, v, gk, gv
        wrong += actual.offsets_of(i)[d] != (keys ? key_begin : begin) * static_cast<std::int64_t>(i + 1);
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << count << " documents";
  }
}

TEST_F(AttentionDocumentsTest, AgreeWithTheCpu) {
  for (const AttentionSizes& sizes : std::vector<AttentionSizes>{{1, 4, 4, 64, 64, 64},
                                                                 {2, 4, 2, 96, 96, 64},
                                                                 {1, 8, 2, 512, 512, 128},
                                                                 {2, 4, 1, 1000, 1000, 128},
                                                                 {3, 4, 2, 129, 129, 96},
                                                                 {1, 2, 1, 300, 300, 256}}) {
    expect_agreement(with_documents(sizes, {0}));
    expect_agreement(with_documents(sizes, {0, 1, 30, 31, 63}));
    expect_agreement(with_documents(sizes, growing(sizes.sk)));
  }
}

// The queries are the last chunk of a sequence, and the first keys of the sequence may be left out. Some documents end before the
// queries, one reaches into them, and others lie within.
TEST_F(AttentionDocumentsTest, AgreeWithTheCpuOnChunks) {
  for (const AttentionSizes& sizes :
       std::vector<AttentionSizes>{{1, 4, 2, 128, 384, 64}, {1, 8, 2, 200, 333, 128}, {2, 4, 4, 64, 160, 128}}) {
    const std::int64_t first = sizes.sk - sizes.sq;
    expect_agreement(with_documents(sizes, {0}));
    expect_agreement(with_documents(sizes, {0, first / 2, first + 10, first + 11, first + 60}));
    expect_agreement(with_documents(sizes, {0, 5, first, first + 1}));
    expect_agreement(with_documents(sizes, {first / 2, first + 40}, 77));
    expect_agreement(with_documents(sizes, {first + 40}, 77));
  }
}

TEST_F(AttentionDocumentsTest, AgreeWithTheCpuInWindows) {
  for (const std::int64_t window : {2, 20, 64, 100, 1000}) {
    AttentionSizes sizes{2, 4, 2, 300, 300, 64};
    sizes.window = window;
    expect_agreement(with_documents(sizes, {0, 17, 18, 90, 250}));
    AttentionSizes chunk{1, 8, 2, 128, 300, 128};
    chunk.window = window;
    expect_agreement(with_documents(chunk, {0, 100, 180, 260}));
    expect_agreement(with_documents(chunk, {100, 180, 260}, 50));
  }
}

TEST_F(AttentionDocumentsTest, OtherDocumentsDoNotMatter) {
  const AttentionSizes sizes{1, 4, 2, 300, 300, 64};
  const Operands x = with_documents(sizes, {0, 100, 217});
  run_gpu(x);
  const HostTensor o = fetch(x.o.gpu);
  for (std::int64_t i = 0; i < 300; ++i) {
    if (i >= 100 && i < 217) continue;
    for (const Tensor& t : {x.k.cpu, x.v.cpu}) {
      for (std::int64_t c = 0; c < t.cols(); ++c) t.as<BFloat16>()[i * t.row_stride + c] = BFloat16(static_cast<float>(i % 7));
    }
  }
  // Copies Q, K and V at once: they are columns of one matrix that begins with Q.
  gpu_stream->copy_to_device(x.q.gpu.data, x.q.cpu.data, static_cast<std::size_t>(300 * x.q.cpu.row_stride) * 2);
  run_gpu(x);
  const HostTensor after = fetch(x.o.gpu);
  EXPECT_TRUE(same_bytes(after.view().slice_rows(100, 217), o.view().slice_rows(100, 217)));
  EXPECT_FALSE(same_bytes(after.view().slice_rows(217, 300), o.view().slice_rows(217, 300)));
}

// The plan does not know the documents, so its scratch must do for few long ones and for many short ones.
TEST_F(AttentionDocumentsTest, TakeNoMoreScratchThanPlanned) {
  for (const AttentionSizes& sizes : std::vector<AttentionSizes>{
           {1, 8, 2, 4096, 4096, 128}, {1, 8, 8, 2048, 2048, 64}, {4, 4, 1, 1001, 1001, 96}, {1, 8, 2, 1024, 3072, 128}}) {
    for (const std::int64_t length : {1, 100, 100000}) {
      std::vector<std::int64_t> begins;
      for (std::int64_t at = 0; at < sizes.sk; at += length) begins.push_back(at);
      const Operands x = with_documents(sizes, begins);
      Operands one = x;
      one.documents = 1;
      const auto meta = make_meta_device(DeviceKind::cuda);
      const auto meta_stream = meta->make_stream();
      Arena planned(*meta, MemoryCategory::workspace, 0), taken(*gpu, MemoryCategory::workspace, std::size_t{1} << 30);
      attention_forward(*meta_stream, planned, one.forward(&Twin::gpu));
      attention_backward(*meta_stream, planned, one.backward(&Twin::gpu));
      EXPECT_NO_THROW(attention_forward(*gpu_stream, taken, x.forward(&Twin::gpu))) << sizes.text() << ", " << length;
      EXPECT_NO_THROW(attention_backward(*gpu_stream, taken, x.backward(&Twin::gpu))) << sizes.text() << ", " << length;
      gpu_stream->synchronize();
      EXPECT_EQ(taken.high_water(), planned.high_water()) << sizes.text() << ", " << length;
    }
  }
}

TEST_F(AttentionDocumentsTest, AreRefusedBeforeAnyStep) {
  const auto meta = make_meta_device(DeviceKind::cuda);
  const auto meta_stream = meta->make_stream();
  Arena scratch(*meta, MemoryCategory::workspace, 0);
  const auto refusal = [&](const AttentionSizes& sizes, std::int64_t documents) {
    Operands x = with_documents(sizes, {0, 5});
    x.documents = documents;
    try {
      attention_forward(*meta_stream, scratch, x.forward(&Twin::gpu));
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::done;
  };
  EXPECT_EQ(refusal({1, 2, 1, 16, 16, 64}, 2), ExitCode::done);
  EXPECT_EQ(refusal({1, 2, 1, 16, 16, 24}, 2), ExitCode::config);
  EXPECT_EQ(refusal({1, 2, 1, 16, 16, 64, true}, 2), ExitCode::config);
  EXPECT_EQ(refusal({1, 2, 1, 16, 16, 64}, 0), ExitCode::internal);
}

}  // namespace
}  // namespace octet::testing

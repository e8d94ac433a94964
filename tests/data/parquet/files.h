// The files that write_files.py writes. Tests that need them are skipped if the plugin or pyarrow is missing.
#pragma once

#include <stdlib.h>
#include <sys/wait.h>

#include "data/files.h"
#include "octet/data/parquet/parquet_file.h"
#include "support/paths.h"

namespace octet::data {

class ParquetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::parquet_plugin().empty()) GTEST_SKIP() << "the Parquet plugin is not built (OCTET_ARROW)";
    ASSERT_EQ(::setenv("OCTET_PARQUET", testing::parquet_plugin().c_str(), 1), 0);
    const std::string script = "'" + testing::python_path() + "' '" + testing::source_dir() + "/tests/data/parquet/write_files.py' ";
    const int status = std::system((script + folder_.path().string()).c_str());
    constexpr int kNoPyarrow = 77;
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoPyarrow) GTEST_SKIP() << "no pyarrow in " + testing::python_path();
    ASSERT_EQ(status, 0);
  }
  std::filesystem::path file(const std::string& name) const { return folder_ / (name + ".parquet"); }

  TemporaryFolder folder_;
};

}  // namespace octet::data

#include "octet/app/job_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "octet/app/fetched.h"
#include "octet/base/require.h"
#include "octet/storage/object_store.h"

namespace octet::app {
namespace {

// Gives this process the memory as a rank inherits it.
class Inherited {
 public:
  Inherited(const char* name, std::string_view text = "") : name_(name), memory_(name, text) {
    const std::string variable = memory_.variable();
    ::setenv(name, variable.substr(variable.find('=') + 1).c_str(), 1);
  }
  ~Inherited() { ::unsetenv(name_); }
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;

 private:
  const char* name_;
  JobMemory memory_;
};

TEST(JobMemory, KeepsATextForTheNextAttempt) {
  EXPECT_FALSE(text_of_job(kConfigOfJob)) << "no supervisor";
  EXPECT_NO_THROW(set_text_of_job(kConfigOfJob, "x"));
  const Inherited memory(kConfigOfJob, "[run]\n");
  for (const int attempt : {1, 2}) EXPECT_EQ(text_of_job(kConfigOfJob), "[run]\n") << attempt;
  set_text_of_job(kConfigOfJob, "x");
  EXPECT_EQ(text_of_job(kConfigOfJob), "x");
}

// The credentials have expired when a rank of a supervised run starts again.
TEST(CopiesOfJob, ServeARestartThatTheStoreRefuses) {
  train::Config config;
  config.data.source = {{.path = "s3://bucket/a"}, {.path = "here"}, {.path = "s3://bucket/b"}};
  const train::Config given = config;
  const auto refused = [&] {
    for (const train::SourceConfig& source : config.data.source) {
      if (storage::is_object_url(source.path))
        throw storage::StoreError(storage::StoreError::Fault::refused, source.path + ": refused: ExpiredToken");
    }
  };
  EXPECT_THROW(or_use_copies_of_job(config, refused), storage::StoreError) << "no supervisor";
  const Inherited memory(kCopiesOfJob);
  EXPECT_THROW(or_use_copies_of_job(config, refused), storage::StoreError) << "the first attempt has no copies";

  train::use_copies(config, {{"/cache/a@1/a", "s3://bucket/a"}, {"/cache/b@2/b", "s3://bucket/b"}});
  remember_copies_for_job(config);
  const train::Config before = std::exchange(config, given);
  ::testing::internal::CaptureStderr();
  EXPECT_NO_THROW(or_use_copies_of_job(config, refused));
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("ExpiredToken; goes on with the copies that this job has used before"), warning.npos) << warning;
  EXPECT_EQ(config.data.source[0].path, "/cache/a@1/a");
  EXPECT_EQ(config.data.source[1].path, "here");
  EXPECT_EQ(config.data.source[2].path, "/cache/b@2/b");
  EXPECT_EQ(config.copies, before.copies) << "checkpoints know the URLs";

  config = given;
  config.data.source.push_back({.path = "s3://bucket/new"});
  EXPECT_THROW(or_use_copies_of_job(config, refused), storage::StoreError) << "of which there is no copy";
}

}  // namespace
}  // namespace octet::app

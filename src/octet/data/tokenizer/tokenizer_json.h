// A tokenizer.json and how its parts are asked for. What is broken is Error{data}, what is not supported Error{config}; both name
// the file and the part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json.h"

namespace octet::data {

class TokenizerJson {
 public:
  using Json = nlohmann::json;

  TokenizerJson(std::string_view json, const std::string& file);

  const Json& root() const { return root_; }
  const std::string& file() const { return file_; }

  [[noreturn]] void refuse(const std::string& part) const;  // " is not supported"
  [[noreturn]] void broken(const std::string& what) const;

  // Null where there is no such member.
  const Json& member(const Json& object, const char* key) const;
  // `where` names the object in messages.
  std::string text(const Json& object, const char* key, const std::string& where) const;
  bool flag(const Json& object, const char* key, bool otherwise, const std::string& where) const;
  // Refuses any other value than the one that is wanted.
  void expect(const Json& object, const char* key, bool wanted, bool otherwise, const std::string& where) const;
  std::int32_t id(const Json& value, const std::string& where) const;

  struct Part {
    std::string name;  // "pre_tokenizer Split"
    std::string type;
    const Json* json;
  };
  // What member `key` of the file says step by step; `list` is the member of a Sequence that holds its steps.
  std::vector<Part> parts(const char* key, const char* list) const;

 private:
  std::string file_;
  Json root_;
};

}  // namespace octet::data

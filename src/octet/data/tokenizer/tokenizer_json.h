// Access to the parts of a tokenizer.json. Throws Error{data} for a malformed part and Error{config} for an unsupported part; both name
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

  [[noreturn]] void refuse(const std::string& part) const;  // Error{config} "FILE: PART is not supported"
  [[noreturn]] void broken(const std::string& what) const;  // Error{data} "FILE: WHAT"

  // Returns null if there is no such member.
  const Json& member(const Json& object, const char* key) const;
  // `where` names the object in messages. `otherwise` is the value of a missing member.
  std::string text(const Json& object, const char* key, const std::string& where) const;
  bool flag(const Json& object, const char* key, bool otherwise, const std::string& where) const;
  // Refuses the file if the flag is not `wanted`.
  void expect(const Json& object, const char* key, bool wanted, bool otherwise, const std::string& where) const;
  std::int32_t id(const Json& value, const std::string& where) const;

  struct Part {
    std::string name;  // "pre_tokenizer Split"
    std::string type;
    const Json* json;
  };
  // The steps of member `key` of the file: the member itself, or, if it is a Sequence, the entries of its member `list`.
  std::vector<Part> parts(const char* key, const char* list) const;

 private:
  std::string file_;
  Json root_;
};

}  // namespace octet::data

#include "octet/data/chat/conversation.h"

#include <array>
#include <utility>

#include "octet/base/json.h"
#include "octet/base/require.h"

namespace octet::data {
namespace {

using Tree = nlohmann::json;

constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kRoles = {{{"system", "system"},
                                                                                  {"user", "user"},
                                                                                  {"human", "user"},
                                                                                  {"assistant", "assistant"},
                                                                                  {"gpt", "assistant"},
                                                                                  {"tool", "tool"},
                                                                                  {"observation", "tool"}}};

class Reader {
 public:
  Reader(const std::string& file, std::int64_t line) : place_(concat(file, ":", line, ": ")) {}

  Conversation read(const Tree& json, const std::string& field) const {
    if (json.is_array()) return messages(json);
    check(json.is_object(), "neither a JSON object nor a list of messages");
    if (!field.empty()) {
      check(json.contains(field), "no field \"", field, "\"");
      return messages(json[field]);
    }
    for (const char* name : {"messages", "conversations"}) {
      if (json.contains(name)) return messages(json[name]);
    }
    check(json.contains("instruction"), "no conversation: none of \"messages\", \"conversations\" and \"instruction\"");
    return alpaca(json);
  }

 private:
  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    demand(holds, ExitCode::data, place_, parts...);
  }

  std::string text(const Tree& object, const char* name) const {
    const auto found = object.find(name);
    check(found != object.end() && found->is_string(), "\"", name, "\" is ",
          found == object.end() ? "missing" : shown(*found) + ", not a string");
    return found->get<std::string>();
  }

  Conversation alpaca(const Tree& json) const {
    Conversation conversation;
    const auto has = [&](const char* name) { return json.contains(name) && !json[name].is_null() && json[name] != ""; };
    if (has("system")) conversation.push_back({"system", text(json, "system")});
    std::string question = text(json, "instruction");
    if (has("input")) question += "\n\n" + text(json, "input");
    conversation.push_back({"user", std::move(question)});
    conversation.push_back({"assistant", text(json, "output")});
    return conversation;
  }

  Conversation messages(const Tree& list) const {
    check(list.is_array(), "the messages are ", shown(list), ", not a list");
    check(!list.empty(), "a conversation without messages");
    Conversation conversation;
    for (const Tree& message : list) {
      check(message.is_object(), "a message is ", shown(message), ", not an object");
      const bool share_gpt = message.contains("from");
      for (const char* name : {"tool_calls", "function_call", "reasoning_content"}) {
        const auto found = message.find(name);
        check(found == message.end() || found->is_null() || found->empty() || *found == "", "\"", name,
              "\" would be lost; write it into \"content\" as text");
      }
      conversation.push_back({role(text(message, share_gpt ? "from" : "role")), text(message, share_gpt ? "value" : "content")});
    }
    return conversation;
  }

  std::string role(const std::string& name) const {
    for (const auto& [known, role] : kRoles) {
      if (name == known) return std::string(role);
    }
    check(false, "role ", shown(name), " is not known; known: system, user (human), assistant (gpt), tool (observation)");
    return {};
  }

  const std::string place_;
};

}  // namespace

Conversation read_conversation(std::string_view json, const std::string& field, const std::string& file, std::int64_t line) {
  return Reader(file, line).read(parse_json(json, concat(file, ":", line)), field);
}

}  // namespace octet::data

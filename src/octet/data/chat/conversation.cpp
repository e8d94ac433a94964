#include "octet/data/chat/conversation.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/data/jsonl.h"

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

// Whether there is nothing in a value. An object or list is empty if all of its members are: datasets that join tables write so
// what a row does not have.
bool is_empty(const Tree& value) {
  if (value.is_structured()) return std::all_of(value.begin(), value.end(), is_empty);
  return value.is_null() || value == "" || value == "[]";
}

class Reader {
 public:
  Reader(const std::string& file, std::int64_t line) : place_(concat(file, ":", line, ": ")) {}

  Conversation read(const Tree& json, const std::string& field) const {
    if (json.is_array()) {
      const bool several = !json.empty() && json.front().is_object() && begins_conversation(json.front(), field);
      check(!several, "a JSON array of conversations; `jq -c '.[]'` writes them one a line");
      return messages(json);
    }
    check(json.is_object(), "neither a JSON object nor a list of messages");
    refuse(json, {"tools", "functions", "system_prompt"});
    Conversation result = with_system(json, conversation(json, field));
    for (const char* name : {"image", "images", "audio", "audios", "video", "videos"})
      result.front().dropped += json.contains(name) && !is_empty(json[name]);
    return result;
  }

 private:
  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    demand(holds, ExitCode::data, place_, parts...);
  }

  static bool has(const Tree& object, std::string_view name) { return object.contains(name) && !object[name].is_null(); }
  static bool has_text(const Tree& object, std::string_view name) { return has(object, name) && object[name] != ""; }

  static bool begins_conversation(const Tree& object, const std::string& field) {
    return has(object, "messages") || has(object, "conversations") || has(object, "instruction") || has(object, field);
  }

  // Refuses members that are not empty.
  void refuse(const Tree& object, std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      check(!object.contains(name) || is_empty(object[name]), "\"", name, "\" would be lost; write it into ",
            object.contains("role") || object.contains("from") ? "\"content\"" : "a system message", " as text");
    }
  }

  std::string text(const Tree& object, const char* name) const {
    const auto found = object.find(name);
    check(found != object.end() && found->is_string(), "\"", name, "\" is ",
          found == object.end() ? "missing" : shown(*found) + ", not a string");
    return found->get<std::string>();
  }

  Conversation conversation(const Tree& json, const std::string& field) const {
    if (!field.empty()) {
      check(json.contains(field), "no field \"", field, "\"");
      return messages(json[field]);
    }
    check(!has(json, "messages") || !has(json, "conversations"),
          "both \"messages\" and \"conversations\"; --field names the one to read");
    for (const char* name : {"messages", "conversations"}) {
      if (has(json, name)) return messages(json[name]);
    }
    check(json.contains("instruction"), "no conversation: none of \"messages\", \"conversations\" and \"instruction\"");
    return alpaca(json);
  }

  Conversation with_system(const Tree& json, Conversation conversation) const {
    if (!has_text(json, "system")) return conversation;
    const std::string system = text(json, "system");
    if (conversation.front().role != "system") {
      conversation.insert(conversation.begin(), {"system", system});
    } else {
      check(conversation.front().content == system,
            "\"system\" would be lost: the conversation begins with another system message");
    }
    return conversation;
  }

  Conversation alpaca(const Tree& json) const {
    Conversation conversation;
    if (has(json, "history")) {
      check(json["history"].is_array(), "\"history\" is ", shown(json["history"]), ", not a list");
      for (const Tree& turn : json["history"]) {
        const bool pair = turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
        check(pair, "a turn of \"history\" is ", shown(turn), ", not a list of a question and an answer");
        conversation.push_back({"user", turn[0].get<std::string>()});
        conversation.push_back({"assistant", turn[1].get<std::string>()});
      }
    }
    std::string question = text(json, "instruction");
    if (has_text(json, "input")) question += "\n\n" + text(json, "input");
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
      refuse(message, {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "thought"});
      const bool share_gpt = has(message, "from");
      const char *const of_role = share_gpt ? "from" : "role", *const of_content = share_gpt ? "value" : "content";
      conversation.push_back({.role = role(text(message, of_role)),
                              .content = text(message, of_content),
                              .trained = is_trained(message),
                              .dropped = dropped_members(message, of_role, of_content)});
    }
    return conversation;
  }

  static std::int64_t dropped_members(const Tree& message, const char* role, const char* content) {
    const std::array<std::string_view, 7> read = {role, content, "weight", "train", "loss", "mask", "masked"};
    std::int64_t count = 0;
    for (const auto& [name, value] : message.items())
      count += !is_empty(value) && std::find(read.begin(), read.end(), name) == read.end();
    return count;
  }

  bool is_trained(const Tree& message) const {
    for (const char* name : {"mask", "masked"}) {
      check(!has(message, name) || message[name] == false, "\"", name, "\" would be lost; give messages that are not trained on ",
            "\"weight\": 0");
    }
    bool result = true;
    for (const char* name : {"weight", "train", "loss"}) {
      if (!has(message, name)) continue;
      const Tree& value = message[name];
      const bool yes = value == 1 || value == true, no = value == 0 || value == false;
      check(yes || no, "\"", name, "\" is ", shown(value), ", and Octet knows the weights 0 and 1, false and true");
      result = result && yes;
    }
    return result;
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
  const auto parsed = [&] {
    try {
      return parse_json(json, concat(file, ":", line));
    } catch (const Error& error) {
      fail(error.code(), error.what(), array_advice(json, line));
    }
  };
  return Reader(file, line).read(parsed(), field);
}

}  // namespace octet::data

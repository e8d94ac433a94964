// Conversations, and how JSON writes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octet::data {

struct ChatMessage {
  std::string role;  // system, user, assistant or tool
  std::string content;
};
using Conversation = std::vector<ChatMessage>;

// Reads a conversation from JSON, in one of these forms:
//   {"messages": [{"role": "user", "content": "..."}, ...]}
//   {"conversations": [{"from": "human", "value": "..."}, ...]}             ShareGPT
//   {"instruction": "...", "input": "...", "output": "...", "system": "..."}  Alpaca; `input` and `system` may be missing
//   [{"role": "user", "content": "..."}, ...]                               the list alone, as in a column of Parquet
// Messages of the first two may also have the names of the other. `field` names the member with the list; "": one of those above.
// Roles: system; user or human; assistant or gpt; tool or observation. Other members are ignored, but a message with
// `tool_calls`, `function_call` or `reasoning_content` is refused, because their text would be lost. Throws Error{data}
// "FILE:LINE: reason" for other JSON, unknown roles and empty conversations.
Conversation read_conversation(std::string_view json, const std::string& field, const std::string& file, std::int64_t line);

}  // namespace octet::data

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
  bool trained = true;  // false: an answer that is read, but not trained on
  std::int64_t dropped = 0;  // members of the JSON that are not read, such as a name or images, and are not empty
};
using Conversation = std::vector<ChatMessage>;

// Reads a conversation from JSON, in one of these forms:
//   {"messages": [{"role": "user", "content": "..."}, ...]}
//   {"conversations": [{"from": "human", "value": "..."}, ...]}             ShareGPT
//   {"instruction": "...", "input": "...", "output": "..."}                 Alpaca; `input` may be missing
//   [{"role": "user", "content": "..."}, ...]                               the list alone, as in a column of Parquet
// Messages of the first two may also have the names of the other. `field` names the member with the list; "": one of those above.
// Roles: system; user or human; assistant or gpt; tool or observation. A member that is null counts as missing.
//
// A message may have `weight`, `train` or `loss`, which are 0 or 1, false or true; a message with 0 or false is not trained on.
// Beside the conversation, `system` is the first message, and Alpaca's `history` is a list of earlier questions and answers. A
// message with `tool_calls`, `function_call`, `reasoning_content`, `reasoning`, `thinking` or `thought`, and a conversation with
// `tools`, `functions` or `system_prompt`, is refused unless these are empty, because their text would be lost. `mask` and
// `masked` are refused unless they are false, because programs disagree on their meaning. Other members are ignored; those of
// messages, and a conversation's images, audios and videos, are counted.
//
// Throws Error{data} "FILE:LINE: reason" for these, for other JSON, unknown roles and empty conversations.
Conversation read_conversation(std::string_view json, const std::string& field, const std::string& file, std::int64_t line);

}  // namespace octet::data

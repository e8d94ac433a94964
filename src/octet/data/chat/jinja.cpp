// The chat templates as Jinja. tests/data/chat_oracle.py reads them from here and compares their texts with those of
// template.cpp.
#include <array>
#include <utility>

#include "octet/data/chat/template.h"

namespace octet::data {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kJinja = {{
    {"llama3", R"jinja({%- for message in messages -%}
{{ (bos_token if loop.first else '') + '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n'
   + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' -}})jinja"},
    {"llama3.1", R"jinja({%- set system = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n'
   + 'Today Date: 26 Jul 2024\n\n' + system + '<|eot_id|>' }}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' -}})jinja"},
    {"chatml", R"jinja({% for message in messages %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})jinja"},
    {"qwen3", R"jinja({%- set found = namespace(question=messages | length - 1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
{%- set found.question = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set parts = m.content.split('</think>') -%}
{%- set thought = parts[0].rstrip('\n').split('<think>')[-1].strip('\n') if parts | length > 1 else '' -%}
{%- set said = parts[-1].lstrip('\n') if parts | length > 1 else m.content -%}
{%- set thinks = loop.index0 > found.question and (loop.last or thought) -%}
{{ '<|im_start|>assistant\n' + ('<think>\n' + thought + '\n</think>\n\n' + said.lstrip('\n') if thinks else said)
   + '<|im_end|>\n' }}
{%- elif m.role == 'tool' -%}
{{ ('' if not loop.first and messages[loop.index0 - 1].role == 'tool' else '<|im_start|>user') + '\n<tool_response>\n'
   + m.content + '\n</tool_response>'
   + ('' if not loop.last and messages[loop.index0 + 1].role == 'tool' else '<|im_end|>\n') }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}})jinja"},
    {"mistral", R"jinja({%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' -%}
{{ bos_token }}
{%- for message in (messages[1:] if system else messages) -%}
{%- if message.role == 'user' -%}{{ ' [INST] ' + (system if loop.first else '') + message.content + ' [/INST]' }}
{%- else -%}{{ ' ' + message.content + eos_token }}{%- endif -%}
{%- endfor -%})jinja"},
    {"zephyr", R"jinja({% for message in messages %}
{{ '<|' + message.role + '|>\n' + message.content + eos_token }}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %})jinja"},
}};

}  // namespace

std::string_view jinja_of(std::string_view name) {
  for (const auto& [known, text] : kJinja) {
    if (known == name) return text;
  }
  return "";
}

}  // namespace octet::data

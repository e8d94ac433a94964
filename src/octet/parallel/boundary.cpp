#include "octet/parallel/boundary.h"

#include "octet/base/require.h"

namespace octet::parallel {

Boundary::Boundary(Device& device, const Groups& groups, Executor& executor, Arena& scratch, DType dtype, const Shape& shape)
    : compute_(executor.stream(StreamId::compute)), dtype_(dtype), shape_(shape) {
  // In the order of the links (groups.cpp), in which no rank waits for one that waits for it.
  const bool first = groups.stages->rank() == 0;
  for (const bool before : {!first, first}) {
    for (std::size_t m = 0; m < kMessages; ++m) {
      comm::Group* const group = (before ? groups.before : groups.behind)[m].get();
      if (!group) continue;
      const auto message = static_cast<Message>(m);
      const bool receives = before == (message == Message::activations);
      End& end = (receives ? received_ : sent_)[m];
      end = {group, device.allocate(bytes_of(dtype, shape), MemoryCategory::workspace), device.make_stream()};
      links_.push_back(&end);
      executor.add(receives ? receive_stream(message) : send_stream(message), *end.stream);
      if (compute_.kind() == DeviceKind::meta) continue;
      group->share(*end.stream, scratch, end.memory.data(), end.memory.bytes());
      run({.kind = receives ? Kind::receive : Kind::send, .index = static_cast<int>(m)}, {});
      end.stream->synchronize();
    }
  }
}

void Boundary::close() {
  for (const End* end : links_) end->group->unshare(*end->stream);
}

void Boundary::run(const Task& task, const Tensor& x) {
  if (muted_) {
    if (task.kind == Kind::take) compute_.zero(x.data, x.bytes());
    return;
  }
  const auto m = static_cast<std::size_t>(task.index);
  const bool arrives = task.kind == Kind::receive || task.kind == Kind::take;
  End& end = (arrives ? received_ : sent_)[m];
  require(end.group != nullptr, "a message at the end of the model");
  const Tensor message = view(end.memory, dtype_, shape_);
  const int other = 1 - end.group->rank();
  switch (task.kind) {
    case Kind::receive:
      return end.group->receive(*end.stream, {.y = message, .from = other});
    case Kind::send:
      return end.group->send(*end.stream, {.x = message, .to = other});
    case Kind::take:
      return compute_.copy(x.data, message.data, message.bytes());
    case Kind::give:
      return compute_.copy(message.data, x.data, message.bytes());
    default:
      require(false, "a task that is not one of messages");
  }
}

}  // namespace octet::parallel

#include "octet/parallel/boundary.h"

#include "octet/base/require.h"
#include "octet/kernels/fill/fill.h"

namespace octet::parallel {

Boundary::Boundary(Device& device, const Groups& groups, Streams& streams, Arena& scratch, DType dtype, const Shape& shape)
    : compute_(streams[StreamId::compute]), dtype_(dtype), shape_(shape) {
  // In the order of the links (groups.cpp), so that no two ranks wait for each other.
  const bool first = groups.stages->rank() == 0;
  for (const bool before : {!first, first}) {
    for (std::size_t m = 0; m < kMessages; ++m) {
      comm::Group* const group = (before ? groups.before : groups.behind)[m].get();
      if (!group) continue;
      const auto message = static_cast<Message>(m);
      const bool receives = before == (message == Message::activations);
      End& end = (receives ? received_ : sent_)[m];
      end = {group, device.allocate(bytes_of(dtype, shape), MemoryCategory::workspace), device.make_stream()};
      streams.set(receives ? receive_stream(message) : send_stream(message), *end.stream);
      links_.push_back({.kind = receives ? Kind::receive : Kind::send, .index = static_cast<int>(m)});
    }
  }
  if (compute_.kind() == DeviceKind::meta) return;
  // After the allocations: where ranks are threads of one process, they may wait for work of other ranks, such as a message.
  for (const Task& link : links_) {
    const End& end = end_of(link);
    end.group->share(*end.stream, scratch, end.memory.data(), end.memory.bytes());
    run(link, {});
    end.stream->synchronize();
  }
}

void Boundary::close() {
  for (const Task& link : links_) end_of(link).group->unshare(*end_of(link).stream);
}

const Boundary::End& Boundary::end_of(const Task& task) const {
  const bool arrives = task.kind == Kind::receive || task.kind == Kind::take;
  return (arrives ? received_ : sent_)[static_cast<std::size_t>(task.index)];
}

void Boundary::run(const Task& task, const Tensor& x) {
  if (muted_) {
    if (task.kind == Kind::take) kernels::fill_normal(compute_, {.x = x});
    return;
  }
  const End& end = end_of(task);
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

// How submissions, events and host waits order streams, for the hazard tracker (card/hazards.h).

#include <memory>

#include "card/scheduler.h"

namespace openspyre::card {

void Scheduler::order_step(Stream& stream, const Step& step, After& after) {
  if (!tracks() || step.accesses.empty()) return;
  stream.order.merge(shared().host_order);
  std::erase_if(stream.unordered, [&](const EventPtr& event) {
    if (event->claimed) stream.order.merge(event->order);
    return event->claimed;
  });
  while (const auto found = shared().hazards.find(stream, stream.order, step)) {
    if (config.hazards == HazardMode::Check) throw Hazard(found->text);
    // An edge from the present end of the earlier stream, as wait_stream() would make it.
    Stream& earlier = *found->earlier;
    const EventPtr event = std::make_shared<Event>();
    event->claimed = true;
    earlier.owner->clock_signal(earlier, event, earlier.owner->host_ns());
    order_signal(earlier, *event);
    if (earlier.failure) {
      fire(*event, earlier.failure, after);
    } else {
      event->signal_stream = &earlier;
      event->signal_position = ++earlier.submitted;
      earlier.queue.push_back(
          {Op::Kind::Signal, StreamError::Success, Timeline::kNoSlot, {}, event});
      earlier.owner->advance(earlier, after);
    }
    clock_wait(stream, event);
    order_wait(stream, event);
    ++stream.submitted;
    stream.queue.push_back({Op::Kind::Wait, StreamError::Success, Timeline::kNoSlot, {}, event});
    advance(stream, after);
  }
}

void Scheduler::record_step(Stream& stream, const Step& step) {
  if (!tracks() || step.accesses.empty()) return;
  stream.order.reach(&stream, ++stream.tracked);
  shared().hazards.record(stream, stream.tracked, stream.order, step);
}

void Scheduler::order_signal(Stream& stream, Event& event) {
  if (tracks()) event.order = stream.order;
}

void Scheduler::order_wait(Stream& stream, const EventPtr& event) {
  if (!tracks()) return;
  if (event->claimed)
    stream.order.merge(event->order);
  else
    stream.unordered.push_back(event);
}

void Scheduler::order_host(const VectorClock& reached) {
  if (tracks()) shared().host_order.merge(reached);
}

}  // namespace openspyre::card

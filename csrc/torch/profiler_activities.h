// Recorded steps as Kineto's activities.
#pragma once

#include <GenericTraceActivity.h>
#include <IActivityProfiler.h>
#include <TraceSpan.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "card/recorder.h"

namespace openspyre::device {

struct TraceActivities {
  // For each step that ran: the call that submitted it, then what it did on the card.
  std::deque<std::unique_ptr<libkineto::GenericTraceActivity>> activities;
  std::vector<libkineto::DeviceInfo> devices;
  std::vector<libkineto::ResourceInfo> rows;  // one for each stream and engine that worked
  size_t unfinished = 0;                      // steps that had not ended when recording stopped
};

// `span` must outlive the activities. `linked` gives the operation of the host by its number, or
// null.
TraceActivities make_activities(const std::vector<card::RecordedStep>& steps,
                                const libkineto::TraceSpan& span,
                                const libkineto::getLinkedActivityCallback& linked);

}  // namespace openspyre::device

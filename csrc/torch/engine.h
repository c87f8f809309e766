// Runs a piece of a transfer as a step of the current stream and waits for it.
#pragma once

#include <functional>
#include <vector>

#include "card/runtime.h"

namespace openspyre::device {

// Submits `work` on `device`'s current stream (named after the current operation and `what`), with
// the modelled cost of moving `bytes` on `engine`, and returns when it has run. `work` may refer to
// the caller's frame: when the wait is interrupted, the step is waited for all the same. `accesses`
// are the card's bytes that it touches (torch/footprint.h).
void run_on_card(card::Device& device, card::Engine engine, const char* what, int64_t bytes,
                 std::function<void()> work, std::vector<card::Access> accesses = {});

// Waits for a stream without the GIL, answering Ctrl-C.
void wait_for_stream(card::Device& device, card::StreamId stream);

// Submits without waiting. `work` must own all that it touches, card memory apart.
void submit_to_card(card::Device& device, card::Engine engine, const char* what, int64_t bytes,
                    std::function<void()> work, std::vector<card::Access> accesses = {});

}  // namespace openspyre::device

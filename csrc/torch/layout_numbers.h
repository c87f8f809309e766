// Small numbers for layouts: equal layouts have equal numbers, so that keys compare integers.
#pragma once

#include <cstdint>
#include <memory>

#include "machine/layout.h"

namespace openspyre::device {

// Thread-safe. Layouts that were given a number stay for the life of the process; they are few, one
// for each shape.
int64_t layout_number(const std::shared_ptr<const machine::Layout>& layout);
std::shared_ptr<const machine::Layout> layout_of_number(int64_t number);  // null: no such number

}  // namespace openspyre::device

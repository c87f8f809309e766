// SCAN: running sum, product, maximum or minimum along a label. See sfu_kernels.h.
#include <algorithm>
#include <cstring>

#include "machine/kernels/sfu_frame.h"
#include "machine/kernels/sfu_kernels.h"

namespace openspyre::machine::sfu {

void scan(const Isa& isa, const ComputeTask& task) {
  const int label = task.code->index_label;
  const View &x = task.input[0], &y = task.output[0];
  int lane = y.stick;
  if (lane < 0) lane = x.stick == label ? -1 : x.stick;
  const int64_t group = Frame::group_of(task, lane);
  const Register type = register_of_format(x.format);
  const size_t width = type == Register::I64 ? 8 : 4;
  const auto combine = isa.combine[int(task.code->combine)][int(type)];
  const auto serial = isa.serial[int(task.code->combine)][int(type)];

  std::byte* const memory = scratch(size_t(kBlock + 64) * 8 * 3);
  char* const in = reinterpret_cast<char*>(memory);
  char* const out = in + (kBlock + 64) * 8;
  char* const running = out + (kBlock + 64) * 8;  // a group; of the scanned lane one element

  Frame frame(isa, task, lane, group);
  int order[kMaxLabels], count = 0;
  int64_t step[kMaxLabels];
  for (int l = 0; l < task.labels; ++l) {
    if (l != label) order[count] = l, step[count++] = 1;
  }
  const int64_t rows = std::max<int64_t>(kBlock / group, 1);
  do {
    // The carry lies over the other labels: at the scanned label's begin, wherever that lies.
    frame.at[label] = 0;
    frame.set_inner(-1);
    Block start = frame.block(1);
    if (label == lane) start.valid = 1;  // the carry is one element
    if (task.accumulate) frame.load(task.input[1], start, running);
    bool any = task.accumulate;
    frame.set_inner(label);
    while (frame.at[label] < frame.extent(label)) {
      const Block block = frame.block(rows);
      frame.load(x, block, in);
      if (label == lane || group == 1) {  // one after another
        const int64_t n = block.valid == group ? block.rows * group : block.valid;
        int64_t first = 0;
        if (!any) {
          std::memcpy(running, in, width);
          std::memcpy(out, in, width);
          first = 1;
        }
        serial(running, in + size_t(first) * width, out + size_t(first) * width, n - first);
      } else {  // groups one after another
        const size_t bytes = size_t(group) * width;
        for (int64_t r = 0; r < block.rows; ++r) {
          char* const to = out + size_t(r) * bytes;
          if (any || r > 0) {
            std::memcpy(to, running, bytes);
            combine(to, 0, in + size_t(r) * bytes, 0, group, 1);
          } else {
            std::memcpy(to, in, bytes);
          }
          std::memcpy(running, to, bytes);
        }
      }
      any = true;
      frame.store(y, block, type, out);
      frame.at[label] += block.rows;
    }
    frame.at[label] = 0;
    frame.set_inner(-1);
    frame.store(task.output[1], start, type, running);
  } while (advance(frame, order, step, count));
}

}  // namespace openspyre::machine::sfu

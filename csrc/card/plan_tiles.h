// Which dims of a plan's arguments move together, and which of them a tiled launch may cut.
//
// Torch-free, pure. A tiled launch runs the plan on each tile of larger tensors (runtime.md 3.6).
// That gives the result of the larger tensors only along dims that the program treats element by
// element. The labels of its instructions say which dims of which operands are one and the same:
// they form classes. A class may be cut when no instruction reduces, scans, sorts or indexes along
// it; and it must be cut in all its arguments alike.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "machine/program/program.h"

namespace openspyre::card {

struct TileUse {  // a program of the plan and the launch arguments it takes
  const machine::Program* program;
  std::vector<int> arguments;
};

class TileClasses {
 public:
  TileClasses(const std::vector<TileUse>& uses, int arguments);
  // The class of a dim of a launch argument; -1: no instruction moves along it.
  int of(int argument, int dim) const;
  // All dims of a class, by argument.
  const std::vector<std::pair<int, int>>& dims(int one) const {
    return dims_[static_cast<size_t>(one)];
  }
  // Why it cannot be cut, or "".
  const std::string& obstacle(int one) const { return obstacles_[static_cast<size_t>(one)]; }

 private:
  std::vector<std::vector<int>> of_;
  std::vector<std::vector<std::pair<int, int>>> dims_;
  std::vector<std::string> obstacles_;
};

}  // namespace openspyre::card

// Union-find over (value, dim) of the programs' accesses.

#include "card/plan_tiles.h"

#include <map>

namespace openspyre::card {

using machine::Access;
using machine::Instruction;
using machine::Kind;
using machine::Program;

namespace {

class Classes {
 public:
  int make() {
    parent_.push_back(static_cast<int>(parent_.size()));
    obstacle_.emplace_back();
    return parent_.back();
  }
  int root(int node) {
    while (parent_[static_cast<size_t>(node)] != node) {
      int& up = parent_[static_cast<size_t>(node)];
      up = parent_[static_cast<size_t>(up)];
      node = up;
    }
    return node;
  }
  void join(int a, int b) {
    a = root(a), b = root(b);
    if (a == b) return;
    parent_[static_cast<size_t>(b)] = a;
    if (obstacle_[static_cast<size_t>(a)].empty())
      obstacle_[static_cast<size_t>(a)] = obstacle_[static_cast<size_t>(b)];
  }
  void forbid(int node, const std::string& why) {
    std::string& text = obstacle_[static_cast<size_t>(root(node))];
    if (text.empty()) text = why;
  }
  const std::string& obstacle(int node) { return obstacle_[static_cast<size_t>(root(node))]; }
  size_t size() const { return parent_.size(); }

 private:
  std::vector<int> parent_;
  std::vector<std::string> obstacle_;
};

// One program: nodes are the dims of its operands and values.
class Walk {
 public:
  Walk(Classes& classes, const Program& program) : classes_(classes), program_(program) {
    for (const machine::Operand& operand : program.operands) add(operand.shape.size());
    for (const machine::Value& value : program.values) add(value.shape.size());
    for (const auto& queue : program.queues)
      for (const Instruction& instruction : queue) visit(instruction);
  }
  int node(int value, int dim) const {
    return nodes_[static_cast<size_t>(value)][static_cast<size_t>(dim)];
  }
  int rank(int value) const { return static_cast<int>(nodes_[static_cast<size_t>(value)].size()); }

 private:
  void add(size_t rank) {
    std::vector<int>& dims = nodes_.emplace_back();
    for (size_t d = 0; d < rank; ++d) dims.push_back(classes_.make());
  }

  void visit(const Instruction& code) {
    for (const Instruction& child : code.children) visit(child);
    if (code.over.empty()) return;
    std::vector<int> of_label(code.over.size(), -1);
    const auto take = [&](const Access& access) {
      for (size_t d = 0; d < access.index.size() && static_cast<int>(d) < rank(access.value); ++d) {
        const int label = access.index[d].label, here = node(access.value, static_cast<int>(d));
        if (label < 0) {
          classes_.forbid(here, "the program takes single indices of it");
          continue;
        }
        int& known = of_label[static_cast<size_t>(label)];
        if (known < 0)
          known = here;
        else
          classes_.join(known, here);
      }
    };
    for (const auto* group : {&code.inputs, &code.outputs, &code.index_tile})
      for (const Access& access : *group) take(access);
    // Labels along which the elements depend on each other.
    std::vector<bool> in_output(code.over.size(), false);
    for (const Access& access : code.outputs)
      for (const machine::Index& index : access.index)
        if (index.label >= 0) in_output[static_cast<size_t>(index.label)] = true;
    for (size_t label = 0; label < code.over.size(); ++label) {
      if (of_label[label] < 0) continue;
      if (code.tag == Instruction::Compute && !in_output[label])
        classes_.forbid(of_label[label], std::string("the program reduces along it (") +
                                             machine::kind_name(code.kind) + ")");
      if (code.index_label == static_cast<int>(label))
        classes_.forbid(of_label[label],
                        code.tag == Instruction::Compute
                            ? std::string("the program combines elements along it (") +
                                  machine::kind_name(code.kind) + ")"
                            : std::string("the program reads or writes it by index"));
    }
    if (code.tag == Instruction::Compute)
      for (const machine::Node& op : code.body.nodes)
        if (op.op == machine::Op::Index && op.immediate >= 0 &&
            static_cast<size_t>(op.immediate) < of_label.size() &&
            of_label[static_cast<size_t>(op.immediate)] >= 0)
          classes_.forbid(of_label[static_cast<size_t>(op.immediate)],
                          "the program uses the position along it");
  }

  Classes& classes_;
  const Program& program_;
  std::vector<std::vector<int>> nodes_;
};

}  // namespace

TileClasses::TileClasses(const std::vector<TileUse>& uses, int arguments) {
  Classes classes;
  std::vector<std::vector<int>> nodes(static_cast<size_t>(arguments));  // of launch arguments
  for (const TileUse& use : uses) {
    const Walk walk(classes, *use.program);
    for (size_t a = 0; a < use.arguments.size(); ++a) {
      std::vector<int>& mine = nodes[static_cast<size_t>(use.arguments[a])];
      const int operand = use.program->arguments[a];
      for (int d = 0; d < walk.rank(operand); ++d) {
        if (static_cast<size_t>(d) == mine.size())
          mine.push_back(walk.node(operand, d));
        else
          classes.join(mine[static_cast<size_t>(d)], walk.node(operand, d));
      }
    }
  }
  std::map<int, int> numbers;
  of_.resize(nodes.size());
  for (size_t a = 0; a < nodes.size(); ++a) {
    for (size_t d = 0; d < nodes[a].size(); ++d) {
      const int root = classes.root(nodes[a][d]);
      const auto [found, fresh] = numbers.emplace(root, static_cast<int>(dims_.size()));
      if (fresh) {
        dims_.emplace_back();
        obstacles_.push_back(classes.obstacle(root));
      }
      of_[a].push_back(found->second);
      dims_[static_cast<size_t>(found->second)].emplace_back(static_cast<int>(a),
                                                             static_cast<int>(d));
    }
  }
}

int TileClasses::of(int argument, int dim) const {
  const auto& dims = of_.at(static_cast<size_t>(argument));
  return dim >= 0 && static_cast<size_t>(dim) < dims.size() ? dims[static_cast<size_t>(dim)] : -1;
}

}  // namespace openspyre::card

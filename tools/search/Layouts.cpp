// Lists the meshes of a search with their microbatches, and writes them for people and for the command line.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Devices times what each of them is for is the same everywhere, and so is the number of sequences of a step.
#include "tools/search/Candidates.h"
#include "llvm/ADT/STLExtras.h"

using namespace pp;

namespace {
constexpr int64_t kNear = 3;     ///< a size of near layouts differs by this factor at most
constexpr int64_t kMostRows = 8; ///< sequences of a microbatch that are tried, beside those of the program
/// Sequences of as many tokens may also be cut over several nodes.
constexpr int64_t kLongSequence = 65'536;

std::vector<int64_t> divisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t divisor = 1; divisor <= number; ++divisor)
    if (number % divisor == 0)
      divisors.push_back(divisor);
  return divisors;
}
} // namespace

std::string MeshLayout::describe() const {
  std::string text = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  auto add = [&](const char *name, int64_t size) {
    if (size > 1)
      text += std::string(", ") + name + " " + std::to_string(size);
  };
  add("tensor", tensor);
  if (sequence)
    text += " with rows";
  add("context", context);
  if (heads && context > 1)
    text += " by heads";
  add("data", data);
  add("expert", expert);
  if (zero > 0)
    text += ", zero " + std::to_string(zero);
  return text + ", microbatch " + std::to_string(microbatch);
}

Defines MeshLayout::defines(const MeshLayout &other) const {
  Defines made;
  auto add = [&](const char *name, const std::string &value, bool differs) {
    if (differs)
      made.push_back({name, value});
  };
  add("mesh.tensor", std::to_string(tensor), tensor != other.tensor);
  add("mesh.sequence", sequence ? "true" : "false", sequence != other.sequence);
  add("mesh.context", std::to_string(context), context != other.context);
  add("mesh.attention", heads ? "heads" : "gather", heads != other.heads);
  add("mesh.data", std::to_string(data), data != other.data);
  add("mesh.expert", std::to_string(expert), expert != other.expert);
  add("mesh.zero", std::to_string(zero), zero != other.zero);
  add("data.microbatch", std::to_string(microbatch), microbatch != other.microbatch);
  return made;
}

/// Experts are cut over neighbours along context and data; as many as possible beside all on one device.
static std::vector<int64_t> expertsOf(const MeshLayout &layout, const LayoutLimits &limits) {
  std::vector<int64_t> sizes = {1};
  int64_t most = layout.context * layout.data;
  if (limits.devicesOfNode)
    most = std::min(most, std::max<int64_t>(1, limits.devicesOfNode / layout.tensor));
  for (int64_t size : divisorsOf(layout.context * layout.data))
    if (limits.hasExperts && size > 1 && size <= most && (layout.context % size == 0 || size % layout.context == 0))
      sizes.push_back(size);
  return sizes;
}

/// The layouts of a group: the rest of the devices are ranks and replicas.
static std::vector<MeshLayout> groupOf(const MeshLayout &written, MeshLayout of, const LayoutLimits &limits) {
  std::vector<MeshLayout> group;
  int64_t rest = written.devices() / (of.tensor * of.context);
  for (int64_t ranks : divisorsOf(rest)) {
    of.ranks = ranks;
    of.data = rest / ranks;
    if (ranks > limits.layers || written.sequences() % (of.data * of.microbatch) != 0)
      continue;
    of.microbatches = written.sequences() / (of.data * of.microbatch);
    of.zero = of.data * of.context > 1 ? std::max<int64_t>(written.zero, 1) : 0;
    for (int64_t expert : expertsOf(of, limits)) {
      of.expert = expert;
      group.push_back(of);
    }
  }
  return group;
}

std::vector<std::vector<MeshLayout>> pp::layoutGroups(const MeshLayout &written, const LayoutLimits &limits) {
  int64_t devices = written.devices(), node = limits.devicesOfNode ? limits.devicesOfNode : devices;
  std::vector<std::pair<std::array<bool, 3>, std::vector<MeshLayout>>> groups;
  for (int64_t microbatch : divisorsOf(written.sequences()))
    for (int64_t tensor : divisorsOf(devices))
      for (int64_t context : divisorsOf(devices / tensor)) {
        bool isInNode = tensor * context <= node || (limits.length >= kLongSequence && tensor <= node);
        bool isSmall = microbatch <= kMostRows || microbatch == written.microbatch;
        if (!isInNode || node % tensor != 0 || !isSmall || limits.length % (2 * context) != 0)
          continue;
        MeshLayout of = written;
        of.tensor = tensor, of.context = context, of.microbatch = microbatch;
        of.sequence = tensor > 1 && (written.tensor == 1 || written.sequence || tensor != written.tensor);
        of.heads = context > 1 && written.heads;
        std::vector<MeshLayout> group = groupOf(written, of, limits);
        if (!group.empty())
          groups.push_back({{context != written.context, tensor != written.tensor, microbatch != written.microbatch},
                            std::move(group)});
      }
  llvm::stable_sort(groups, [](const auto &a, const auto &b) { return a.first < b.first; });
  std::vector<std::vector<MeshLayout>> made;
  for (auto &[distance, group] : groups)
    made.push_back(std::move(group));
  return made;
}

std::vector<MeshLayout> pp::layoutsNear(const MeshLayout &layout, const MeshLayout &written,
                                        const LayoutLimits &limits) {
  std::vector<MeshLayout> near;
  for (const std::vector<MeshLayout> &group : layoutGroups(written, limits))
    for (MeshLayout other : group) {
      other.sequence = layout.tensor > 1 && other.tensor > 1 ? layout.sequence : other.sequence;
      other.heads = layout.context > 1 && other.context > 1 ? layout.heads : other.heads;
      other.zero = layout.data * layout.context > 1 && other.data * other.context > 1 ? layout.zero : other.zero;
      int differing = 0;
      bool isNear = true;
      for (auto size : {&MeshLayout::ranks, &MeshLayout::tensor, &MeshLayout::context, &MeshLayout::data,
                        &MeshLayout::microbatch}) {
        auto [less, more] = std::minmax(layout.*size, other.*size);
        differing += less != more;
        isNear &= more <= kNear * less;
      }
      if (isNear && differing > 0 && differing <= 2 && (layout.ranks > 1) == (other.ranks > 1))
        near.push_back(other);
    }
  return near;
}

std::vector<MeshLayout> pp::variantsOf(const MeshLayout &layout) {
  std::vector<MeshLayout> made;
  auto add = [&](auto change) {
    MeshLayout other = layout;
    change(other);
    if (!(other == layout))
      made.push_back(other);
  };
  bool shares = layout.data * layout.context > 1;
  for (int64_t zero : {0, 1, 2})
    add([&](MeshLayout &other) { other.zero = shares ? zero : 0; });
  add([&](MeshLayout &other) { other.sequence = layout.tensor > 1 && !layout.sequence; });
  add([&](MeshLayout &other) { other.heads = layout.context > 1 && !layout.heads; });
  return made;
}

// Numbers of devices from their coordinates and back, and devices as messages for people name them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/transport/Mesh.h"
#include <algorithm>

namespace pp {

const char *nameOf(Axis axis) {
  constexpr const char *names[] = {"tensor", "context", "data", "pipeline", "expert", "copies"};
  return names[size_t(axis)];
}

Mesh::Mesh(std::array<Axis, axisCount> order, std::array<int32_t, axisCount> sizesInOrder, int32_t experts)
    : order(order), experts(experts) {
  for (size_t i = 0; i < axisCount; ++i)
    sizes[size_t(order[i])] = sizesInOrder[i];
}

int32_t Mesh::devices() const {
  int32_t product = 1;
  for (int32_t size : sizes)
    product *= size;
  return product;
}

int32_t Mesh::size(Axis axis) const {
  if (axis == Axis::Expert)
    return experts;
  return axis == Axis::Copies ? size(Axis::Context) * size(Axis::Data) / experts : sizes[size_t(axis)];
}

int32_t Mesh::coordinate(int32_t device, Axis axis) const {
  if (axis != Axis::Expert && axis != Axis::Copies)
    return device / stride(axis) % size(axis);
  const int32_t onContext = coordinate(device, Axis::Context), onData = coordinate(device, Axis::Data);
  const int32_t contexts = size(Axis::Context), replicas = std::max(experts / contexts, 1); // with other experts
  if (experts <= contexts)
    return axis == Axis::Expert ? onContext % experts : onData * (contexts / experts) + onContext / experts;
  if (axis == Axis::Copies)
    return onData / replicas;
  const int32_t replica = onData % replicas;
  return stride(Axis::Context) < stride(Axis::Data) ? onContext + contexts * replica : replica + replicas * onContext;
}

int32_t Mesh::stride(Axis axis) const {
  int32_t product = 1;
  for (size_t i = 0; order[i] != axis; ++i)
    product *= size(order[i]);
  return product;
}

std::vector<int32_t> Mesh::line(int32_t device, const std::vector<Axis> &axes) const {
  std::vector<int32_t> members = {device};
  for (Axis axis : axes) {
    std::vector<int32_t> along;
    if (axis == Axis::Expert || axis == Axis::Copies) {
      const Axis other = axis == Axis::Expert ? Axis::Copies : Axis::Expert;
      for (int32_t member : members)
        for (int32_t near : line(member, {Axis::Context, Axis::Data}))
          if (coordinate(near, other) == coordinate(member, other))
            along.push_back(near);
      members = std::move(along);
      continue;
    }
    for (int32_t member : members)
      for (int32_t k = 0; k < size(axis); ++k)
        along.push_back(moved(member, axis, k));
    members = std::move(along);
  }
  std::sort(members.begin(), members.end());
  return members;
}

std::optional<std::pair<int32_t, int32_t>> Mesh::parted(Axis axis, const std::vector<int32_t> &machine) const {
  for (int32_t device = 0; device < int32_t(machine.size()); ++device)
    for (int32_t other : line(device, {axis}))
      if (machine[size_t(other)] != machine[size_t(device)])
        return std::pair(device, other);
  return std::nullopt;
}

std::string Mesh::name(int32_t device) const {
  std::string rank = "rank " + std::to_string(rankOf(device));
  if (devicesOfRank() == 1)
    return rank;
  std::string text = "device " + std::to_string(device) + " (" + rank;
  for (Axis axis : {Axis::Tensor, Axis::Context, Axis::Data})
    if (size(axis) > 1)
      text += std::string(", ") + nameOf(axis) + " " + std::to_string(coordinate(device, axis));
  return text + ")";
}

std::string Mesh::describe() const {
  const int32_t ranks = size(Axis::Pipeline), each = devicesOfRank();
  std::string text = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  if (each == 1)
    return text;
  text = std::to_string(devices()) + " devices (" + text + " of " + std::to_string(each) + ": ";
  bool isNext = false;
  for (Axis axis : {Axis::Tensor, Axis::Context, Axis::Data})
    if (size(axis) > 1) {
      text += std::string(isNext ? ", " : "") + nameOf(axis) + " " + std::to_string(size(axis));
      isNext = true;
    }
  if (experts > 1)
    text += ", experts over " + std::to_string(experts);
  return text + ")";
}

} // namespace pp

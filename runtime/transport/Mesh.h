// The devices of a run: on which rank of the schedule each is, where on each axis, and who lies in a line with it.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_TRANSPORT_MESH_H
#define PP_RUNTIME_TRANSPORT_MESH_H

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pp {

/// Experts are cut over devices along context, or all of these and some along data: `Expert` says which of them a
/// device has, in the order of the devices' numbers, and `Copies` which of the devices with the same ones it is.
enum class Axis : uint8_t { Tensor, Context, Data, Pipeline, Expert, Copies };
constexpr size_t axisCount = 4; ///< of those that number devices
/// `tensor`, `context`, `data`, `pipeline`, `expert`, `copies`.
[[nodiscard]] const char *nameOf(Axis axis);

/// Numbers devices along four axes: neighbours on the first axis of `order` have neighbouring numbers.
class Mesh {
public:
  Mesh() = default; ///< one device
  /// Each rank is one device.
  explicit Mesh(int32_t ranks) { sizes[size_t(Axis::Pipeline)] = ranks; }
  /// Each axis once. Experts are cut over `experts` devices, which divides context, or is context times what divides
  /// data.
  Mesh(std::array<Axis, axisCount> order, std::array<int32_t, axisCount> sizesInOrder, int32_t experts = 1);

  [[nodiscard]] int32_t size(Axis axis) const;
  [[nodiscard]] int32_t devices() const;
  [[nodiscard]] int32_t devicesOfRank() const { return devices() / size(Axis::Pipeline); }

  [[nodiscard]] int32_t coordinate(int32_t device, Axis axis) const;
  [[nodiscard]] int32_t rankOf(int32_t device) const { return coordinate(device, Axis::Pipeline); }
  /// The device that differs from this one at most on this axis, one of the four, where it has this coordinate.
  [[nodiscard]] int32_t moved(int32_t device, Axis axis, int32_t coordinate) const {
    return device + (coordinate - this->coordinate(device, axis)) * stride(axis);
  }
  /// The devices that differ from this one at most on these axes, ascending.
  [[nodiscard]] std::vector<int32_t> line(int32_t device, const std::vector<Axis> &axes) const;
  /// The device of a rank whose other coordinates are 0.
  [[nodiscard]] int32_t firstOf(int32_t rank) const { return moved(0, Axis::Pipeline, rank); }
  /// Two devices of one line along this axis whose `machine`s, by device, differ; nothing where there are none.
  [[nodiscard]] std::optional<std::pair<int32_t, int32_t>> parted(Axis axis, const std::vector<int32_t> &machine) const;
  [[nodiscard]] bool isFirst(int32_t device) const { return firstOf(rankOf(device)) == device; }

  /// `rank 1`; where ranks are several devices `device 3 (rank 1, data 1)`.
  [[nodiscard]] std::string name(int32_t device) const;
  /// `4 ranks`, or `8 devices (4 ranks of 2: data 2)`.
  [[nodiscard]] std::string describe() const;

private:
  [[nodiscard]] int32_t stride(Axis axis) const;

  std::array<Axis, axisCount> order = {Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline};
  std::array<int32_t, axisCount> sizes = {1, 1, 1, 1}; ///< by axis
  int32_t experts = 1;
};

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_MESH_H

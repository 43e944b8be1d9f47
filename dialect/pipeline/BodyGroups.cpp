// Reads the groups of a task body off its attributes, and checks them against its type.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "dialect/pipeline/BodyGroups.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static LogicalResult readGroups(func::FuncOp body, StringRef attr, TypeRange types,
                                SmallVectorImpl<BodyGroups::Group> &groups) {
  auto list = body->getAttrOfType<GroupsAttr>(attr);
  if (!list)
    return body.emitOpError() << "is a task body without `" << attr << "`";
  unsigned next = 0;
  for (GroupAttr group : list.getGroups()) {
    if (next + static_cast<size_t>(group.getTensors()) > types.size())
      return body.emitOpError() << "has `" << attr << "` for more than its " << types.size() << " tensors";
    TypeRange own = types.slice(next, group.getTensors());
    for (Type type : own)
      if (auto tensor = dyn_cast<RankedTensorType>(type); !tensor || !tensor.hasStaticShape())
        return body.emitOpError() << "expected tensors of static shape, got " << type;
    groups.push_back({group.getName(), next, TupleType::get(body.getContext(), own), -1});
    next += group.getTensors();
  }
  if (next != types.size())
    return body.emitOpError() << "has `" << attr << "` for " << next << " of its " << types.size() << " tensors";
  return success();
}

FailureOr<BodyGroups> BodyGroups::get(func::FuncOp body) {
  BodyGroups groups;
  if (failed(readGroups(body, kInputsAttr, body.getArgumentTypes(), groups.inputs)) ||
      failed(readGroups(body, kResultsAttr, body.getResultTypes(), groups.results)))
    return failure();
  auto ties = body->getAttrOfType<DenseI64ArrayAttr>(kTiesAttr);
  if (!ties || ties.size() != static_cast<int64_t>(groups.results.size()))
    return body.emitOpError() << "expected `pipeline.ties` with " << groups.results.size() << " entries";
  groups.ties = llvm::to_vector(ties.asArrayRef());
  for (Group &group : groups.inputs) {
    group.pointer = static_cast<int64_t>(groups.pointers.size());
    groups.pointers.push_back(group.payload);
  }
  for (auto [group, tie] : llvm::zip(groups.results, groups.ties)) {
    if (tie >= static_cast<int64_t>(groups.inputs.size()))
      return body.emitOpError() << "ties group `" << group.name.str() << "` to input group " << tie << " of "
                                << groups.inputs.size();
    if (tie >= 0 && groups.inputs[tie].payload != group.payload)
      return body.emitOpError() << "ties group `" << group.name.str() << "` to `" << groups.inputs[tie].name.str()
                                << "`, which holds other tensors";
    group.pointer = tie >= 0 ? groups.inputs[tie].pointer : static_cast<int64_t>(groups.pointers.size());
    if (tie < 0)
      groups.pointers.push_back(group.payload);
  }
  groups.offsets = llvm::map_to_vector(groups.pointers, payloadOffsets);
  return groups;
}

llvm::DenseMap<Value, std::pair<int64_t, int64_t>> BodyGroups::argumentPlaces(func::FuncOp body) const {
  llvm::DenseMap<Value, std::pair<int64_t, int64_t>> places;
  for (const Group &group : inputs)
    for (size_t i = 0; i < group.payload.size(); ++i)
      places[body.getArgument(group.first + i)] = {group.pointer, offsets[group.pointer][i]};
  return places;
}

// Reads the figures of a cluster for one device, and which devices a rank has.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "analysis/costs/Figures.h"

using namespace mlir;
using namespace pp;
using namespace pp::pipeline;

static Attribute entryOf(Attribute figure, int64_t device) {
  auto of = [&](auto list) { return list.asArrayRef()[device % list.size()]; };
  Builder builder(figure.getContext());
  if (auto list = dyn_cast<DenseI64ArrayAttr>(figure))
    return builder.getI64IntegerAttr(of(list));
  if (auto list = dyn_cast<DenseF64ArrayAttr>(figure))
    return builder.getF64FloatAttr(of(list));
  auto inner = dyn_cast<DictionaryAttr>(figure);
  return inner ? figuresOf(inner, device) : figure;
}

DictionaryAttr pp::figuresOf(DictionaryAttr cluster, int64_t device) {
  SmallVector<NamedAttribute> entries(cluster.getValue());
  for (NamedAttribute &entry : entries)
    entry.setValue(entryOf(entry.getValue(), device));
  return ArrayRef(entries) == cluster.getValue() ? cluster
                                                 : DictionaryAttr::getWithSorted(cluster.getContext(), entries);
}

SmallVector<int64_t> pp::devicesOf(ProgramOp program, int64_t rank) {
  MeshAttr mesh = program.getMeshAttr();
  if (!mesh)
    return {rank};
  return mesh.line(rank * mesh.stride(Axis::pipeline), {Axis::tensor, Axis::context, Axis::data});
}

SmallVector<DictionaryAttr> pp::kindsOf(ProgramOp program, int64_t rank) {
  SmallVector<DictionaryAttr> kinds;
  for (int64_t device : devicesOf(program, rank))
    if (DictionaryAttr its = figuresOf(program.getClusterAttr(), device); !llvm::is_contained(kinds, its))
      kinds.push_back(its);
  return kinds;
}

// Takes an op for two plain ones apart: their specs, and their arguments among its own.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/kernels/Specs.h"
#include <algorithm>

using namespace pp;

bool pp::isPair(Kernel kernel) {
  return kernel == Kernel::linear_gelu || kernel == Kernel::linear_dx_gelu || kernel == Kernel::linear_dw_bias;
}

std::array<OpSpec, 2> pp::partsOf(const OpSpec &pair) {
  const std::vector<int64_t> &d = pair.dims;
  if (pair.kernel == "linear_gelu")
    return {{{"linear", pair.type, d, {}, pair.flags}, {"gelu", pair.type, {d[0] * d[2]}, {}, {}}}};
  if (pair.kernel == "linear_dx_gelu")
    return {{{"linear_dx", pair.type, d, {}, pair.flags}, {"gelu_bwd", pair.type, {d[0] * d[1]}, {}, {}}}};
  std::vector<std::string> flags = pair.flags;
  std::erase(flags, "transposed");
  return {{{"linear_dw", pair.type, d, {}, pair.flags}, {"bias_dw", pair.type, {d[0], d[2]}, {}, flags}}};
}

pp_status_t pp::runParts(const PreparedOp &pair, void *const *a) {
  const PreparedOp &product = *pair.parts[0], &other = *pair.parts[1];
  if (pair.kernel == Kernel::linear_gelu) { // x w b u y
    pp_status_t status = product.body(product, a);
    return status ? status : other.body(other, a + 3);
  }
  bool makesDx = pair.kernel == Kernel::linear_dx_gelu; // dy w u dx; or x dy dw db
  void *const first[] = {a[0], a[1], a[makesDx ? 3 : 2]};
  void *const dx[] = {a[3], a[2], a[3]}, *const db[] = {a[1], a[3]};
  pp_status_t status = product.body(product, first);
  return status ? status : other.body(other, makesDx ? dx : db);
}

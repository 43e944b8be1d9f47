// Finds cuDNN where it is, describes graphs of operations to it, and takes the first engine that serves.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Cudnn.h"
#include <cstdlib>
#include <cublasLt.h>
#include <dlfcn.h>
#include <utility>

using namespace pp;

namespace {

/// The oldest version that masks scores with -inf and needs no clearing of sums in memory.
constexpr size_t oldest = 91000;

void *openLibrary() {
  const char *wish = std::getenv("PP_CUDNN");
  if (wish && std::string(wish).find('/') != std::string::npos)
    return dlopen(wish, RTLD_NOW | RTLD_LOCAL);
  if (void *found = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL))
    return found;
  // Looks in the folder of the toolkit's other libraries, with which the program is linked.
  Dl_info beside = {};
  if (!dladdr(reinterpret_cast<void *>(&cublasLtCreate), &beside) || !beside.dli_fname)
    return nullptr;
  std::string path = beside.dli_fname;
  return dlopen((path.substr(0, path.rfind('/') + 1) + "libcudnn.so.9").c_str(), RTLD_NOW | RTLD_LOCAL);
}

struct Found {
  Cudnn api;
  std::string why;
  Found();
};

Found::Found() {
  void *library = openLibrary();
  if (!library) {
    why = "libcudnn.so.9 is not there";
    return;
  }
  auto take = [&](auto &function, const char *name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && why.empty())
      why = std::string("libcudnn has no ") + name;
  };
  take(api.getVersion, "cudnnGetVersion");
  take(api.getErrorString, "cudnnGetErrorString");
  take(api.getLastErrorString, "cudnnGetLastErrorString");
  take(api.create, "cudnnCreate");
  take(api.setStream, "cudnnSetStream");
  take(api.createDescriptor, "cudnnBackendCreateDescriptor");
  take(api.destroyDescriptor, "cudnnBackendDestroyDescriptor");
  take(api.setAttribute, "cudnnBackendSetAttribute");
  take(api.getAttribute, "cudnnBackendGetAttribute");
  take(api.finalize, "cudnnBackendFinalize");
  take(api.execute, "cudnnBackendExecute");
  if (why.empty() && api.getVersion() < oldest)
    why = "libcudnn is older than 9.10";
}

} // namespace

const Cudnn *pp::findCudnn(std::string &why) {
  static Found found;
  why = found.why;
  return why.empty() ? &found.api : nullptr;
}

CudnnGraph::Shape CudnnGraph::dense(int64_t a, int64_t b, int64_t c, int64_t d) {
  return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
}

CudnnGraph::Shape CudnnGraph::headRows(int64_t b, int64_t s, int64_t heads, int64_t d, int64_t stride) {
  return {{b, heads, s, d}, {s * stride, d, stride, 1}};
}

CudnnGraph::Shape CudnnGraph::Shape::transposed() const {
  Shape other = *this;
  std::swap(other.dims[2], other.dims[3]);
  std::swap(other.strides[2], other.strides[3]);
  return other;
}

CudnnGraph::~CudnnGraph() {
  for (size_t i = owned.size(); i-- > 0;)
    api.destroyDescriptor(owned[i]);
}

bool CudnnGraph::check(cudnnStatus_t status, const char *what) {
  if (status == CUDNN_STATUS_SUCCESS || !failed.empty())
    return failed.empty();
  failed = told(what, status);
  return false;
}

std::string CudnnGraph::told(const char *what, cudnnStatus_t status) const {
  char detail[256] = "";
  api.getLastErrorString(detail, sizeof(detail));
  return std::string(what) + ": " + api.getErrorString(status) + (*detail ? ": " : "") + detail;
}

CudnnGraph::Descriptor CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  Descriptor made = nullptr;
  if (failed.empty() && check(api.createDescriptor(type, &made), "a descriptor"))
    owned.push_back(made);
  return made;
}

template <class T>
void CudnnGraph::set(Descriptor it, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T *values,
                     int64_t count) {
  if (failed.empty())
    check(api.setAttribute(it, name, type, count, values), ("attribute " + std::to_string(int(name))).c_str());
}

void CudnnGraph::refer(Descriptor it, cudnnBackendAttributeName_t name, Descriptor other) {
  set(it, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &other);
}

void CudnnGraph::refer(Descriptor it, cudnnBackendAttributeName_t name, Tensor other) {
  refer(it, name, tensors[size_t(other)]);
}

void CudnnGraph::finish(Descriptor it, const char *what) {
  if (failed.empty())
    check(api.finalize(it), what);
}

CudnnGraph::Tensor CudnnGraph::tensor(const Shape &shape, cudnnDataType_t type, Where where) {
  Descriptor it = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  int64_t id = int64_t(tensors.size()) + 1, alignment = where == Where::Scalar ? 4 : 16;
  bool yes = true;
  set(it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
  set(it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  set(it, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, shape.dims, 4);
  set(it, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, shape.strides, 4);
  set(it, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
  if (where == Where::Between)
    set(it, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &yes);
  else
    given.push_back(id);
  if (where == Where::Scalar)
    set(it, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, &yes);
  finish(it, "a tensor");
  tensors.push_back(it);
  return Tensor(tensors.size()) - 1;
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor y, Tensor x, Tensor b, Tensor t, int64_t axis,
                           cudnnDataType_t arithmetic) {
  Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
  set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &arithmetic);
  if (axis >= 0)
    set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
  finish(how, "a pointwise operation");
  Descriptor it = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  refer(it, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  refer(it, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  refer(it, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b >= 0)
    refer(it, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t >= 0)
    refer(it, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  finish(it, "a pointwise operation");
  operations.push_back(it);
}

void CudnnGraph::multiply(Tensor a, Tensor b, Tensor c) {
  Descriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &arithmetic);
  finish(how, "a product");
  Descriptor it = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  refer(it, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  refer(it, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  refer(it, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  refer(it, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  finish(it, "a product");
  operations.push_back(it);
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t mode, Tensor x, Tensor y) {
  Descriptor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &mode);
  set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &arithmetic);
  finish(how, "a reduction");
  Descriptor it = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  refer(it, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  refer(it, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  refer(it, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  finish(it, "a reduction");
  operations.push_back(it);
}

void CudnnGraph::reshape(Tensor x, Tensor y) {
  Descriptor it = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  refer(it, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  refer(it, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  finish(it, "a reshape");
  operations.push_back(it);
}

CudnnGraph::Descriptor CudnnGraph::describeDevice(const std::string &json) {
  Descriptor it = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  set(it, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json.data(), int64_t(json.size()));
  finish(it, "the device's description");
  return it;
}

/// The plan of the first engine, in the order of the heuristics, that cuDNN can build; null if there is none.
CudnnGraph::Descriptor CudnnGraph::choose(Descriptor graph, Descriptor device, cudnnHandle_t handle) {
  constexpr int64_t most = 8;
  Descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  refer(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  if (device)
    refer(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  finish(heuristics, "the heuristics");
  Descriptor engines[most] = {};
  for (Descriptor &engine : engines)
    engine = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  int64_t count = 0;
  if (!failed.empty() || !check(api.getAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, engines),
                                "the heuristics"))
    return nullptr;
  for (int64_t i = 0; i < count; ++i) {
    failed.clear(); // the engine before this one did not serve
    Descriptor it = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    refer(it, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engines[i]);
    if (device)
      refer(it, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    else
      set(it, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    finish(it, "a plan");
    if (failed.empty())
      return it;
  }
  if (failed.empty())
    failed = "no engine of cuDNN serves";
  return nullptr;
}

bool CudnnGraph::plan(cudnnHandle_t handle, const std::string &device) {
  Descriptor properties = handle ? nullptr : describeDevice(device),
             graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (handle)
    set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.data(),
      int64_t(operations.size()));
  finish(graph, "the graph");
  chosen = failed.empty() ? choose(graph, properties, handle) : nullptr;
  int64_t count = 0;
  return chosen && check(api.getAttribute(chosen, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                          &workspace),
                         "a plan");
}

bool CudnnGraph::run(cudnnHandle_t handle, std::vector<void *> &places, void *scratch, std::string &why) const {
  Descriptor pack = nullptr;
  if (places.size() != given.size() ||
      api.createDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) != CUDNN_STATUS_SUCCESS)
    return false;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  auto good = [&](cudnnStatus_t its) { return (status = its) == CUDNN_STATUS_SUCCESS; };
  auto count = int64_t(given.size());
  auto set = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t number, const void *from) {
    return good(api.setAttribute(pack, name, type, number, from));
  };
  bool done = set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, given.data()) &&
              set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, places.data()) &&
              set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch) && good(api.finalize(pack)) &&
              good(api.execute(handle, chosen, pack));
  if (!done)
    why = told("cuDNN", status);
  api.destroyDescriptor(pack);
  return done;
}

// The backend API of cuDNN as a graph of operations and its plan; the library is found at run time, or left out.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_CUDA_CUDNN_H
#define PP_RUNTIME_CUDA_CUDNN_H

#include <cudnn.h>
#include <string>
#include <vector>

namespace pp {

/// The functions of libcudnn.so.9 that are called here.
struct Cudnn {
  decltype(&cudnnGetVersion) getVersion = nullptr;
  decltype(&cudnnGetErrorString) getErrorString = nullptr;
  decltype(&cudnnGetLastErrorString) getLastErrorString = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) setStream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) createDescriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroyDescriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) setAttribute = nullptr;
  decltype(&cudnnBackendGetAttribute) getAttribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

/// The library, once found; null where there is none that serves, and `why` says so in a few words. A PP_CUDNN with a
/// slash names its file.
const Cudnn *findCudnn(std::string &why);

/// Operations on tensors of four dims, and after `plan` what executes them. After a failure calls do nothing.
class CudnnGraph {
public:
  using Tensor = int;
  enum class Where { Memory, Between, Scalar }; ///< a scalar is given when the plan runs, by its address on the host
  struct Shape {
    int64_t dims[4], strides[4];
    Shape transposed() const; ///< the last two dims change places
  };
  static Shape dense(int64_t a, int64_t b, int64_t c, int64_t d);
  /// Rows of heads, `stride` elements apart, seen as [b, heads, s, d].
  static Shape headRows(int64_t b, int64_t s, int64_t heads, int64_t d, int64_t stride);

  explicit CudnnGraph(const Cudnn &api) : api(api) {}
  CudnnGraph(const CudnnGraph &) = delete;
  ~CudnnGraph();

  Tensor tensor(const Shape &shape, cudnnDataType_t type, Where where);
  Tensor scalar() { return tensor(dense(1, 1, 1, 1), CUDNN_DATA_FLOAT, Where::Scalar); }
  Tensor between(const Shape &shape, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return tensor(shape, type, Where::Between);
  }
  /// y = mode(x, b); of a selection t says where x, where b is taken.
  void pointwise(cudnnPointwiseMode_t mode, Tensor y, Tensor x, Tensor b = -1, Tensor t = -1, int64_t axis = -1,
                 cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT);
  void multiply(Tensor a, Tensor b, Tensor c);
  void reduce(cudnnReduceTensorOp_t how, Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);

  /// Takes the first of the heuristics' engines that serves: for the handle's device, or, where it is null, for the one
  /// that `device` describes in cuDNN's JSON.
  bool plan(cudnnHandle_t handle, const std::string &device);
  int64_t workspaceBytes() const { return workspace; }
  /// `places` holds an address for each tensor in memory and each scalar, in the order they were made.
  bool run(cudnnHandle_t handle, std::vector<void *> &places, void *scratch, std::string &why) const;
  /// The text of the first failure.
  const std::string &failure() const { return failed; }

private:
  using Descriptor = cudnnBackendDescriptor_t;
  bool check(cudnnStatus_t status, const char *what);
  std::string told(const char *what, cudnnStatus_t status) const;
  Descriptor make(cudnnBackendDescriptorType_t type);
  template <class T>
  void set(Descriptor it, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T *values,
           int64_t count = 1);
  void refer(Descriptor it, cudnnBackendAttributeName_t name, Descriptor other);
  void refer(Descriptor it, cudnnBackendAttributeName_t name, Tensor other);
  void finish(Descriptor it, const char *what);
  Descriptor describeDevice(const std::string &json);
  Descriptor choose(Descriptor graph, Descriptor device, cudnnHandle_t handle);

  const Cudnn &api;
  std::string failed;
  std::vector<Descriptor> owned, tensors, operations;
  std::vector<int64_t> given; ///< unique ids of tensors in memory and of scalars
  Descriptor chosen = nullptr;
  int64_t workspace = 0;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_CUDNN_H

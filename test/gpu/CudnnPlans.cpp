// What cuDNN says without a GPU: our graphs of attention are understood, and have plans on GPUs only described.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Cudnn.h"
#include "runtime/cuda/Sdpa.h"
#include <dlfcn.h>
#include <gtest/gtest.h>

using namespace pp;

namespace {

/// A GPU as cuDNN writes one down, with the numbers of NVIDIA's data sheets and of the CUDA C++ Programming Guide.
std::string gpu(const char *name, int capability, int multiprocessors, int sharedBytes, int cacheBytes) {
  return std::string("{\"deviceName\":\"") + name + "\",\"deviceVer\":" + std::to_string(capability) +
         ",\"multiProcessorCount\":" + std::to_string(multiprocessors) +
         ",\"maxSharedMemoryPerBlockOptin\":" + std::to_string(sharedBytes) +
         ",\"l2CacheSize\":" + std::to_string(cacheBytes) +
         R"(,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"warpSize":32,
         "maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,
         "maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,
         "supportCoopLaunch":1,"totalGlobalMem":80000000000,"smClockRateKHz":1400000,"memClockRateKHz":1500000,
         "cudaDeviceId":0,"driverVer":13000})";
}

std::string a100() { return gpu("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040); }
std::string h100() { return gpu("NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800); }

SdpaShape shapeOf(bool backward, bool causal, int64_t heads, int64_t groups, int64_t width, Type type = Type::Bf16,
                  int64_t keys = 1024, bool packed = false) {
  Chunk whole = {keys, 0};
  PreparedOp op{};
  op.kernel = backward ? Kernel::attention_bwd : Kernel::attention;
  op.type = type;
  op.flags = (causal ? uint32_t(Causal) : 0) | (packed ? uint32_t(Packed) : 0);
  int64_t dims[] = {2, keys, heads, groups, width, 0};
  std::copy_n(dims, 6, op.dims);
  op.chunks = &whole;
  op.chunkCount = 1;
  EXPECT_TRUE(SdpaShape::fits(op));
  return SdpaShape(op);
}

/// The fake driver stands in before cuDNN looks for one.
class CudnnPlans : public testing::Test {
protected:
  static void SetUpTestSuite() {
    ASSERT_NE(dlopen(PP_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    available = SdpaPlan::describe().starts_with("cuDNN 9.");
  }
  void SetUp() override {
    if (!available)
      GTEST_SKIP() << SdpaPlan::describe();
  }
  static void expectPlan(const std::string &device, const SdpaShape &shape) {
    std::string why;
    std::unique_ptr<SdpaPlan> sdpa = SdpaPlan::create(shape, device, why);
    ASSERT_TRUE(sdpa) << why;
    // Delta and the sums of dq in f32 lie in the scratch, and what cuDNN wants for itself: as much as was measured.
    int64_t rows = shape.batch * shape.heads * shape.queries;
    int64_t own = shape.backward ? 4 * rows * (1 + shape.width) : 0;
    int64_t shared =
        shape.backward && shape.heads > shape.groups ? 4 * shape.batch * shape.heads * shape.keys * shape.width : 0;
    int64_t again = shape.backward && device == a100() ? 4 * rows * shape.width : 0;
    EXPECT_GE(sdpa->scratchBytes(), own + shared + again);
    EXPECT_LE(sdpa->scratchBytes(), own + shared + again + 65536);
    EXPECT_LE(sdpa->scratchBytes(), shape.plannedBytes());
    EXPECT_EQ(shape.excess(sdpa->scratchBytes()), "");
    EXPECT_NE(shape.excess(shape.plannedBytes() + 1), "");
  }
  static inline bool available = false;
};

} // namespace

TEST_F(CudnnPlans, Hopper) {
  expectPlan(h100(), shapeOf(false, true, 8, 2, 128));
  expectPlan(h100(), shapeOf(true, true, 8, 2, 128));
  expectPlan(h100(), shapeOf(true, false, 8, 8, 64));
}

TEST_F(CudnnPlans, Ampere) {
  expectPlan(a100(), shapeOf(false, false, 8, 8, 64, Type::F16));
  expectPlan(a100(), shapeOf(true, true, 8, 2, 128));
}

/// q, k and v as the columns of one tensor, as GPT-2 has them.
TEST_F(CudnnPlans, OfOneTensor) {
  for (const std::string &device : {h100(), a100()})
    for (bool backward : {false, true})
      for (int64_t groups : {8, 2}) {
        const SdpaShape shape = shapeOf(backward, true, 8, groups, 64, Type::Bf16, 1024, /*packed=*/true);
        EXPECT_EQ(shape.queryStride, (8 + 2 * groups) * 64);
        expectPlan(device, shape);
      }
}

/// Heads in groups that do not divide them are no graph, and the reason is cuDNN's.
TEST_F(CudnnPlans, WhatCudnnRefusesIsSaid) {
  std::string why;
  EXPECT_FALSE(SdpaPlan::create(shapeOf(false, true, 8, 3, 128), h100(), why));
  EXPECT_NE(why, "");
}

/// Versions that are known to be wrong in the backward: there our own kernels run, and the reason is said.
TEST_F(CudnnPlans, WrongVersionsAreRefused) {
  std::string why;
  auto *api = const_cast<Cudnn *>(findCudnn(why));
  ASSERT_TRUE(api) << why;
  auto real = api->getVersion;
  auto said = [&](size_t (*version)(), const SdpaShape &shape) {
    api->getVersion = version;
    bool made = SdpaPlan::create(shape, h100(), why) != nullptr;
    api->getVersion = real;
    return made ? std::string("made") : why;
  };
  const SdpaShape forward = shapeOf(false, true, 8, 2, 128), backward = shapeOf(true, true, 8, 2, 128);
  const SdpaShape odd = shapeOf(true, true, 8, 2, 128, Type::F16, 1000);
  for (auto version : {+[]() -> size_t { return 91000; }, +[]() -> size_t { return 91001; }}) {
    EXPECT_EQ(said(version, forward), "made");
    EXPECT_EQ(said(version, backward), "cuDNN 9.10." + std::to_string(version() % 100) +
                                           " computes wrong gradients of attention in 16 bits; later than 9.10.1 is "
                                           "needed");
  }
  for (auto version : {+[]() -> size_t { return 91002; }, +[]() -> size_t { return 91500; }}) {
    EXPECT_EQ(said(version, backward), "made");
    EXPECT_EQ(said(version, shapeOf(false, true, 8, 2, 128, Type::F16, 1000)), "made");
    EXPECT_TRUE(said(version, odd)
                    .ends_with(" may compute wrong gradients for 1000 keys, not a multiple of 128; later "
                               "than 9.15.0 is needed"))
        << why;
  }
  EXPECT_EQ(said(
                +[]() -> size_t { return 91501; }, odd),
            "made");
}

TEST_F(CudnnPlans, AskedOnlyForWhatItHas) {
  PreparedOp op{};
  Chunk chunks[] = {{1024, 0}, {1024, 1024}};
  op.kernel = Kernel::attention;
  op.type = Type::Bf16;
  op.flags = Causal;
  op.dims[4] = 64;
  op.chunks = chunks;
  op.chunkCount = 1;
  auto fits = [&](auto change) {
    PreparedOp other = op;
    change(other);
    return SdpaShape::fits(other);
  };
  EXPECT_TRUE(SdpaShape::fits(op));
  EXPECT_FALSE(fits([](PreparedOp &other) { other.chunkCount = 2, other.dims[5] = 1024; })) << "to be added up";
  EXPECT_TRUE(fits([](PreparedOp &other) { other.dims[5] = 1024; })) << "the queries see all keys";
  EXPECT_FALSE(fits([](PreparedOp &other) { other.dims[5] = 512; })) << "and here each sees more than the one before";
  EXPECT_TRUE(fits([](PreparedOp &other) { other.dims[5] = 512, other.flags = 0; })) << "and see them all";
  EXPECT_FALSE(fits([](PreparedOp &other) { other.dims[4] = 60; }));
  EXPECT_FALSE(fits([](PreparedOp &other) { other.type = Type::F32; }));
  for (OpFlag flag : {Accumulate, Sums, AccumulateKv})
    EXPECT_FALSE(fits([&](PreparedOp &other) { other.kernel = Kernel::attention_bwd, other.flags |= flag; }));
  for (OpFlag flag : {Documents, Zigzag})
    EXPECT_FALSE(fits([&](PreparedOp &other) { other.flags |= flag; }));
  setenv("PP_CUDNN", "forward", 1);
  EXPECT_TRUE(SdpaShape::fits(op));
  EXPECT_FALSE(fits([](PreparedOp &other) { other.kernel = Kernel::attention_bwd; }));
  setenv("PP_CUDNN", "off", 1);
  EXPECT_FALSE(SdpaShape::fits(op));
  EXPECT_EQ(SdpaPlan::describe(), "own kernels (PP_CUDNN is off)");
  unsetenv("PP_CUDNN");
}

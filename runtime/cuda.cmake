# The kernels of the device `cuda`: sources that take the place of the CPU's, or run emulated where they are tested.
set(PP_CUDA_KERNELS cuda/Elementwise.cu cuda/Optimizer.cu cuda/Norms.cu cuda/Tables.cu cuda/CrossEntropy.cu
    cuda/AttentionForward.cu cuda/AttentionBackward.cu cuda/PlainAttention.cu cuda/MergeAttention.cu)
set(PP_CUDA_KERNEL_SOURCES ${PP_CUDA_KERNELS} cuda/Prepare.cpp cuda/Gemm.cpp cuda/Memory.cpp kernels/Entry.cpp
    kernels/Specs.cpp kernels/Pairs.cpp)

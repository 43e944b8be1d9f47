# The kernels' sources, and the flags that the loops need to become vector code; each ISA's file has its own.
set(PP_KERNEL_SOURCES kernels/Entry.cpp kernels/Prepare.cpp kernels/Specs.cpp kernels/Pairs.cpp
    kernels/Gemm.cpp kernels/LoopsPlain.cpp)
set(PP_LOOP_FLAGS -O3 -fopenmp-simd -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-thread-jumps)
set_source_files_properties(kernels/LoopsPlain.cpp PROPERTIES COMPILE_OPTIONS "${PP_LOOP_FLAGS}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND PP_KERNEL_SOURCES kernels/LoopsAvx2.cpp kernels/LoopsAvx512.cpp kernels/Bf16Gemm.cpp)
  set_source_files_properties(kernels/LoopsAvx2.cpp PROPERTIES COMPILE_OPTIONS "${PP_LOOP_FLAGS};-mavx2;-mfma;-mf16c")
  set_source_files_properties(kernels/LoopsAvx512.cpp PROPERTIES COMPILE_OPTIONS
    "${PP_LOOP_FLAGS};-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
  # (g++ 12's own headers of AVX-512 are what these two warnings are about.)
  set_source_files_properties(kernels/Bf16Gemm.cpp PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx2;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-Wno-uninitialized;-Wno-maybe-uninitialized")
  set_source_files_properties(kernels/Prepare.cpp kernels/Gemm.cpp kernels/Bf16Gemm.cpp kernels/LoopsAvx2.cpp
    kernels/LoopsAvx512.cpp PROPERTIES COMPILE_DEFINITIONS PP_X86_64)
endif()

# The kernels of the device `cuda` compiled as C++ over fibers, and the unit tests that run them on the CPU.
include(${CMAKE_SOURCE_DIR}/runtime/cuda.cmake)
set(PP_EMULATED ${PP_CUDA_KERNELS} cuda/Prepare.cpp cuda/GemmEmulated.cpp cuda/MemoryEmulated.cpp cuda/Fibers.cpp
    kernels/Entry.cpp kernels/Specs.cpp)
list(TRANSFORM PP_EMULATED PREPEND ${CMAKE_SOURCE_DIR}/runtime/)
list(TRANSFORM PP_CUDA_KERNELS PREPEND ${CMAKE_SOURCE_DIR}/runtime/ OUTPUT_VARIABLE PP_EMULATED_KERNELS)
set_source_files_properties(${PP_EMULATED_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
add_library(pp-cuda-emulated STATIC ${PP_EMULATED})
target_include_directories(pp-cuda-emulated PUBLIC ${CMAKE_SOURCE_DIR})
target_compile_options(pp-cuda-emulated PRIVATE -O2)
target_link_libraries(pp-cuda-emulated PRIVATE pp-warnings)

set(PP_GPU_TESTS KernelsAttention KernelsChunks KernelsCrossEntropy KernelsElementwise KernelsGemm KernelsRows)
list(TRANSFORM PP_GPU_TESTS REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/../unit/\\1.cpp")
list(APPEND PP_GPU_TESTS ${CMAKE_CURRENT_LIST_DIR}/KernelsLimits.cpp ${CMAKE_CURRENT_LIST_DIR}/KernelsTiles.cpp)
add_executable(pp-emulated-kernel-tests ${PP_GPU_TESTS} ${CMAKE_CURRENT_LIST_DIR}/Emulation.cpp
               ${CMAKE_CURRENT_LIST_DIR}/../unit/DeviceMemoryHost.cpp)
target_compile_definitions(pp-emulated-kernel-tests PRIVATE PP_EMULATED)
target_link_libraries(pp-emulated-kernel-tests PRIVATE GTest::gtest_main GTest::gtest pp-cuda-emulated pp-warnings)
gtest_discover_tests(pp-emulated-kernel-tests TEST_PREFIX emulated.)

# What runs on a GPU alone: the kernels' tests and their speed, built where the toolkit is and run by bench/gpu/run.sh.
set(PP_ON_GPU KernelsAttention KernelsChunks KernelsCrossEntropy KernelsElementwise KernelsGemm KernelsPairs KernelsRows)
list(TRANSFORM PP_ON_GPU REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/../unit/\\1.cpp")
list(APPEND PP_ON_GPU ${CMAKE_CURRENT_LIST_DIR}/KernelsLimits.cpp ${CMAKE_CURRENT_LIST_DIR}/KernelsTiles.cpp
     ${CMAKE_CURRENT_LIST_DIR}/DeviceMemoryCuda.cpp)
add_executable(pp-gpu-kernel-tests EXCLUDE_FROM_ALL ${PP_ON_GPU}) # their sources are those of the emulated tests
target_link_libraries(pp-gpu-kernel-tests PRIVATE GTest::gtest_main GTest::gtest pp-runtime-cuda pp-warnings)
add_executable(pp-gpu-kernels EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/gpu/Kernels.cpp)
target_link_libraries(pp-gpu-kernels PRIVATE pp-runtime-cuda pp-warnings)
# What cuDNN makes of our graphs, for GPUs that are only described: a driver that takes all kernels stands in.
if(PP_CUDNN_INCLUDE AND NOT PP_CUDNN STREQUAL OFF)
  add_library(pp-fake-driver SHARED ${CMAKE_CURRENT_LIST_DIR}/FakeDriver.c)
  set_target_properties(pp-fake-driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY
                        ${CMAKE_CURRENT_BINARY_DIR}/fake-driver)
  add_executable(pp-cudnn-tests ${CMAKE_CURRENT_LIST_DIR}/CudnnPlans.cpp ${CMAKE_SOURCE_DIR}/runtime/cuda/Sdpa.cpp
                 ${CMAKE_SOURCE_DIR}/runtime/cuda/Cudnn.cpp)
  target_include_directories(pp-cudnn-tests PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(pp-cudnn-tests SYSTEM PRIVATE ${PP_CUDNN_INCLUDE})
  target_compile_definitions(pp-cudnn-tests PRIVATE PP_FAKE_DRIVER="$<TARGET_SONAME_FILE:pp-fake-driver>")
  target_link_libraries(pp-cudnn-tests PRIVATE GTest::gtest_main GTest::gtest CUDA::cublasLt CUDA::cudart_static
                        ${CMAKE_DL_LIBS} pp-warnings)
  add_dependencies(pp-cudnn-tests pp-fake-driver)
  add_test(NAME cudnn-plans COMMAND pp-cudnn-tests)
  set_tests_properties(cudnn-plans PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${CUDAToolkit_LIBRARY_DIR}:$ENV{LD_LIBRARY_PATH}")
endif()

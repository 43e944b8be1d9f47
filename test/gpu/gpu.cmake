# What runs on a GPU alone: the kernels' tests and their speed, built where the toolkit is and run by bench/gpu/run.sh.
set(PP_ON_GPU KernelsAttention KernelsChunks KernelsCrossEntropy KernelsElementwise KernelsGemm KernelsRows)
list(TRANSFORM PP_ON_GPU REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/../unit/\\1.cpp")
list(APPEND PP_ON_GPU ${CMAKE_CURRENT_LIST_DIR}/KernelsLimits.cpp ${CMAKE_CURRENT_LIST_DIR}/KernelsTiles.cpp
     ${CMAKE_CURRENT_LIST_DIR}/DeviceMemoryCuda.cpp)
add_executable(pp-gpu-kernel-tests EXCLUDE_FROM_ALL ${PP_ON_GPU}) # their sources are those of the emulated tests
target_link_libraries(pp-gpu-kernel-tests PRIVATE GTest::gtest_main GTest::gtest pp-runtime-cuda pp-warnings)
add_executable(pp-gpu-kernels EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/gpu/Kernels.cpp)
target_link_libraries(pp-gpu-kernels PRIVATE pp-runtime-cuda pp-warnings)

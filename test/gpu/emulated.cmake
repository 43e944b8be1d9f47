# The kernels of the device `cuda` compiled as C++ over fibers, and the unit tests that run them on the CPU.
get_directory_property(PP_EMULATED_KERNELS DIRECTORY ${CMAKE_SOURCE_DIR}/runtime DEFINITION PP_SIMT_KERNELS)
get_directory_property(PP_KERNEL_ENTRY DIRECTORY ${CMAKE_SOURCE_DIR}/runtime DEFINITION PP_KERNEL_ENTRY)
set(PP_EMULATED ${PP_EMULATED_KERNELS} ${PP_KERNEL_ENTRY} cuda/Prepare.cpp cuda/GemmEmulated.cpp cuda/MemoryEmulated.cpp cuda/SdpaNone.cpp
    simt/BlockFibers.cpp)
list(TRANSFORM PP_EMULATED PREPEND ${CMAKE_SOURCE_DIR}/runtime/)
list(TRANSFORM PP_EMULATED_KERNELS PREPEND ${CMAKE_SOURCE_DIR}/runtime/)
set_source_files_properties(${PP_EMULATED_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
add_library(pp-cuda-emulated STATIC ${PP_EMULATED})
target_include_directories(pp-cuda-emulated PUBLIC ${CMAKE_SOURCE_DIR})
target_compile_options(pp-cuda-emulated PRIVATE -O2)
target_link_libraries(pp-cuda-emulated PRIVATE pp-warnings)

set(PP_GPU_TESTS KernelsAttention KernelsChunks KernelsCrossEntropy KernelsElementwise KernelsGemm KernelsPairs KernelsRows)
list(TRANSFORM PP_GPU_TESTS REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/../unit/\\1.cpp")
list(APPEND PP_GPU_TESTS ${CMAKE_CURRENT_LIST_DIR}/KernelsLimits.cpp ${CMAKE_CURRENT_LIST_DIR}/KernelsTiles.cpp)
add_executable(pp-emulated-kernel-tests ${PP_GPU_TESTS} ${CMAKE_CURRENT_LIST_DIR}/Emulation.cpp
               ${CMAKE_CURRENT_LIST_DIR}/../unit/DeviceMemoryHost.cpp)
target_compile_definitions(pp-emulated-kernel-tests PRIVATE PP_EMULATED)
target_link_libraries(pp-emulated-kernel-tests PRIVATE GTest::gtest_main GTest::gtest pp-cuda-emulated pp-warnings)
gtest_discover_tests(pp-emulated-kernel-tests TEST_PREFIX emulated.)
# The last thread first: what is right only in one order shows.
add_test(NAME emulated-kernels-reversed COMMAND pp-emulated-kernel-tests --gtest_filter=
  KernelsRows.*:KernelsCrossEntropy.*:KernelsElementwise.*:KernelsTiles.LengthsAroundTheTiles:KernelsChunks.RowsThat*)
set_tests_properties(emulated-kernels-reversed PROPERTIES ENVIRONMENT PP_SIMT_ORDER=down)

# Emitted programs whose kernels are these: the runtime's archive with one set of kernels in the place of the other.
set(PP_EMULATED_RUNTIME ${CMAKE_ARCHIVE_OUTPUT_DIRECTORY}/libpp-runtime-emulated.a)
add_custom_command(OUTPUT ${PP_EMULATED_RUNTIME}
  COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:pp-runtime> ${PP_EMULATED_RUNTIME}
  COMMAND ${CMAKE_AR} d ${PP_EMULATED_RUNTIME} Entry.cpp.o Prepare.cpp.o Specs.cpp.o Pairs.cpp.o Gemm.cpp.o
          LoopsPlain.cpp.o LoopsAvx2.cpp.o LoopsAvx512.cpp.o Bf16Attention.cpp.o Bf16Gemm.cpp.o
  COMMAND ${CMAKE_AR} qcs ${PP_EMULATED_RUNTIME} $<TARGET_OBJECTS:pp-cuda-emulated>
  DEPENDS pp-runtime pp-cuda-emulated COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(pp-runtime-emulated ALL DEPENDS ${PP_EMULATED_RUNTIME})

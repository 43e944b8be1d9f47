# The kernels' unit tests: each op alone against references in f64 and finite differences.
add_executable(pp-kernel-tests
  ${CMAKE_CURRENT_LIST_DIR}/DeviceMemoryHost.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsAttention.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsChunks.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsCrossEntropy.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsElementwise.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsGemm.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsPairs.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsPrepare.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsRows.cpp
  ${CMAKE_CURRENT_LIST_DIR}/KernelsWideTiles.cpp)
# Vectors of 512 bits are passed by value inside it, never across files.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/KernelsWideTiles.cpp PROPERTIES
  COMPILE_OPTIONS "-fopenmp-simd;-fno-math-errno;-fno-trapping-math;-Wno-psabi;-Wno-unused-function")
# (gtest_main first: the runtime holds a main of its own, the emitted programs'.)
target_link_libraries(pp-kernel-tests PRIVATE GTest::gtest_main GTest::gtest pp-runtime pp-warnings)
gtest_discover_tests(pp-kernel-tests)
# Products and attention with less than this CPU has.
foreach(isa avx512 avx2 plain)
  add_test(NAME kernels-at-${isa} COMMAND pp-kernel-tests --gtest_filter=KernelsGemm.*:KernelsAttention.*)
  set_tests_properties(kernels-at-${isa} PROPERTIES ENVIRONMENT PP_ISA=${isa})
endforeach()

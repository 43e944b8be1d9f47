# The kernels' benchmark: ratios to sgemm and to raw oneDNN, and ns per element, in one run.
add_executable(pp-bench-kernels ${CMAKE_CURRENT_LIST_DIR}/kernels.cpp)
target_link_libraries(pp-bench-kernels PRIVATE pp-runtime pp-warnings)

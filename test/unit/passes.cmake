# The passes' unit tests: what is asked of many programs at once, through the compiler's own libraries.
# (An object library, for the precompiled header is made for code of libraries.)
add_library(pp-pass-test-objects OBJECT ${CMAKE_CURRENT_LIST_DIR}/ProveProgress.cpp)
target_precompile_headers(pp-pass-test-objects REUSE_FROM pp-dialect)
target_link_libraries(pp-pass-test-objects PUBLIC pp-frontend pp-passes GTest::gtest)
target_compile_definitions(pp-pass-test-objects PRIVATE PP_STDLIB_DIR="${CMAKE_SOURCE_DIR}/stdlib")
add_executable(pp-pass-tests)
target_link_libraries(pp-pass-tests PRIVATE pp-pass-test-objects GTest::gtest_main)
gtest_discover_tests(pp-pass-tests)

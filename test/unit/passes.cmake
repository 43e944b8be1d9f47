# The passes' unit tests: what is asked of many programs at once, through the compiler's own libraries.
add_executable(pp-pass-tests ${CMAKE_CURRENT_LIST_DIR}/ProveProgress.cpp ${CMAKE_CURRENT_LIST_DIR}/VisiblePairs.cpp)
target_precompile_headers(pp-pass-tests REUSE_FROM pp-dialect)
target_link_libraries(pp-pass-tests PRIVATE pp-frontend pp-passes pp-report GTest::gtest GTest::gtest_main)
target_compile_definitions(pp-pass-tests PRIVATE PP_STDLIB_DIR="${CMAKE_SOURCE_DIR}/stdlib")
gtest_discover_tests(pp-pass-tests)
# The mutants of lowered programs.
add_executable(pp-lowering-tests ${CMAKE_CURRENT_LIST_DIR}/CheckLowered.cpp)
target_precompile_headers(pp-lowering-tests REUSE_FROM pp-dialect)
target_link_libraries(pp-lowering-tests PRIVATE pp-frontend pp-lowering GTest::gtest GTest::gtest_main)
target_compile_definitions(pp-lowering-tests PRIVATE PP_STDLIB_DIR="${CMAKE_SOURCE_DIR}/stdlib")
gtest_discover_tests(pp-lowering-tests DISCOVERY_MODE PRE_TEST)

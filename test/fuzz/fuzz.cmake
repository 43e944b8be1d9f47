# The proofs against execution: a few hundred programs in ctest, thousands by `build/bin/pp-fuzz`.
add_executable(pp-fuzz
  ${CMAKE_CURRENT_LIST_DIR}/Fuzz.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Judge.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Load.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Machine.cpp
  ${CMAKE_CURRENT_LIST_DIR}/MutateMessages.cpp
  ${CMAKE_CURRENT_LIST_DIR}/MutateTasks.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Mutations.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Run.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Schedules.cpp
  ${CMAKE_CURRENT_LIST_DIR}/Threads.cpp)
target_link_libraries(pp-fuzz PRIVATE pp-frontend pp-lowering pp-passes pp-runtime)
target_precompile_headers(pp-fuzz PRIVATE ${CMAKE_SOURCE_DIR}/dialect/Precompiled.h)
add_test(NAME fuzz-proofs COMMAND pp-fuzz --cases=400)
set_tests_properties(fuzz-proofs PROPERTIES TIMEOUT 300)

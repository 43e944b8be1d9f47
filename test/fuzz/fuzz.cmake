# The proofs against execution: a few hundred programs in ctest, thousands by `build/bin/pp-fuzz`.
# (An object library, for the precompiled header is made without OpenMP, which the runtime brings.)
add_library(pp-fuzz-objects OBJECT
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
target_link_libraries(pp-fuzz-objects PUBLIC pp-frontend pp-lowering pp-passes)
target_compile_definitions(pp-fuzz-objects PRIVATE PP_STDLIB_DIR="${CMAKE_SOURCE_DIR}/stdlib")
target_precompile_headers(pp-fuzz-objects REUSE_FROM pp-dialect)
set_target_properties(pp-fuzz-objects PROPERTIES UNITY_BUILD ${PP_UNITY})
add_executable(pp-fuzz)
target_link_libraries(pp-fuzz PRIVATE pp-fuzz-objects pp-runtime)
add_test(NAME fuzz-proofs COMMAND pp-fuzz --cases=400)
# Other programs every time; the first line and every failure say the seed.
add_test(NAME fuzz-proofs-new-seed COMMAND pp-fuzz --cases=400 --seed=random)
# Weights that are cut over ranks, of which each must be compared with its part of the whole.
add_test(NAME fuzz-proofs-cut
         COMMAND pp-fuzz --cases=480 --library=fsdp,zero,one_f_one_b_vocabulary,slimpipe,tawpipe,ring_of_nodes)
set_tests_properties(fuzz-proofs fuzz-proofs-cut fuzz-proofs-new-seed PROPERTIES TIMEOUT 300)

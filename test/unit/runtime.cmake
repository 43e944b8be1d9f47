# Programs made by hand as the compiler emits them, and the tests of the runtime that run them and its parts.
set(PP_UNIT_DIR ${CMAKE_CURRENT_LIST_DIR})
function(pp_add_runtime_program name ranks type)
  add_executable(${name} ${PP_UNIT_DIR}/RuntimeProgram.cpp)
  target_compile_definitions(${name} PRIVATE PP_TEST_RANKS=${ranks} PP_TEST_TYPE="${type}")
  target_link_libraries(${name} PRIVATE pp-runtime pp-warnings)
endfunction()
foreach(type f32 f64 bf16 f16)
  pp_add_runtime_program(pp-byhand-1-${type} 1 ${type})
  pp_add_runtime_program(pp-byhand-2-${type} 2 ${type})
endforeach()

# gtest_main stands first: the runtime's own main is for emitted programs.
add_executable(pp-runtime-tests ${PP_UNIT_DIR}/RuntimeFiles.cpp ${PP_UNIT_DIR}/RuntimeTransport.cpp
               ${PP_UNIT_DIR}/RuntimeStreams.cpp ${PP_UNIT_DIR}/RuntimeProgram.cpp)
target_link_libraries(pp-runtime-tests PRIVATE GTest::gtest_main GTest::gtest pp-runtime pp-warnings)
target_compile_definitions(pp-runtime-tests PRIVATE PP_BYHAND_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
add_dependencies(pp-runtime-tests pp-byhand-1-f32 pp-byhand-1-f64 pp-byhand-1-bf16 pp-byhand-1-f16
                 pp-byhand-2-f32 pp-byhand-2-f64 pp-byhand-2-bf16 pp-byhand-2-f16)
if(PP_WITH_MPI)
  add_executable(pp-message-pattern ${PP_UNIT_DIR}/RuntimePattern.cpp)
  target_link_libraries(pp-message-pattern PRIVATE pp-runtime pp-warnings)
  target_sources(pp-runtime-tests PRIVATE ${PP_UNIT_DIR}/RuntimeRuns.cpp)
  add_dependencies(pp-runtime-tests pp-message-pattern)
endif()
gtest_discover_tests(pp-runtime-tests)

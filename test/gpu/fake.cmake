# Emitted programs for `cuda` without a GPU: the runtime as it is, over stand-ins of the CUDA runtime and of NCCL.
add_library(pp-fake-gpu STATIC ${CMAKE_SOURCE_DIR}/runtime/cuda/Driver.cpp ${CMAKE_SOURCE_DIR}/runtime/cuda/TransportNccl.cpp
            ${CMAKE_SOURCE_DIR}/runtime/transport/RunMpi.cpp ${CMAKE_SOURCE_DIR}/runtime/Main.cpp
            ${CMAKE_CURRENT_LIST_DIR}/FakeOrder.cpp ${CMAKE_CURRENT_LIST_DIR}/FakeCuda.cpp ${CMAKE_CURRENT_LIST_DIR}/FakeNccl.cpp)
target_compile_definitions(pp-fake-gpu PRIVATE PP_WITH_NCCL)
set_source_files_properties(${CMAKE_SOURCE_DIR}/runtime/cuda/Driver.cpp PROPERTIES COMPILE_DEFINITIONS openDriver=openCudaDriver)
target_include_directories(pp-fake-gpu SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(pp-fake-gpu PRIVATE pp-trainer pp-warnings)
set(PP_FAKE_GPU_RUNTIME ${CMAKE_ARCHIVE_OUTPUT_DIRECTORY}/libpp-runtime-fake-gpu.a)
add_custom_command(OUTPUT ${PP_FAKE_GPU_RUNTIME}
  COMMAND ${CMAKE_COMMAND} -E copy ${PP_EMULATED_RUNTIME} ${PP_FAKE_GPU_RUNTIME}
  COMMAND ${CMAKE_AR} d ${PP_FAKE_GPU_RUNTIME} Emulated.cpp.o RunMpi.cpp.o Main.cpp.o
  COMMAND ${CMAKE_AR} qcs ${PP_FAKE_GPU_RUNTIME} $<TARGET_OBJECTS:pp-fake-gpu>
  DEPENDS ${PP_EMULATED_RUNTIME} pp-fake-gpu COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(pp-runtime-fake-gpu ALL DEPENDS ${PP_FAKE_GPU_RUNTIME})

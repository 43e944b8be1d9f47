# Writes OUTPUT, a header that names the commit of the tree SOURCE; run by every build, and the file changes with the commit.
set(commit "")
set(modified "")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --show-toplevel WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE} real)
  if(top STREQUAL real) # not a copy of the sources inside of another repository
    execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=10 HEAD WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${GIT_EXECUTABLE} diff-index --quiet HEAD WORKING_DIRECTORY ${SOURCE}
                    RESULT_VARIABLE modified ERROR_QUIET)
  endif()
endif()
if(NOT commit)
  set(commit "unknown")
elseif(NOT modified EQUAL 0)
  string(APPEND commit ", modified")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "// The commit that is built; written by runtime/commit.cmake.\n#define PP_COMMIT \"${commit}\"\n")

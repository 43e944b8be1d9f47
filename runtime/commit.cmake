# Writes OUTPUT, a header with the commit of the tree SOURCE. Every build runs it; the file changes with the commit only.
find_package(Git QUIET)
set(git ${GIT_EXECUTABLE} -C ${SOURCE})
execute_process(COMMAND ${git} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(REAL_PATH ${SOURCE} real)
set(commit unknown)
if(GIT_FOUND AND top STREQUAL real) # not a copy of the sources inside of another repository
  execute_process(COMMAND ${git} describe --always --abbrev=10 "--exclude=*" "--dirty=, modified"
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(text "// The commit that is built; written by runtime/commit.cmake.\n#define PP_COMMIT \"${commit}\"\n")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "${text}")

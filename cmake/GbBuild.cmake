# gb_layer(), gb_test(), warnings and sanitizers: every target goes through here.

add_library(gb_flags INTERFACE)
target_compile_features(gb_flags INTERFACE c_std_11)
target_compile_definitions(gb_flags INTERFACE _GNU_SOURCE)
target_compile_options(gb_flags INTERFACE
  -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2
  -Wundef -Wno-unused-parameter -fno-strict-aliasing)
if(GPUBRIDGE_FAULTS)
  target_compile_definitions(gb_flags INTERFACE GPUBRIDGE_FAULTS=1)
endif()
if(GPUBRIDGE_SANITIZE STREQUAL "address")
  target_compile_options(gb_flags INTERFACE -fsanitize=address,undefined
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(gb_flags INTERFACE -fsanitize=address,undefined)
elseif(GPUBRIDGE_SANITIZE STREQUAL "thread")
  target_compile_options(gb_flags INTERFACE -fsanitize=thread
    -fno-omit-frame-pointer)
  target_link_options(gb_flags INTERFACE -fsanitize=thread)
endif()

set(GB_INCLUDES
  ${PROJECT_SOURCE_DIR}/include
  ${PROJECT_BINARY_DIR}/include
  ${PROJECT_SOURCE_DIR}/src)

# Sources of one folder (its sub-folders included), without *_test.c. The
# folder's tests become one executable, <name>_test, that ctest runs.
function(gb_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.c)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.c$")
  list(FILTER tests INCLUDE REGEX "_test\\.c$")
  if(sources)
    target_sources(gb_objects PRIVATE ${sources})
  endif()
  if(tests)
    set_property(GLOBAL APPEND PROPERTY GB_LAYER_TESTS ${name})
    set_property(GLOBAL PROPERTY GB_LAYER_TESTS_${name} ${tests})
  endif()
endfunction()

# gb_test(name SOURCES ... [TIMEOUT s]): an executable over the harness and the
# library's objects (so that internal functions can be tested).
function(gb_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE gb_harness gpubridge_static gb_flags)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

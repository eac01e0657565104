# One program per tests/fuzz/NAME_fuzz.cc. With CLOSERANKS_FUZZ: fuzz_NAME, a libFuzzer program under the address and
# undefined-behaviour sanitizers (scripts/fuzz.sh runs them). Without: replay_NAME, which runs the corpus as a test.
option(CLOSERANKS_FUZZ "build the fuzz targets; needs clang++-19 and a build folder of its own" OFF)

if(CLOSERANKS_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "CLOSERANKS_FUZZ needs clang: install clang-19 and configure a fresh folder with "
                        "-DCMAKE_CXX_COMPILER=clang++-19 (scripts/fuzz.sh does)")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
endif()

function(closeranks_fuzz)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE "_fuzz" "" name ${name})
    if(CLOSERANKS_FUZZ)
      set(program fuzz_${name})
      add_executable(${program} ${source})
      target_link_options(${program} PRIVATE -fsanitize=fuzzer,address,undefined)
      list(APPEND programs ${program})
    else()
      set(program replay_${name})
      add_executable(${program} ${source} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.cc)
      add_test(NAME fuzz.${name} COMMAND ${program} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
      set_tests_properties(fuzz.${name} PROPERTIES TIMEOUT 120)
    endif()
    target_link_libraries(${program} PRIVATE closeranks_control closeranks_transport closeranks_recorder)
    # The store's decoder alone: the rest of its layer would bring half the project into the fuzz build.
    if(name STREQUAL "store")
      target_sources(${program} PRIVATE ${CMAKE_SOURCE_DIR}/src/agent/store_protocol.cc)
    endif()
    # torch's dumps: the reader of their layer, without its files and processes.
    if(name STREQUAL "pickle")
      target_sources(${program} PRIVATE ${CMAKE_SOURCE_DIR}/src/trace/pickle_reader.cc
                                        ${CMAKE_SOURCE_DIR}/src/trace/torch_dump.cc)
    endif()
  endforeach()
  if(CLOSERANKS_FUZZ)
    add_custom_target(fuzz DEPENDS ${programs})
  endif()
endfunction()

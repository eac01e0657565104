# `cmake --install`: the library as one archive with its public headers and a package file for find_package(closeranks),
# and the closeranks tool. No torch is needed for any of it (-DCLOSERANKS_TORCH=OFF). docs/install.md shows its use.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# All layers that a worker needs, in one archive: users link one thing, and no layer becomes public by being installed.
set(closeranks_library_layers base membership algorithm transport control recorder communicator)
foreach(layer ${closeranks_library_layers})
  list(APPEND closeranks_library_objects $<TARGET_OBJECTS:closeranks_${layer}>)
endforeach()
add_library(closeranks_library STATIC ${closeranks_library_objects})
set_target_properties(closeranks_library PROPERTIES OUTPUT_NAME closeranks EXPORT_NAME closeranks LINKER_LANGUAGE CXX)
target_compile_features(closeranks_library INTERFACE cxx_std_20)
target_include_directories(closeranks_library INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# The headers of asio, spdlog, json and Highway are used inside only; of Highway there is a library, too, which the
# package file looks for, because its path is this machine's.
target_link_libraries(closeranks_library INTERFACE Threads::Threads OpenSSL::Crypto)

set_target_properties(closeranks PROPERTIES EXPORT_NAME tool)
install(TARGETS closeranks_library EXPORT closeranks-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS closeranks EXPORT closeranks-targets RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/closeranks DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(closeranks_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/closeranks)
install(EXPORT closeranks-targets NAMESPACE closeranks:: DESTINATION ${closeranks_package_dir})
configure_package_config_file(cmake/closeranks-config.cmake.in closeranks-config.cmake
                              INSTALL_DESTINATION ${closeranks_package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(closeranks-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/closeranks-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/closeranks-config-version.cmake DESTINATION ${closeranks_package_dir})

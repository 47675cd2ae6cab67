# What `cmake --install` lays down: library, headers, command, and how other
# projects find them (find_package and pkg-config).
include(CMakePackageConfigHelpers)

install(TARGETS gpubridge EXPORT gpubridge-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/gpubridge DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/gpubridge/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gpubridge)
install(EXPORT gpubridge-targets NAMESPACE gpubridge::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gpubridge)
file(WRITE ${PROJECT_BINARY_DIR}/gpubridge-config.cmake
  "include(\${CMAKE_CURRENT_LIST_DIR}/gpubridge-targets.cmake)\n")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gpubridge-config-version.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gpubridge-config.cmake
  ${PROJECT_BINARY_DIR}/gpubridge-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gpubridge)
# The prefix may be given at install time only.
install(CODE "set(CMAKE_INSTALL_LIBDIR \"${CMAKE_INSTALL_LIBDIR}\")
set(CMAKE_INSTALL_INCLUDEDIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
set(PROJECT_DESCRIPTION \"${PROJECT_DESCRIPTION}\")
set(PROJECT_VERSION \"${PROJECT_VERSION}\")
configure_file(\"${PROJECT_SOURCE_DIR}/cmake/gpubridge.pc.in\"
  \"${PROJECT_BINARY_DIR}/gpubridge.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/gpubridge.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

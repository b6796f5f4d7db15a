# CMake's toolchain file of the published wheel: this machine's GCC with the glibc that release/sysroot.sh unpacked.
#   CMAKE_TOOLCHAIN_FILE=release/portable.cmake TVM_BYOC_DNNL_SYSROOT=build/sysroot pip wheel .
set(CMAKE_SYSROOT "$ENV{TVM_BYOC_DNNL_SYSROOT}")
foreach(_kind EXE SHARED)
  set(CMAKE_${_kind}_LINKER_FLAGS_INIT
    "-static-libstdc++ -Wl,--exclude-libs,libstdc++.a -L${CMAKE_SYSROOT}/usr/lib/x86_64-linux-gnu")
endforeach()
set(TVM_BYOC_DNNL_PORTABLE ON CACHE BOOL "" FORCE)

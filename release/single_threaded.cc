// SPDX-License-Identifier: Apache-2.0
// GCC's static libstdc++ asks glibc 2.32 whether the process has one thread. Older ones do not say: no.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

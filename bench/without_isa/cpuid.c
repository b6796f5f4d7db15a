/* SPDX-License-Identifier: Apache-2.0
   A library for LD_AUDIT: the CPUID instruction of the program and of every other library answers
   as if the CPU had neither AVX-512 nor AMX, or, with BYOC_WITHOUT_ISA=amx, no AMX. The file named
   by BYOC_CPUID_SITES has a line for each of them: its path, and the addresses of CPUID in it. When
   the loader has mapped a library, and before any of its code runs, the instructions there are
   replaced by UD2, which is as long and raises SIGILL; the handler of the signal asks the CPU, and
   clears bits of the answer. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { kLineBytes = 1 << 16 };
static const uint8_t kCpuid[2] = {0x0f, 0xa2}, kUd2[2] = {0x0f, 0x0b};

/* Intel's manual, CPUID: the bits of an answer that are cleared, those of AVX-512 with AVX-VNNI. */
struct Mask {
  uint32_t leaf, part;
  uint32_t a, b, c, d;
};
static const struct Mask kAmx[] = {
    {7, 0, 0, 0, 0, 1u << 22 | 1u << 24 | 1u << 25},
    {7, 1, 1u << 21, 0, 0, 1u << 8},
};
static const struct Mask kAvx512[] = {
    {7, 0, 0, 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31,
     1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14, 1u << 2 | 1u << 3 | 1u << 8 | 1u << 23},
    {7, 1, 1u << 4 | 1u << 5 | 1u << 23, 0, 0, UINT32_MAX},
};
static int hides_avx512 = 1; /* beside AMX */

static void Answer(int signal_number, siginfo_t* info, void* context) {
  (void)info;
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  if (memcmp((const void*)registers[REG_RIP], kUd2, sizeof(kUd2)) != 0) {
    signal(signal_number, SIG_DFL); /* returns to the instruction, which then ends the process */
    return;
  }
  uint32_t a, b, c, d;
  const uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX];
  __cpuid_count(leaf, part, a, b, c, d);
  for (size_t i = 0; i < 4; ++i) {
    const struct Mask* mask = i < 2 ? &kAmx[i] : &kAvx512[i - 2];
    if (mask->leaf != leaf || mask->part != part || (i >= 2 && !hides_avx512)) continue;
    a &= ~mask->a;
    b &= ~mask->b;
    c &= ~mask->c;
    d &= ~mask->d;
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += sizeof(kUd2);
}

static void Replace(const char* library, uint8_t* at) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uint8_t* first = (uint8_t*)((uintptr_t)at & ~(page - 1));
  const size_t bytes = (size_t)(at + sizeof(kUd2) - first);
  if (memcmp(at, kCpuid, sizeof(kCpuid)) != 0 ||
      mprotect(first, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    fprintf(stderr, "without_isa: there is no CPUID at %p of %s, or it cannot be replaced\n",
            (void*)at, library);
    abort();
  }
  memcpy(at, kUd2, sizeof(kUd2));
  mprotect(first, bytes, PROT_READ | PROT_EXEC);
}

unsigned int la_version(unsigned int version) {
  const char* hidden = getenv("BYOC_WITHOUT_ISA");
  hides_avx512 = hidden == NULL || strcmp(hidden, "amx") != 0;
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = Answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, NULL);
  return version < LAV_CURRENT ? version : LAV_CURRENT;
}

unsigned int la_objopen(struct link_map* map, Lmid_t space, uintptr_t* cookie) {
  (void)space;
  (void)cookie;
  static char line[kLineBytes];
  char path[PATH_MAX];
  const char* sites = getenv("BYOC_CPUID_SITES");
  const char* name = map->l_name[0] == '\0' ? "/proc/self/exe" : map->l_name; /* the program */
  if (sites == NULL || realpath(name, path) == NULL) return 0;
  FILE* file = fopen(sites, "r");
  if (file == NULL) return 0;
  const size_t length = strlen(path);
  while (fgets(line, sizeof(line), file) != NULL) {
    if (strncmp(line, path, length) != 0 || line[length] != '\t') continue;
    char* next = line + length;
    for (char* end;; next = end) {
      const uintptr_t site = strtoull(next, &end, 16);
      if (end == next) break;
      Replace(path, (uint8_t*)(map->l_addr + site));
    }
    break;
  }
  fclose(file);
  return 0;
}

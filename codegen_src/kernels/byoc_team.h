/* SPDX-License-Identifier: Apache-2.0
   How the work of a kernel is shared among threads: the only place where a kernel starts them.
   With OpenMP they are its team, which the primitives of oneDNN use as well; without it there is
   one thread. */
#ifndef BYOC_TEAM_H_
#define BYOC_TEAM_H_

#include "byoc_plan.h"

#ifdef _OPENMP
#include <omp.h>
#define BYOC_PRAGMA(text) _Pragma(#text)
#define BYOC_OMP(directive) BYOC_PRAGMA(omp directive)
#else
#define BYOC_OMP(directive)
#endif

/* Part `part` of `parts` of a kernel's work. Returns bits that say what it met, 0 for nothing. */
typedef int (*byoc_work)(const int64_t* params, void* const* data, void* scratch, int64_t part,
                         int64_t parts);

/* Runs all parts at the same time, each on a thread of its own: `threads` of them, or fewer where
   OpenMP gives fewer. Returns the bits of all. */
BYOC_FUNCTION int byoc_on_team(byoc_work work, const int64_t* params, void* const* data,
                               void* scratch, int64_t threads) {
#ifdef _OPENMP
  int met = 0;
  if (threads > 1) {
    BYOC_OMP(parallel num_threads((int)threads) reduction(| : met))
    met |= work(params, data, scratch, omp_get_thread_num(), omp_get_num_threads());
    return met;
  }
#endif
  (void)threads;
  return work(params, data, scratch, 0, 1);
}

/* Waits, in one of the parts, until all have come here. */
BYOC_FUNCTION void byoc_wait_for_team(int64_t parts) {
  if (parts > 1) {
    BYOC_OMP(barrier)
  }
}

/* The threads that this thread may use. */
BYOC_FUNCTION int byoc_threads(void) {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

/* Sets how many threads this thread may use from now on; returns the number before. */
BYOC_FUNCTION int byoc_set_threads(int threads) {
#ifdef _OPENMP
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  return before;
#else
  return threads;
#endif
}

#endif /* BYOC_TEAM_H_ */

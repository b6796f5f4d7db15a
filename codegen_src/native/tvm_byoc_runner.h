/* SPDX-License-Identifier: Apache-2.0
   A vendor's runner of its regions in C or C++: a shared library that exports tvm_byoc_blob_runner.
   Valid C99 and C++.

   Every function may be called by any number of threads at the same time, with the same region as
   well; only `free` is the last call with its region. None may throw, or keep a pointer that it was
   given. `message` has room for `room` bytes: a function that refuses or fails writes its reason
   there, one sentence that ends with a 0, as snprintf does. */
#ifndef TVM_BYOC_RUNNER_H_
#define TVM_BYOC_RUNNER_H_

#include "tvm_byoc_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or a struct changes so that older runners must be compiled again. */
#define TVM_BYOC_RUNNER_ABI 1

/* The `dtype` of an argument that is a shape: its `data` is NULL, and `shape` has its numbers. */
#define TVM_BYOC_SHAPE (-1)

typedef enum tvm_byoc_fit {
  TVM_BYOC_FITS = 0,   /* the bytes are as good as if they were compiled here */
  TVM_BYOC_WORKS = 1,  /* they run; `message` says what would be better */
  TVM_BYOC_REFUSED = 2 /* the model must be compiled again; `message` says why */
} tvm_byoc_fit;

typedef struct tvm_byoc_runner {
  int32_t abi; /* TVM_BYOC_RUNNER_ABI */

  /* A tvm_byoc_fit: whether this machine can run bytes that were made with these words. */
  int32_t (*check)(const char* compatibility, char* message, size_t room);

  /* Opens a region's bytes; 0, or anything else for an error. `options` is a JSON object with the
     options of loading; those that it does not have are as the runner chooses. */
  int32_t (*load)(const void* data, size_t bytes, const char* options, void** region, char* message,
                  size_t room);

  /* Computes a region; 0, or anything else for an error. `tensors` are its arguments and then its
     results, all of them on the host and dense; it writes every element of every result. */
  int32_t (*run)(void* region, const tvm_byoc_tensor* tensors, size_t count, char* message,
                 size_t room);

  void (*free)(void* region);
} tvm_byoc_runner;

/* What the library exports; the struct lives as long as the library. */
const tvm_byoc_runner* tvm_byoc_blob_runner(void);

#ifdef __cplusplus
}
#endif

#endif /* TVM_BYOC_RUNNER_H_ */

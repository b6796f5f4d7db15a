/* SPDX-License-Identifier: Apache-2.0
   Runs compiled models without TVM: the C interface of libtvm_byoc_runtime.so, and of
   libtvm_byoc_dnnl.so, which has it as well. Valid C99 and C++.

       tvm_byoc_model* model;
       if (tvm_byoc_load("model.so", 0, &model) != TVM_BYOC_OK) return fail(tvm_byoc_last_error());
       int64_t shape[] = {1, 3, 224, 224}, result_shape[] = {1, 1000};
       tvm_byoc_tensor x = {pixels, TVM_BYOC_FLOAT32, 4, shape};
       tvm_byoc_tensor y = {scores, TVM_BYOC_FLOAT32, 2, result_shape};
       tvm_byoc_run(model, &x, 1, &y, 1);
       tvm_byoc_free(model);

   Every function may be called by any number of threads at the same time, with the same model as
   well; only tvm_byoc_free must be the last call with its model. No function throws, and none
   keeps a pointer that it was given. Whatever a model's file or a tensor's description says is
   checked; that the memory is there is not. */
#ifndef TVM_BYOC_RUNTIME_H_
#define TVM_BYOC_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or a struct changes so that older programs must be compiled again. */
#define TVM_BYOC_ABI 1

typedef enum tvm_byoc_status {
  TVM_BYOC_OK = 0,
  TVM_BYOC_INPUT = 1,       /* an argument of the call does not fit */
  TVM_BYOC_INDEX = 2,       /* an index in the data of the call is out of range */
  TVM_BYOC_ARTIFACT = 3,    /* the file is missing, damaged, or of another version */
  TVM_BYOC_UNSUPPORTED = 4, /* the model needs TVM, or instructions that this CPU does not have */
  TVM_BYOC_LIBRARY = 5,     /* a library that computes is missing */
  TVM_BYOC_MEMORY = 6,      /* there is no memory left */
  TVM_BYOC_INTERNAL = 7     /* anything else */
} tvm_byoc_status;

typedef enum tvm_byoc_dtype {
  TVM_BYOC_FLOAT32 = 0,
  TVM_BYOC_FLOAT16 = 1,
  TVM_BYOC_BFLOAT16 = 2,
  TVM_BYOC_INT32 = 3,
  TVM_BYOC_INT8 = 4,
  TVM_BYOC_UINT8 = 5,
  TVM_BYOC_BOOL = 6, /* bytes, 0 or 1 */
  TVM_BYOC_FLOAT64 = 7,
  TVM_BYOC_INT64 = 8
} tvm_byoc_dtype;

/* A dense tensor in row-major order. Results are fastest where `data` is a multiple of 64. */
typedef struct tvm_byoc_tensor {
  void* data;
  int32_t dtype; /* a tvm_byoc_dtype */
  int32_t rank;
  int64_t* shape; /* `rank` numbers; NULL for rank 0 */
} tvm_byoc_tensor;

typedef struct tvm_byoc_model tvm_byoc_model;

/* TVM_BYOC_ABI of the library. */
int32_t tvm_byoc_abi(void);

/* What went wrong in the last call of this thread that did not return TVM_BYOC_OK: one sentence,
   valid until the next such call. */
const char* tvm_byoc_last_error(void);

/* Loads a file that export_library wrote. The weights are packed for this CPU; what is static is
   planned. `threads`: for each call; 0 for as many as OpenMP uses. */
int32_t tvm_byoc_load(const char* path, int32_t threads, tvm_byoc_model** model);

/* Frees a model; NULL is allowed. */
void tvm_byoc_free(tvm_byoc_model* model);

/* What the model says about itself as JSON, valid as long as the model: `inputs` and `outputs` in
   order, each with `name`, `dtype` and `shape` (numbers, and names of open dims). */
const char* tvm_byoc_describe(const tvm_byoc_model* model);

/* Writes the shapes of the outputs for inputs of these shapes (their `data` is not read): `rank`
   of each output says how many numbers its `shape` has room for, and then how many there are. */
int32_t tvm_byoc_shapes(tvm_byoc_model* model, const tvm_byoc_tensor* inputs, size_t input_count,
                        tvm_byoc_tensor* outputs, size_t output_count);

/* Makes the plans for inputs of these shapes, so that the first call is as fast as later ones. */
int32_t tvm_byoc_prepare(tvm_byoc_model* model, const tvm_byoc_tensor* inputs, size_t input_count);

/* Computes the outputs into memory of the caller, which must have the shapes of tvm_byoc_shapes. */
int32_t tvm_byoc_run(tvm_byoc_model* model, const tvm_byoc_tensor* inputs, size_t input_count,
                     const tvm_byoc_tensor* outputs, size_t output_count);

/* How many calls of regions were slower than on fewer threads, because a thread had to share its
   core, and how many ran on fewer threads than they may use, since the model was loaded. */
int32_t tvm_byoc_company(tvm_byoc_model* model, int64_t* late, int64_t* narrowed);

/* Refuses a file that is damaged, or was not made from `key` ("" for any); errors name it `path`.
 */
int32_t tvm_byoc_check(const char* file, const char* path, const char* key);

/* What an engine says of itself and of this CPU as JSON, valid until the next such call of this
   thread. */
int32_t tvm_byoc_engine(const char* name, const char** description);

/* Gives back what is kept for models that may be loaded later. */
void tvm_byoc_trim(void);

#ifdef __cplusplus
}
#endif

#endif /* TVM_BYOC_RUNTIME_H_ */

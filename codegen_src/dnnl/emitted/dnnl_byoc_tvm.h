/* SPDX-License-Identifier: Apache-2.0 */
/* A region as a function of TVM: its arguments checked, its constants taken from TVM's
   const_loader. Needs the C headers of tvm-ffi and DLPack besides oneDNN's; C99, and C++ as well.
 */
#ifndef DNNL_BYOC_TVM_H_
#define DNNL_BYOC_TVM_H_

#include <dlfcn.h>
#include <tvm/ffi/c_api.h>

#include "byoc_checksum.h"
#include "dnnl_byoc_runtime.h"

#ifdef __cplusplus
#define DNNL_BYOC_EXTERN extern "C" __attribute__((visibility("hidden")))
#else
#define DNNL_BYOC_EXTERN extern __attribute__((visibility("hidden")))
#endif

/* A tensor as the region expects it: dense, row-major, on the host. */
typedef struct {
  const char* name;
  DLDataType dtype;
  int ndim; /* -1: an argument that is no tensor */
  const int64_t* shape;
} dnnl_byoc_tensor;

typedef struct {
  const char* symbol;
  int (*create)(dnnl_byoc_region* r, const void* const* constants);
  int num_inputs, num_outputs, num_constants;
  const dnnl_byoc_tensor* inputs;
  const dnnl_byoc_tensor* outputs;
  const dnnl_byoc_tensor* constants;
  const uint64_t* checksums; /* of the constants; 0 where it is not known */
} dnnl_byoc_signature;

/* One per region and process: a library that is loaded twice is one to the linker, so it may be
   initialised twice, with the same constants. */
typedef struct {
  const dnnl_byoc_signature* signature;
  void (*release)(void);
  pthread_mutex_t lock; /* of initialisation and release */
  int ready;
  dnnl_byoc_region* region;
  const void** data;        /* of the constants */
  TVMFFIObjectHandle* kept; /* the tensors that calls read in place */
} dnnl_byoc_function;

/* TVM's thread pool binds the thread that starts it to half of the cores, and oneDNN's team
   inherits that mask. Turned off before the pool exists, unless the user has said otherwise. */
__attribute__((constructor)) static void dnnl_byoc_keep_all_cores(void) {
  setenv("TVM_BIND_THREADS", "0", 0);
}

BYOC_FUNCTION int dnnl_byoc_raise(const char* kind, const char* symbol, const char* message) {
  char text[BYOC_ERROR_BYTES + 128];
  snprintf(text, sizeof(text), "%s: %s", symbol, message);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

BYOC_FUNCTION int dnnl_byoc_has_dtype(DLDataType got, DLDataType expected) {
  if (got.lanes != 1) return 0;
  if (got.code == expected.code && got.bits == expected.bits) return 1;
  return expected.code == kDLBool && got.code == kDLUInt && got.bits == 1; /* TVM's older bool */
}

BYOC_FUNCTION int dnnl_byoc_is_dense(const DLTensor* t) {
  int64_t stride = 1;
  int axis, dense = 1;
  if (t->strides == NULL) return 1;
  for (axis = t->ndim - 1; axis >= 0; --axis) {
    if (t->shape[axis] == 0) return 1;
    if (t->shape[axis] != 1 && t->strides[axis] != stride) dense = 0;
    stride *= t->shape[axis];
  }
  return dense;
}

/* "[1, 3, 224, 224]", cut where the room ends. */
BYOC_FUNCTION const char* dnnl_byoc_list(char* text, size_t room, int count, const int64_t* dims) {
  size_t used = (size_t)snprintf(text, room, "[");
  int i;
  for (i = 0; i < count && used < room; ++i) {
    used += (size_t)snprintf(text + used, room - used, "%s%lld", i == 0 ? "" : ", ",
                             (long long)dims[i]);
  }
  if (used < room) snprintf(text + used, room - used, "]");
  return text;
}

/* The data of a tensor that must be as expected; the error is raised otherwise. */
BYOC_FUNCTION int dnnl_byoc_take(const char* symbol, const char* role, int index,
                                 const dnnl_byoc_tensor* expected, const TVMFFIAny* arg,
                                 void** data) {
  char what[128], got[128], wanted[128], message[BYOC_ERROR_BYTES];
  const DLTensor* t = NULL;
  int axis, fits;
  if (arg->type_index == kTVMFFIDLTensorPtr) t = (const DLTensor*)arg->v_ptr;
  if (arg->type_index == kTVMFFITensor) {
    t = (const DLTensor*)(const void*)((const char*)arg->v_obj + sizeof(TVMFFIObject));
  }
  *data = NULL;
  if (expected->ndim < 0) return 0;
  snprintf(what, sizeof(what), "%s %d \"%.80s\"", role, index, expected->name);
  if (t == NULL) {
    snprintf(message, sizeof(message), "%s is not a tensor", what);
    return dnnl_byoc_raise("TypeError", symbol, message);
  }
  if (!dnnl_byoc_has_dtype(t->dtype, expected->dtype)) {
    snprintf(message, sizeof(message),
             "%s has DLPack dtype code %d with %d bits, expected code %d with %d bits", what,
             (int)t->dtype.code, (int)t->dtype.bits, (int)expected->dtype.code,
             (int)expected->dtype.bits);
    return dnnl_byoc_raise("ValueError", symbol, message);
  }
  if (t->device.device_type != kDLCPU) {
    snprintf(message, sizeof(message), "%s is on device type %d, expected the CPU", what,
             (int)t->device.device_type);
    return dnnl_byoc_raise("ValueError", symbol, message);
  }
  fits = t->ndim == expected->ndim;
  for (axis = 0; fits && axis < t->ndim; ++axis) fits = t->shape[axis] == expected->shape[axis];
  if (!fits) {
    snprintf(message, sizeof(message), "%s has shape %s, expected %s", what,
             dnnl_byoc_list(got, sizeof(got), t->ndim, t->shape),
             dnnl_byoc_list(wanted, sizeof(wanted), expected->ndim, expected->shape));
    return dnnl_byoc_raise("ValueError", symbol, message);
  }
  if (!dnnl_byoc_is_dense(t)) {
    snprintf(message, sizeof(message),
             "%s has strides %s for shape %s, expected a dense row-major tensor", what,
             dnnl_byoc_list(got, sizeof(got), t->ndim, t->strides),
             dnnl_byoc_list(wanted, sizeof(wanted), t->ndim, t->shape));
    return dnnl_byoc_raise("ValueError", symbol, message);
  }
  *data = (char*)t->data + t->byte_offset;
  return 0;
}

/* Item `index` of an ffi::Array, whose layout is C++; the caller owns it. */
BYOC_FUNCTION int dnnl_byoc_item(const TVMFFIAny* array, int index, TVMFFIAny* item) {
  const TVMFFIByteArray name = {"ffi.ArrayGetItem", 16};
  TVMFFIObjectHandle get = NULL;
  TVMFFIAny args[2];
  int status;
  memset(item, 0, sizeof(*item)); /* kTVMFFINone */
  if (TVMFFIFunctionGetGlobal(&name, &get) != 0) return -1;
  if (get == NULL) {
    return dnnl_byoc_raise("RuntimeError", "ffi.ArrayGetItem", "this tvm-ffi does not have it");
  }
  args[0] = *array;
  memset(&args[1], 0, sizeof(args[1]));
  args[1].type_index = kTVMFFIInt;
  args[1].v_int64 = index;
  status = TVMFFIFunctionCall(get, args, 2, item);
  TVMFFIObjectDecRef(get);
  return status;
}

/* Lets go of the constants that are packed by now, or (in the end) of all. */
BYOC_FUNCTION void dnnl_byoc_let_go(dnnl_byoc_function* f, int all) {
  int i;
  for (i = 0; f->kept != NULL && i < f->signature->num_constants; ++i) {
    if (f->kept[i] == NULL || (!all && byoc_reads_constant(&f->region->plan, (size_t)i))) continue;
    TVMFFIObjectDecRef(f->kept[i]);
    f->kept[i] = NULL;
  }
  if (!all) return;
  free(f->kept);
  free(f->data);
  free(f->region);
  f->kept = NULL;
  f->data = NULL;
  f->region = NULL;
}

/* Whether a constant is the one that was exported; the error is raised otherwise. */
BYOC_FUNCTION int dnnl_byoc_verify(const dnnl_byoc_signature* s, int index, const void* data) {
  const dnnl_byoc_tensor* t = &s->constants[index];
  size_t bytes = t->dtype.bits / 8;
  char message[BYOC_ERROR_BYTES];
  int axis;
  for (axis = 0; axis < t->ndim; ++axis) bytes *= (size_t)t->shape[axis];
  if (s->checksums[index] == 0 || byoc_checksum(data, bytes) == s->checksums[index]) return 0;
  snprintf(message, sizeof(message),
           "the weights are damaged: constant %d \"%.80s\" has another checksum than when it was "
           "exported; export the model or copy it again",
           index, t->name);
  return dnnl_byoc_raise("ByocArtifactError", s->symbol, message);
}

BYOC_FUNCTION int dnnl_byoc_load_constants(dnnl_byoc_function* f, const TVMFFIAny* array) {
  const dnnl_byoc_signature* s = f->signature;
  int i;
  f->region = (dnnl_byoc_region*)calloc(1, sizeof(*f->region));
  f->data = (const void**)calloc((size_t)s->num_constants + 1, sizeof(*f->data));
  f->kept = (TVMFFIObjectHandle*)calloc((size_t)s->num_constants + 1, sizeof(*f->kept));
  if (f->region == NULL || f->data == NULL || f->kept == NULL) {
    return dnnl_byoc_raise("MemoryError", s->symbol, "out of memory");
  }
  for (i = 0; i < s->num_constants; ++i) {
    TVMFFIAny item;
    void* data = NULL;
    if (dnnl_byoc_item(array, i, &item) != 0) return -1;
    if (item.type_index >= kTVMFFIStaticObjectBegin) f->kept[i] = (TVMFFIObjectHandle)item.v_obj;
    if (dnnl_byoc_take(s->symbol, "constant", i, &s->constants[i], &item, &data) != 0) return -1;
    if (dnnl_byoc_verify(s, i, data) != 0) return -1;
    f->data[i] = data;
  }
  return 0;
}

/* `__init_<symbol>`, which the const_loader calls with an array of the constants. */
BYOC_FUNCTION int dnnl_byoc_tvm_init(dnnl_byoc_function* f, const TVMFFIAny* args, int count,
                                     TVMFFIAny* result) {
  const dnnl_byoc_signature* s = f->signature;
  int status = 0;
  memset(result, 0, sizeof(*result));
  result->type_index = kTVMFFIInt;
  if (count != 1 || args[0].type_index != kTVMFFIArray) {
    return dnnl_byoc_raise("TypeError", s->symbol, "expected one array with the constants");
  }
  pthread_mutex_lock(&f->lock);
  if (!f->ready) {
    status = dnnl_byoc_load_constants(f, &args[0]);
    if (status == 0) {
      if (s->create(f->region, f->data) != 0) {
        status = dnnl_byoc_raise("RuntimeError", s->symbol, f->region->plan.error);
        dnnl_byoc_destroy(f->region);
      } else {
        /* Its threads wait inside of its OpenMP: both stay when this library goes. */
        dlopen("libdnnl.so.3", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        __atomic_store_n(&f->ready, 1, __ATOMIC_RELEASE);
        /* Registered after the first use of oneDNN, so that it runs before oneDNN's own end;
           dlclose runs it too. */
        atexit(f->release);
      }
    }
    dnnl_byoc_let_go(f, status != 0);
  }
  pthread_mutex_unlock(&f->lock);
  return status;
}

/* `<symbol>`: inputs, then outputs. */
BYOC_FUNCTION int dnnl_byoc_tvm_call(dnnl_byoc_function* f, const TVMFFIAny* args, int count,
                                     void** data, TVMFFIAny* result) {
  const dnnl_byoc_signature* s = f->signature;
  char error[BYOC_ERROR_BYTES] = "";
  int i, status;
  memset(result, 0, sizeof(*result)); /* kTVMFFINone */
  if (count != s->num_inputs + s->num_outputs) {
    snprintf(error, sizeof(error), "got %d arguments, expected %d inputs and %d outputs", count,
             s->num_inputs, s->num_outputs);
    return dnnl_byoc_raise("TypeError", s->symbol, error);
  }
  if (!__atomic_load_n(&f->ready, __ATOMIC_ACQUIRE)) {
    return dnnl_byoc_raise("RuntimeError", s->symbol,
                           "called before its constants were set (TVM's const_loader does)");
  }
  for (i = 0; i < count; ++i) {
    const int out = i >= s->num_inputs;
    const int index = out ? i - s->num_inputs : i;
    if (dnnl_byoc_take(s->symbol, out ? "output" : "argument", index,
                       out ? &s->outputs[index] : &s->inputs[index], &args[i], &data[i]) != 0) {
      return -1;
    }
  }
  status = dnnl_byoc_run(f->region, (const void* const*)data, data + s->num_inputs, error);
  if (status == BYOC_OK) return 0;
  return dnnl_byoc_raise(status == BYOC_BAD_INDEX ? "IndexError" : "RuntimeError", s->symbol,
                         error);
}

/* When the library goes. Threads that are still inside a call keep what they use. */
BYOC_FUNCTION void dnnl_byoc_tvm_release(dnnl_byoc_function* f) {
  int busy;
  pthread_mutex_lock(&f->lock);
  if (__atomic_exchange_n(&f->ready, 0, __ATOMIC_ACQ_REL)) {
    pthread_mutex_lock(&f->region->plan.lock);
    busy = f->region->plan.running > 0;
    pthread_mutex_unlock(&f->region->plan.lock);
    if (!busy) {
      dnnl_byoc_destroy(f->region);
      dnnl_byoc_let_go(f, 1);
    }
  }
  pthread_mutex_unlock(&f->lock);
}

#endif /* DNNL_BYOC_TVM_H_ */

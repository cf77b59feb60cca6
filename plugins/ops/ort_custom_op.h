/* The part of ONNX Runtime's C API for custom operators; the onnxruntime wheel has no headers.
 *
 * Uses only slots of OrtApi version 1, which never move, and OrtCustomOp of version 8: ONNX Runtime
 * reads only the members of the structure's version, but expects room for all members it knows.
 * Source: include/onnxruntime/core/session/onnxruntime_c_api.h.
 */
#ifndef ORT_CUSTOM_OP_H
#define ORT_CUSTOM_OP_H

#include <stddef.h>
#include <stdint.h>

enum { ORT_TENSOR_FLOAT = 1, ORT_API_VERSION = 1, ORT_CUSTOM_OP_VERSION = 8 };

typedef void OrtStatus; /* NULL: success */

typedef struct OrtApi {
    const void *slots[102];
} OrtApi;

typedef struct OrtApiBase {
    const OrtApi *(*get_api)(uint32_t version);
    const char *(*version)(void);
} OrtApiBase;

/* name, slot, arguments; each returns an OrtStatus */
#define ORT_CALL(api, slot, ...) ((OrtStatus * (*)(__VA_ARGS__))(api)->slots[slot])
#define ORT_CREATE_DOMAIN(api) ORT_CALL(api, 26, const char *, void **)
#define ORT_DOMAIN_ADD(api) ORT_CALL(api, 27, void *, const struct OrtCustomOp *)
#define ORT_ADD_DOMAIN(api) ORT_CALL(api, 28, void *, void *)
#define ORT_TENSOR_DATA(api) ORT_CALL(api, 51, const void *, void **)
#define ORT_RANK(api) ORT_CALL(api, 61, const void *, size_t *)
#define ORT_SIZES(api) ORT_CALL(api, 62, const void *, int64_t *, size_t)
#define ORT_SHAPE_OF(api) ORT_CALL(api, 65, const void *, void **)
#define ORT_ATTRIBUTE_FLOAT(api) ORT_CALL(api, 85, const void *, const char *, float *)
#define ORT_ATTRIBUTE_INT(api) ORT_CALL(api, 86, const void *, const char *, int64_t *)
#define ORT_INPUT(api) ORT_CALL(api, 90, const void *, size_t, const void **)
#define ORT_OUTPUT(api) ORT_CALL(api, 91, void *, size_t, const int64_t *, size_t, void **)
#define ORT_RELEASE_STATUS(api) ((void (*)(OrtStatus *))(api)->slots[93])
#define ORT_RELEASE_SHAPE(api) ((void (*)(void *))(api)->slots[99])

typedef struct OrtCustomOp {
    uint32_t version;
    void *(*create_kernel)(const struct OrtCustomOp *, const OrtApi *, const void *info);
    const char *(*name)(const struct OrtCustomOp *);
    const char *(*execution_provider)(const struct OrtCustomOp *); /* NULL: the CPU */
    int (*input_type)(const struct OrtCustomOp *, size_t index);
    size_t (*input_count)(const struct OrtCustomOp *);
    int (*output_type)(const struct OrtCustomOp *, size_t index);
    size_t (*output_count)(const struct OrtCustomOp *);
    void (*compute)(void *kernel, void *context);
    void (*destroy_kernel)(void *kernel);
    /* 0: required, 1: optional */
    int (*input_characteristic)(const struct OrtCustomOp *, size_t index);
    int (*output_characteristic)(const struct OrtCustomOp *, size_t index);
    const void *later[14]; /* members of later versions */
} OrtCustomOp;

#endif

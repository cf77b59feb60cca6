/* custom_domain::customOp2 for ONNX Runtime: y = z / (1 + exp(-z)), z = max(x, 0), on floats. */
#include "ort_custom_op.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_RANK = 16 };

typedef struct Kernel {
    const OrtApi *api;
} Kernel;

static void *create(const OrtCustomOp *op, const OrtApi *api, const void *info) {
    Kernel *kernel = malloc(sizeof *kernel);
    (void)op, (void)info;
    if (kernel) kernel->api = api;
    return kernel;
}

/* Returns the number of elements, 0 if the rank exceeds MAX_RANK. */
static int64_t shape_of(const OrtApi *api, const void *tensor, int64_t *sizes, size_t *rank) {
    void *shape = NULL;
    int64_t count = 1;
    if (ORT_SHAPE_OF(api)(tensor, &shape)) return 0;
    if (ORT_RANK(api)(shape, rank) || *rank > MAX_RANK) count = 0;
    if (count && ORT_SIZES(api)(shape, sizes, *rank)) count = 0;
    for (size_t axis = 0; count && axis < *rank; ++axis) count *= sizes[axis];
    ORT_RELEASE_SHAPE(api)(shape);
    return count;
}

static void compute(void *state, void *context) {
    const OrtApi *api = ((const Kernel *)state)->api;
    const void *input = NULL;
    void *output = NULL, *from = NULL, *to = NULL;
    int64_t sizes[MAX_RANK];
    size_t rank = 0;
    if (ORT_INPUT(api)(context, 0, &input)) return;
    const int64_t count = shape_of(api, input, sizes, &rank);
    if (ORT_OUTPUT(api)(context, 0, sizes, rank, &output)) return;
    if (!count || ORT_TENSOR_DATA(api)(input, &from) || ORT_TENSOR_DATA(api)(output, &to)) return;
    const float *x = from;
    float *y = to;
    for (int64_t i = 0; i < count; ++i) {
        const float z = x[i] > 0 ? x[i] : 0;
        y[i] = z / (1 + expf(-z));
    }
}

static const char *name(const OrtCustomOp *op) { return (void)op, "customOp2"; }
static const char *provider(const OrtCustomOp *op) { return (void)op, NULL; }
static int float_type(const OrtCustomOp *op, size_t index) {
    return (void)op, (void)index, ORT_TENSOR_FLOAT;
}
static size_t one(const OrtCustomOp *op) { return (void)op, 1; }
static int required(const OrtCustomOp *op, size_t index) { return (void)op, (void)index, 0; }

static const OrtCustomOp OPERATOR = {
    ORT_CUSTOM_OP_VERSION, create, name, provider, float_type, one, float_type, one, compute, free,
    required, required, {NULL},
};

OrtStatus *RegisterCustomOps(void *options, const OrtApiBase *base) {
    const OrtApi *api = base->get_api(ORT_API_VERSION);
    void *domain = NULL;
    OrtStatus *status = ORT_CREATE_DOMAIN(api)("custom_domain", &domain);
    if (!status) status = ORT_DOMAIN_ADD(api)(domain, &OPERATOR);
    if (!status) status = ORT_ADD_DOMAIN(api)(options, domain);
    return status;
}

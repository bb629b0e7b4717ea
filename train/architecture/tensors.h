/* The places of a parameter's values in files of weights. Under addend's own name there is one tensor, as it is.
 * Under the names of an architecture it may be transposed, and each expert may have its own matrix. */
#ifndef ARCHITECTURE_TENSORS_H
#define ARCHITECTURE_TENSORS_H
#include "addend/data.h"
#include "addend/parameter.h"
#include "architecture/architecture.h"
#include "array/part.h"

enum { AD_TENSOR_NAME_SIZE = 2 * AD_PARAM_NAME_SIZE };

typedef struct ad_tensor_source {
  char pattern[AD_TENSOR_NAME_SIZE]; /* name of the tensor; '@' represents the expert's number */
  /* is_transposed: tensors are transposed; is_joined: each expert has its own tensor */
  int is_transposed, is_joined;
  int64_t count;  /* how many tensors: as many as experts if is_joined, else 1 */
  ad_shape shape; /* the shape of each tensor */
} ad_tensor_source;

/* Finds the parameter with this name and shape; architecture NULL: under addend's own names. Returns 0 if the
 * architecture has no such parameter. */
int ad_tensor_source_find(const ad_architecture *architecture, const char *param, const ad_shape *shape,
                          ad_tensor_source *out);
/* The name of tensor number i; returns buffer. */
const char *ad_tensor_source_name(const ad_tensor_source *source, int64_t i, char buffer[AD_TENSOR_NAME_SIZE]);

/* Returns 1 if no parameter uses this tensor and it changes nothing: rotary frequencies in older files, and the head
 * of a tied model if it repeats the embedding bit for bit. */
int ad_tensor_is_idle(const ad_architecture *architecture, const ad_weights *weights, const ad_safetensor *tensor);

/* Copies the part `mine` of the parameter, converted to `dtype`. The tensors must exist in their right shapes
 * (ad_params_check_weights). Reads only those pages of the files that have the part. */
ad_status ad_tensor_source_read(const ad_tensor_source *source, const ad_weights *weights, const ad_part *mine,
                                ad_dtype dtype, void *out) AD_CHECKED;
/* Writes tensor number i of the full parameter `param` in the dtype `to`. */
void ad_tensor_source_write(const ad_tensor_source *source, int64_t i, const void *param, ad_dtype dtype, ad_dtype to,
                            void *out);

#endif

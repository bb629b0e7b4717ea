/* Which tensors in files of weights have the values of a parameter. In files with addend's own names it is one tensor,
 * not transposed. In files with an architecture's names the tensor may be transposed, and each expert may have a tensor
 * of its own. */
#ifndef ARCHITECTURE_TENSORS_H
#define ARCHITECTURE_TENSORS_H
#include "addend/data.h"
#include "addend/parameter.h"
#include "architecture/architecture.h"
#include "array/part.h"

enum { AD_TENSOR_NAME_SIZE = 2 * AD_PARAM_NAME_SIZE };

typedef struct ad_tensor_source {
  char pattern[AD_TENSOR_NAME_SIZE]; /* name of the tensor, with '@' in place of an expert's number */
  /* is_transposed: tensors are transposed; is_joined: each expert has its own tensor */
  int is_transposed, is_joined;
  int64_t count;  /* number of tensors: the number of experts if is_joined, else 1 */
  ad_shape shape; /* the shape of each tensor */
} ad_tensor_source;

/* Finds the tensors of the parameter with this name and shape. If `architecture` is NULL, the files have addend's own
 * names. Returns 0 if the architecture has no such parameter. */
int ad_tensor_source_find(const ad_architecture *architecture, const char *param, const ad_shape *shape,
                          ad_tensor_source *out);
/* Writes the name of the i-th tensor to buffer, and returns buffer. */
const char *ad_tensor_source_name(const ad_tensor_source *source, int64_t i, char buffer[AD_TENSOR_NAME_SIZE]);

/* Returns 1 if a tensor may be ignored: rotary frequencies in older files, and the head of a tied model if it repeats
 * the embedding bit for bit. */
int ad_tensor_is_idle(const ad_architecture *architecture, const ad_weights *weights, const ad_safetensor *tensor);

/* Copies the part `mine` of the parameter to `out`, converted to `dtype`. The tensors must exist in the right shapes
 * (see ad_params_check_weights). Reads only those pages of the files that contain the part. */
ad_status ad_tensor_source_read(const ad_tensor_source *source, const ad_weights *weights, const ad_part *mine,
                                ad_dtype dtype, void *out) AD_CHECKED;
/* Computes the i-th tensor from the full parameter `param` (of dtype `dtype`), and writes it to `out` in the dtype
 * `to`. */
void ad_tensor_source_write(const ad_tensor_source *source, int64_t i, const void *param, ad_dtype dtype, ad_dtype to,
                            void *out);

#endif

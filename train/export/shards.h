/* Writes tensors as Transformers reads them: model.safetensors, or several shards and an index. */
#ifndef EXPORT_SHARDS_H
#define EXPORT_SHARDS_H
#include "architecture/tensors.h"

/* A tensor to write: tensor `piece` (see ad_tensor_source) of the parameter with index `param`. */
typedef struct ad_export_tensor {
  char name[AD_TENSOR_NAME_SIZE];
  size_t param;
  int64_t piece;
  ad_dtype dtype;
  ad_shape shape;
} ad_export_tensor;

/* Writes the elements of the tensor to `memory`. */
typedef ad_status ad_export_fill(void *context, const ad_export_tensor *tensor, void *memory);

/* Writes all tensors into the folder, in their order, with at most `shard_bytes` in each file. Sets *files to the
 * number of files, and *bytes to the bytes of all tensors. */
ad_status ad_export_shards(const char *folder, const ad_export_tensor *tensors, size_t count, int64_t shard_bytes,
                           ad_export_fill *fill, void *context, int64_t *files, int64_t *bytes) AD_CHECKED;

#endif

/* Files in the safetensors format: named tensors behind a JSON header, as the Python package of that name reads and
 * writes them. A file from anywhere may be opened: what it says of itself is checked before it is believed.
 * Format: https://huggingface.co/docs/safetensors (header length as u64 little-endian, header, tensors without gaps).
 */
#ifndef ADDEND_SAFETENSORS_H
#define ADDEND_SAFETENSORS_H
#include "addend/layout.h"
#include "addend/dtype.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* One tensor: row-major, `data` as many bytes as dtype and shape say. In a file that was opened, `data` lies in the
 * file's mapping and need not be aligned for its dtype: copy it out. */
typedef struct ad_safetensor {
  const char *name;
  ad_dtype dtype; /* F64 F32 BF16 F16 I32 I64; others are refused */
  ad_shape shape;
  const void *data;
  size_t bytes;
} ad_safetensor;

typedef struct ad_safetensors ad_safetensors;
/* Maps the file; pages are read when they are touched. AD_IO if it cannot be read; AD_INVALID, naming path, tensor and
 * numbers, if it is no safetensors file: header longer than the file or 100 MB, no JSON, a name twice, dtypes or shapes
 * that are unknown, tensors that overlap, leave a gap, lie outside the file or differ from their shape in size. */
AD_API AD_CHECKED ad_status ad_safetensors_open(const char *path, ad_safetensors **out);
AD_API void ad_safetensors_close(ad_safetensors *file); /* NULL allowed */
AD_API size_t ad_safetensors_count(const ad_safetensors *file);
AD_API const ad_safetensor *ad_safetensors_at(const ad_safetensors *file, size_t index); /* in the order of names */
AD_API const ad_safetensor *ad_safetensors_find(const ad_safetensors *file, const char *name); /* NULL: none */
/* The text that the header's "__metadata__" has under `key`; NULL: none. Owned by the file. */
AD_API const char *ad_safetensors_metadata(const ad_safetensors *file, const char *key);

/* AD_INVALID if a value is infinite or NaN: names the file, and the first such element of the first tensors that have
 * any. Reads all of the file. */
AD_API AD_CHECKED ad_status ad_safetensors_check_values(const ad_safetensors *file);

/* Writing, tensor by tensor in the order given, so that the whole need not be in memory at once. */
typedef struct ad_safetensors_writer ad_safetensors_writer;
/* `tensors`: names, dtypes and shapes (data and bytes are ignored); wider dtypes first keep every tensor aligned.
 * `metadata`: pairs of key and text, ended by NULL; NULL: none. The header is padded to a multiple of 8 bytes. A file
 * of that name stays until the new one is finished. AD_IO; AD_INVALID for a name given twice
 * or "__metadata__", for a name or a text that is no UTF-8, a key without a text, and dtypes or shapes that are none.
 */
AD_API AD_CHECKED ad_status ad_safetensors_create(const char *path, const ad_safetensor *tensors, size_t count,
                                                  const char *const *metadata, ad_safetensors_writer **out);
/* Writes the data of the next tensor, all of it. AD_IO. */
AD_API AD_CHECKED ad_status ad_safetensors_add(ad_safetensors_writer *writer, const void *data);
/* Returns when the file is on disk and has its name; *bytes is its size, *checksum its xxhash64 (either pointer may be
 * NULL). AD_IO; AD_INVALID if tensors are missing. */
AD_API AD_CHECKED ad_status ad_safetensors_finish(ad_safetensors_writer *writer, int64_t *bytes, uint64_t *checksum);
/* Frees the writer. What was not finished is removed. NULL allowed. */
AD_API void ad_safetensors_writer_destroy(ad_safetensors_writer *writer);
/* xxhash64, as finish gives it of a file, of bytes in memory. `seed`: 0, or the checksum of what stands before. */
AD_API uint64_t ad_checksum(const void *data, size_t bytes, uint64_t seed);

#if defined(__cplusplus)
}
#endif
#endif

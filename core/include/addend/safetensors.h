/* Files in the safetensors format, as the Python package safetensors reads and writes them: header length as u64
 * little-endian, a JSON header, tensors without gaps (https://huggingface.co/docs/safetensors). Files from untrusted
 * sources may be opened: the whole header is checked before it is used.
 *
 * For users. Any number of threads may read an open file at a time; only one may use a writer. */
#ifndef ADDEND_SAFETENSORS_H
#define ADDEND_SAFETENSORS_H
#include "addend/layout.h"
#include "addend/dtype.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* One tensor, row-major; `data` has as many bytes as dtype and shape need. In an opened file `data` points into the
 * file's mapping and may not be aligned for its dtype: copy it before use. */
typedef struct ad_safetensor {
  const char *name;
  ad_dtype dtype; /* F64, F32, BF16, F16, I32 or I64; other dtypes are refused */
  ad_shape shape;
  const void *data;
  size_t bytes;
} ad_safetensor;

typedef struct ad_safetensors ad_safetensors;
/* Maps the file; a page is read when it is first accessed. AD_IO if the file cannot be read. AD_INVALID, naming path,
 * tensor and numbers, if it is no safetensors file: the header is longer than the file or than 100 MB, or is no JSON; a
 * name occurs twice; a dtype or shape is unknown; tensors overlap, leave a gap, lie outside the file, or have another
 * size than their shape gives. */
AD_API AD_CHECKED ad_status ad_safetensors_open(const char *path, ad_safetensors **out);
AD_API void ad_safetensors_close(ad_safetensors *file); /* NULL allowed */
AD_API size_t ad_safetensors_count(const ad_safetensors *file);
AD_API const ad_safetensor *ad_safetensors_at(const ad_safetensors *file, size_t index); /* in the order of names */
/* returns NULL if there is none */
AD_API const ad_safetensor *ad_safetensors_find(const ad_safetensors *file, const char *name);
/* Returns the text under `key` in the header's "__metadata__", NULL if there is none. Owned by the file. */
AD_API const char *ad_safetensors_metadata(const ad_safetensors *file, const char *key);

/* Returns AD_INVALID if a value is infinite or NaN. The message names the file, the first few tensors that have such a
 * value, and the index of the first such value in each of them. Reads the whole file. */
AD_API AD_CHECKED ad_status ad_safetensors_check_values(const ad_safetensors *file);

/* Writes a file tensor by tensor, in the given order, so that not all tensors need to be in memory together. */
typedef struct ad_safetensors_writer ad_safetensors_writer;
/* Begins a file. `tensors` gives names, dtypes and shapes (data and bytes are ignored); list tensors of wider dtypes
 * first to keep every tensor aligned. `metadata` has pairs of key and text, ended by NULL; NULL: none. The header is
 * padded to a multiple of 8 bytes. An existing file at `path` stays until the new one is finished. AD_IO. AD_INVALID: a
 * name is given twice or is "__metadata__", a name or a text is not UTF-8, a key has no text, a dtype or shape is
 * invalid. */
AD_API AD_CHECKED ad_status ad_safetensors_create(const char *path, const ad_safetensor *tensors, size_t count,
                                                  const char *const *metadata, ad_safetensors_writer **out);
/* Writes all data of the next tensor. AD_IO. */
AD_API AD_CHECKED ad_status ad_safetensors_add(ad_safetensors_writer *writer, const void *data);
/* Finishes the file: returns when it is on disk at `path`. *bytes is the file's size and *checksum its xxhash64; either
 * pointer may be NULL. AD_IO; AD_INVALID if not all tensors were added. */
AD_API AD_CHECKED ad_status ad_safetensors_finish(ad_safetensors_writer *writer, int64_t *bytes, uint64_t *checksum);
/* Frees the writer, and removes a file that was not finished. NULL allowed. */
AD_API void ad_safetensors_writer_destroy(ad_safetensors_writer *writer);
/* Returns the xxhash64 of bytes in memory, with seed 0 the same as ad_safetensors_finish gives for a file. To hash
 * several pieces one after another, pass the checksum of the piece before as `seed`. */
AD_API uint64_t ad_checksum(const void *data, size_t bytes, uint64_t seed);

#if defined(__cplusplus)
}
#endif
#endif

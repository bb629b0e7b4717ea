/* Functions on safetensors files that are not public: names of dtypes, and sharing a header that several files have. */
#ifndef FILES_SAFETENSORS_H
#define FILES_SAFETENSORS_H
#include "addend/safetensors.h"
#include "base/internal.h"

enum { AD_SAFETENSORS_HEADER_MAX = 100000000 }; /* most bytes of a header: the limit of the format's own reader */
int ad_safetensors_takes(ad_dtype dtype);       /* returns 1 if tensors of files can have the dtype, else 0 */
/* the dtype's name in files; NULL if files cannot have the dtype */
const char *ad_safetensors_dtype_name(ad_dtype dtype);
/* Returns the dtype of this name; 0 if there is none, or if addend does not have it. */
ad_dtype ad_safetensors_dtype(const char *name);
const char *ad_safetensors_path(const ad_safetensors *file);
/* Returns the memory of the file's mapped pages to the kernel; a page is read again when it is next accessed. */
void ad_safetensors_forget(const ad_safetensors *file);

/* These functions prefetch the memory that ad_safetensors_find reads, for searches through so many files that they are
 * not in the processor's cache. Call ad_safetensors_expect first (it prefetches the file's struct) and
 * ad_safetensors_expect_tensors a little later (it prefetches the tensors). */
void ad_safetensors_expect(const ad_safetensors *file);
void ad_safetensors_expect_tensors(const ad_safetensors *file);

/* Like ad_safetensors_open, but does not parse again those parts of the header that are the same in the header of
 * `like`, a file opened before, or NULL. `like` may be closed before the new file. */
AD_CHECKED ad_status ad_safetensors_open_like(const char *path, const ad_safetensors *like, ad_safetensors **out);
/* Returns 1 if both files share one table of names, because their headers were found to list the same tensors; else
 * 0. */
int ad_safetensors_share(const ad_safetensors *a, const ad_safetensors *b);

/* Like ad_safetensors_open, for a file whose bytes are in memory already. The bytes are borrowed until close; `path` is
 * used in messages only. */
AD_CHECKED ad_status ad_safetensors_parse(const void *bytes, size_t size, const char *path, ad_safetensors **out);

#endif

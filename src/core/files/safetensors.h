/* What other files of the library ask of safetensors files: names of dtypes, what headers have in common. */
#ifndef FILES_SAFETENSORS_H
#define FILES_SAFETENSORS_H
#include "addend/safetensors.h"
#include "base/internal.h"

enum { AD_SAFETENSORS_HEADER_MAX = 100000000 }; /* bytes; the limit of the format's own reader */
const char *ad_safetensors_dtype_name(ad_dtype dtype);
/* 0 for the name of a dtype that addend does not have, or of none. */
ad_dtype ad_safetensors_dtype(const char *name);
const char *ad_safetensors_path(const ad_safetensors *file);
/* Gives the memory of the mapped pages back; they are read again when they are touched. */
void ad_safetensors_forget(const ad_safetensors *file);

/* Of many files that are searched one after the other each is far from the processor: these bring nearer what
 * ad_safetensors_find reads of a file, first itself, and a little later its tensors. */
void ad_safetensors_expect(const ad_safetensors *file);
void ad_safetensors_expect_tensors(const ad_safetensors *file);

/* As ad_safetensors_open. What the header has in common with that of `like` (NULL: none), a file that was opened
 * before, is not parsed again but shared with it, also when that is closed. */
AD_CHECKED ad_status ad_safetensors_open_like(const char *path, const ad_safetensors *like, ad_safetensors **out);
/* Whether the headers of both were found to list the same tensors, in one table. */
int ad_safetensors_share(const ad_safetensors *a, const ad_safetensors *b);

/* As ad_safetensors_open, for a file whose bytes are in memory already. They are borrowed until close; `path` only
 * stands in messages. */
AD_CHECKED ad_status ad_safetensors_parse(const void *bytes, size_t size, const char *path, ad_safetensors **out);

#endif

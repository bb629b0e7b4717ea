/* Files of numpy.save with one array of unsigned integers or of bools, mapped into memory. */
#ifndef DATA_NPY_H
#define DATA_NPY_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

typedef struct ad_npy {
  const unsigned char *data; /* the elements, little endian, at any address; NULL: no file */
  int64_t count;
  int width; /* bytes of an element: 1, 2 or 4 */
  /* the address for munmap; NULL: the bytes are borrowed */
  void *mapping;
  size_t mapped;
} ad_npy;

/* Maps the file. Its elements must have one of the `widths` in bytes (1 | 2 | 4, added up); bools are bytes. AD_IO:
 * the file cannot be read. AD_INVALID: it is cut short, or is no .npy file of one dimension of unsigned integers or
 * bools, in C order and little endian. *out is unchanged on failure. */
ad_status ad_npy_open(const char *path, int widths, ad_npy *out) AD_CHECKED;
/* Reads a file that is in memory; borrows its bytes. */
ad_status ad_npy_parse(const void *bytes, size_t size, const char *path, int widths, ad_npy *out) AD_CHECKED;
void ad_npy_close(ad_npy *npy);
int64_t ad_npy_bytes(const ad_npy *npy); /* bytes of all elements */
uint32_t ad_npy_at(const ad_npy *npy, int64_t i);
/* The index of the first element of [first, first + count) that is `bound` or more; if none is, first + count. */
int64_t ad_npy_first_from(const ad_npy *npy, int64_t first, int64_t count, uint32_t bound);
/* Informs the kernel that the file will be read from its first page to its last. */
void ad_npy_read_ahead(const ad_npy *npy);
/* Gives the memory of the mapped pages back; they are read again when they are touched. */
void ad_npy_forget(const ad_npy *npy);

#endif

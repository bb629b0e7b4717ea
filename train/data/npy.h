/* Files of numpy.save with one array of unsigned integers or bools, mapped into memory. */
#ifndef DATA_NPY_H
#define DATA_NPY_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

typedef struct ad_npy {
  const unsigned char *data; /* the elements, little endian, perhaps not aligned; NULL if there is no file */
  int64_t count;
  int width; /* bytes of an element: 1, 2 or 4 */
  /* the address for munmap; NULL if the bytes are borrowed */
  void *mapping;
  size_t mapped;
} ad_npy;

/* Maps a file into memory. `widths` is the sum of the allowed bytes of an element (1 | 2 | 4); a bool is one byte.
 * Returns AD_IO if the file cannot be read. Returns AD_INVALID if the file is cut off, or is no .npy file of one
 * dimension of unsigned integers or bools, in C order and little endian. On failure *out is unchanged. */
ad_status ad_npy_open(const char *path, int widths, ad_npy *out) AD_CHECKED;
/* Reads a .npy file that is in memory, and borrows its bytes. */
ad_status ad_npy_parse(const void *bytes, size_t size, const char *path, int widths, ad_npy *out) AD_CHECKED;
void ad_npy_close(ad_npy *npy);
int64_t ad_npy_bytes(const ad_npy *npy); /* returns the bytes of all elements */
uint32_t ad_npy_at(const ad_npy *npy, int64_t i);
/* Returns the index of the first element in [first, first + count) that is `bound` or more, or first + count if there
 * is none. */
int64_t ad_npy_first_from(const ad_npy *npy, int64_t first, int64_t count, uint32_t bound);
/* Informs the kernel that the file will be read from start to end. */
void ad_npy_read_ahead(const ad_npy *npy);
/* Releases the memory of the mapped pages. A page is read from the file again when it is used. */
void ad_npy_forget(const ad_npy *npy);

#endif

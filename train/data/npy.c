/* Reads .npy files (NumPy Enhancement Proposal 1, formats 1.0 to 3.0). Every number in a header is checked before it
 * is used as an offset or a size. */
#include "data/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"

enum { MAGIC = 6, VERSION = 2, HEADER_MAX = 10000, WORD = 32, DIMS = 32 }; /* HEADER_MAX is the limit of numpy.load */

/* The text of a header, how far it has been read, and the values in it. */
typedef struct header {
  const char *path, *at, *end;
  char descr[WORD];
  int is_fortran;
  int64_t dims[DIMS];
  int dim_count;
} header;

static ad_status no_npy(const char *path, const char *what) {
  return ad_fail(AD_INVALID,
                 "%s: this is not a .npy file, since %s; write the file with numpy.save or addend_train.tokens", path,
                 what);
}

/* ---- the header, a Python literal: {'descr': '<u2', 'fortran_order': False, 'shape': (3,), } ---- */

static void skip_spaces(header *h) {
  while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t' || *h->at == '\r')) h->at++;
}

/* Skips spaces, and then `text` if it follows. Returns 1 if it followed. */
static int skip_text(header *h, const char *text) {
  size_t length = strlen(text);
  skip_spaces(h);
  if ((size_t)(h->end - h->at) < length || memcmp(h->at, text, length) != 0) return 0;
  h->at += length;
  return 1;
}

/* Reads a string in quotes. Returns 0 if none follows, or if it is too long. */
static int take_text(header *h, char word[WORD]) {
  skip_spaces(h);
  if (h->at == h->end || (*h->at != '\'' && *h->at != '"')) return 0;
  const char *first = h->at + 1, *last = memchr(first, *h->at, (size_t)(h->end - first));
  if (!last || last - first >= WORD) return 0;
  memcpy(word, first, (size_t)(last - first));
  word[last - first] = 0;
  h->at = last + 1;
  return 1;
}

static int take_number(header *h, int64_t *out) {
  skip_spaces(h);
  const char *first = h->at;
  for (*out = 0; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
    if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *h->at - '0', out)) return 0;
  if (h->at < h->end && *h->at == 'L') h->at++;  // Python 2 wrote an L after long numbers
  return h->at > first && *first != 'L';
}

/* Reads a tuple of numbers, "(3,)" or "(2, 3)". */
static int take_shape(header *h) {
  if (!skip_text(h, "(")) return 0;
  while (!skip_text(h, ")")) {
    if (h->dim_count == DIMS || !take_number(h, &h->dims[h->dim_count])) return 0;
    h->dim_count++;
    if (!skip_text(h, ",") && !(h->dim_count > 1 && h->at < h->end && *h->at == ')'))
      return 0;  // (3) is a number, not a tuple
  }
  return 1;
}

static int take_order(header *h) {
  h->is_fortran = skip_text(h, "True");
  return h->is_fortran || skip_text(h, "False");
}

/* Reads one entry of the dictionary. *seen has a bit for each key that was read before. */
static int take_entry(header *h, unsigned *seen) {
  static const char *const keys[] = {"descr", "fortran_order", "shape"};
  char key[WORD];
  unsigned k = 0;
  if (!take_text(h, key) || !skip_text(h, ":")) return 0;
  while (k < 3 && strcmp(keys[k], key) != 0) k++;
  if (k == 3 || *seen >> k & 1) return 0;
  *seen |= 1U << k;
  return k == 0 ? take_text(h, h->descr) : k == 1 ? take_order(h) : take_shape(h);
}

/* Reads the dictionary. Returns 1 if it has each of the three keys once, and nothing follows it. */
static int take_all(header *h) {
  unsigned seen = 0;
  if (!skip_text(h, "{")) return 0;
  while (!skip_text(h, "}")) {
    if (!take_entry(h, &seen)) return 0;
    skip_spaces(h);
    if (!skip_text(h, ",") && (h->at == h->end || *h->at != '}')) return 0;
  }
  skip_spaces(h);
  return seen == 7 && h->at == h->end;
}

/* ---- checking the header's dtype, shape and size ---- */

static const char *types_of(int widths) {
  return widths == 1 ? "uint8 or bool" : widths == 6 ? "uint16 or uint32" : "unsigned";
}

/* Returns advice on what to write in place of elements of another type, such as "i8". Following the advice changes no
 * id: a cast to 32 unsigned bits keeps ids, and turns a negative number into an id outside every vocabulary. */
static const char *advice(const char *type, int widths) {
  int is_whole = *type && strchr("iub", *type), bytes = is_whole ? type[1] - '0' : 0;
  if (widths == 1)
    return "a mask has 1 where a token counts and 0 where not. Save the array `array == 1`, or, if the array has "
           "labels, `array != -100`";
  if (bytes >= 4) return "save array.astype(numpy.uint32)";
  if (bytes > 0)
    return "save array.astype(numpy.uint16) if every id fits the present type, else save the ids of the tokenizer "
           "again, as numpy.uint32";
  return *type == 'f' ? "ids in floats may have been rounded, so save the ids of the tokenizer again, as numpy.uint32"
                      : "save the ids of the tokenizer, as numpy.uint32";
}

/* Checks that elements are unsigned, little endian, and of a width that is allowed. A bool is a byte of 0 or 1. */
static ad_status check_type(const header *h, int widths, int *width) {
  static const struct {
    const char *type;
    int width;
  } types[] = {{"u1", 1}, {"b1", 1}, {"u2", 2}, {"u4", 4}};
  const char *order = strchr("<|=>", h->descr[0]) && h->descr[0] ? h->descr : "<",
             *type = h->descr + (order == h->descr);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (!strcmp(type, types[i].type) && widths & types[i].width) *width = types[i].width;
  if (!*width)
    return ad_fail(AD_INVALID, "%s: the elements have the dtype '%s', but must be %s; %s", h->path, h->descr,
                   types_of(widths), advice(type, widths));
  if (*order == '>' && *width > 1)
    return ad_fail(AD_INVALID, "%s: the elements are big endian ('%s'); save array.astype('<u%d')", h->path, h->descr,
                   *width);
  return AD_OK;
}

static ad_status check_shape(const header *h) {
  if (h->dim_count != 1)
    return ad_fail(AD_INVALID, "%s: the array has %d dimensions, but must have one; save array.reshape(-1)", h->path,
                   h->dim_count);
  if (h->is_fortran)
    return ad_fail(AD_INVALID, "%s: the array is in Fortran order; save numpy.ascontiguousarray(array)", h->path);
  return h->dims[0]
             ? AD_OK
             : ad_fail(AD_INVALID, "%s: the array has no elements; name a file with elements, or leave this file out",
                       h->path);
}

/* Checks that the file has as many bytes of elements as its header states. */
static ad_status check_size(const header *h, int width, size_t bytes) {
  int64_t needed;
  if (!__builtin_mul_overflow(h->dims[0], (int64_t)width, &needed) && (size_t)needed == bytes) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: the header states %lld elements of %d byte%s, but %zu bytes follow the header, so %s; save the file again",
      h->path, (long long)h->dims[0], width, width == 1 ? "" : "s", bytes,
      bytes / (size_t)width < (size_t)h->dims[0] ? "the file is cut short" : "more bytes follow the array");
}

/* ---- opening and closing .npy files ---- */

/* Finds where the text of the header begins, and how long it is. */
static ad_status find_header(const unsigned char *bytes, size_t size, const char *path, header *out) {
  size_t first = MAGIC + VERSION, length = 0;
  if (size < first || memcmp(bytes, "\x93NUMPY", MAGIC) != 0)
    return no_npy(path, "the file does not begin as .npy files do");
  size_t number = bytes[MAGIC] == 1 ? 2 : 4;
  if (bytes[MAGIC] < 1 || bytes[MAGIC] > 3 || bytes[MAGIC + 1])
    return ad_fail(AD_INVALID,
                   "%s: the .npy format of the file is %d.%d, but only 1.0, 2.0 and 3.0 can be read; write the file "
                   "with numpy.save",
                   path, bytes[MAGIC], bytes[MAGIC + 1]);
  if (size < first + number) return no_npy(path, "the file is cut short in its header");
  for (size_t i = number; i-- > 0;) length = length << 8 | bytes[first + i];
  if (length > HEADER_MAX)
    return ad_fail(
        AD_INVALID,
        "%s: the header of this .npy file has %zu bytes, but at most %d are allowed; write the file with numpy.save",
        path, length, HEADER_MAX);
  if (length > size - first - number) return no_npy(path, "the file is cut short in its header");
  const char *text = (const char *)bytes + first + number;
  *out = (header){.path = path, .at = text, .end = text + length};
  return AD_OK;
}

ad_status ad_npy_parse(const void *bytes, size_t size, const char *path, int widths, ad_npy *out) {
  header h;
  int width = 0;
  AD_TRY(find_header(bytes, size, path, &h));
  if (!take_all(&h)) return no_npy(path, "its header is not a dictionary of descr, fortran_order and shape");
  AD_TRY(check_type(&h, widths, &width));
  AD_TRY(check_shape(&h));
  AD_TRY(check_size(&h, width, size - (size_t)(h.end - (const char *)bytes)));
  *out = (ad_npy){.data = (const unsigned char *)h.end, .count = h.dims[0], .width = width};
  return AD_OK;
}

static ad_status cannot_read(const char *path, const char *why) {
  return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path, why);
}

/* Maps an open file into memory, and reads its header. */
static ad_status map_file(const char *path, int opened, int widths, ad_npy *out) {
  struct stat found;
  if (fstat(opened, &found)) return cannot_read(path, strerror(errno));
  if (!S_ISREG(found.st_mode)) return cannot_read(path, "it is not a regular file");
  if (!found.st_size) return no_npy(path, "it is empty");
  size_t size = (size_t)found.st_size;
  void *mapping = mmap(NULL, size, PROT_READ, MAP_SHARED, opened, 0);
  if (mapping == MAP_FAILED) return cannot_read(path, strerror(errno));
  ad_status status = ad_npy_parse(mapping, size, path, widths, out);
  if (status) return munmap(mapping, size), status;
  out->mapping = mapping;
  out->mapped = size;
  return AD_OK;
}

ad_status ad_npy_open(const char *path, int widths, ad_npy *out) {
  int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) return cannot_read(path, strerror(errno));
  ad_status status = map_file(path, opened, widths, out);
  close(opened);
  return status;
}

void ad_npy_close(ad_npy *npy) {
  if (npy->mapping) munmap(npy->mapping, npy->mapped);
  *npy = (ad_npy){0};
}

void ad_npy_read_ahead(const ad_npy *npy) {
  if (npy->mapping) madvise(npy->mapping, npy->mapped, MADV_SEQUENTIAL);
}

void ad_npy_forget(const ad_npy *npy) {
  if (npy->mapping) madvise(npy->mapping, npy->mapped, MADV_DONTNEED);
}

int64_t ad_npy_bytes(const ad_npy *npy) { return npy->count * npy->width; }

/* ---- reading elements ---- */

static uint32_t load_1(const unsigned char *data, int64_t i) { return data[i]; }
static uint32_t load_2(const unsigned char *data, int64_t i) {
  uint16_t element;
  memcpy(&element, data + 2 * i, sizeof element);
  return element;
}
static uint32_t load_4(const unsigned char *data, int64_t i) {
  uint32_t element;
  memcpy(&element, data + 4 * i, sizeof element);
  return element;
}

uint32_t ad_npy_at(const ad_npy *npy, int64_t i) {
  return npy->width == 1 ? load_1(npy->data, i) : npy->width == 2 ? load_2(npy->data, i) : load_4(npy->data, i);
}

/* Returns 1 if some element of a run is `bound` or more. All comparisons are or-ed, without an early exit, so that the
 * compiler can use vector instructions. */
#define HAS_FROM(width, type)                                                                  \
  static int has_from_##width(const unsigned char *data, int64_t count, uint32_t bound) {      \
    type found = 0, least = (type)bound;                                                       \
    for (int64_t i = 0; i < count; i++) found |= (type)((type)load_##width(data, i) >= least); \
    return found;                                                                              \
  }
HAS_FROM(1, uint8_t)
HAS_FROM(2, uint16_t)
HAS_FROM(4, uint32_t)

static int has_from(const ad_npy *npy, int64_t first, int64_t count, uint32_t bound) {
  const unsigned char *data = npy->data + first * npy->width;
  if (npy->width < 4 && bound >> 8 * npy->width) return 0; /* no element of this width can be so large */
  return npy->width == 1   ? has_from_1(data, count, bound)
         : npy->width == 2 ? has_from_2(data, count, bound)
                           : has_from_4(data, count, bound);
}

int64_t ad_npy_first_from(const ad_npy *npy, int64_t first, int64_t count, uint32_t bound) {
  enum { BLOCK = 4096 };
  int64_t end = first + count;
  while (first < end && !has_from(npy, first, end - first < BLOCK ? end - first : BLOCK, bound))
    first += end - first < BLOCK ? end - first : BLOCK;
  while (first < end && ad_npy_at(npy, first) < bound) first++;
  return first;
}

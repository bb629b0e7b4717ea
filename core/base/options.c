/* Copies a caller's options structs, of this or any earlier version, to the library's own structs. */
#include "base/options.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"

static size_t size_of(const void *given) {
  size_t size;
  memcpy(&size, given, sizeof size);
  return size;
}

static ad_status check_size(size_t size, size_t own_size, const char *what) {
  if (size >= sizeof size && size <= own_size) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the field `size` of %s is %zu, but must be sizeof(%s), which is %zu in this library; set `size`, and "
                 "build with the headers of this library",
                 what, size, what, own_size);
}

static void copy_options(void *own, size_t own_size, const void *given, size_t size) {
  memset(own, 0, own_size);
  if (given) memcpy(own, given, size);
  memcpy(own, &own_size, sizeof own_size);
}

ad_status ad_options_take(void *own, size_t own_size, const void *given, const char *what) {
  size_t size = given ? size_of(given) : sizeof size;
  AD_TRY(check_size(size, own_size, what));
  copy_options(own, own_size, given, size);
  return AD_OK;
}

ad_status ad_options_take_all(void **own, size_t own_size, const void *given, size_t count, const char *what) {
  *own = NULL;
  if (!count) return AD_OK;
  size_t size = size_of(given);
  char *taken;
  for (size_t i = 0; i < count; i++) {
    if (size_of((const char *)given + i * size) == size)
      AD_TRY(check_size(size, own_size, what));
    else
      return ad_fail(AD_INVALID,
                     "the field `size` of element %zu in an array of %s differs from the `size` of element 0; set "
                     "`size` to sizeof(%s) in every element",
                     i, what, what);
  }
  AD_TRY(ad_new(count * own_size, &taken));
  for (size_t i = 0; i < count; i++) copy_options(taken + i * own_size, own_size, (const char *)given + i * size, size);
  *own = taken;
  return AD_OK;
}

ad_status ad_result_check(const void *out, size_t own_size, const char *what) {
  return check_size(size_of(out), own_size, what);
}

void ad_result_give(void *out, const void *own) {
  size_t size = size_of(out);
  memcpy((char *)out + sizeof size, (const char *)own + sizeof size, size - sizeof size);
}

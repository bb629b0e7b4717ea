/* Taking a caller's options. */
#include "base/options.h"

#include <string.h>
#include "base/error.h"

ad_status ad_options_take(void *own, size_t own_size, const void *given, const char *what) {
  size_t size = sizeof size;
  if (given) memcpy(&size, given, sizeof size);
  if (size < sizeof size || size > own_size) {
    return ad_fail(AD_INVALID, "%s: the field `size` is %zu; set it to sizeof(%s), which is %zu here", what, size, what,
                   own_size);
  }
  memset(own, 0, own_size);
  if (given) memcpy(own, given, size);
  memcpy(own, &own_size, sizeof own_size);
  return AD_OK;
}

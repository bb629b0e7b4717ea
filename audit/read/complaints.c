/* Collects error messages, so that a call can report all of them together. */
#include "read/complaints.h"

#include <stdio.h>

ad_status ad_complaints_add(ad_complaints *complaints, ad_status status) {
  if (!status || status == AD_MEMORY) return status;
  size_t room = sizeof complaints->words - complaints->used;
  if (!complaints->count || complaints->worst == AD_IO) complaints->worst = status;
  if (++complaints->count > AD_COMPLAINTS_SHOWN) return AD_OK;
  int length =
      snprintf(complaints->words + complaints->used, room, "%s%s", complaints->used ? "\n" : "", ad_last_error());
  if (length > 0) complaints->used += (size_t)length < room ? (size_t)length : room - 1;
  return AD_OK;
}

ad_status ad_complaints_end(const ad_complaints *complaints) {
  if (!complaints->count) return AD_OK;
  if (complaints->count <= AD_COMPLAINTS_SHOWN) return ad_fail(complaints->worst, "%s", complaints->words);
  return ad_fail(complaints->worst, "%s\nand %zu more errors like these", complaints->words,
                 complaints->count - AD_COMPLAINTS_SHOWN);
}

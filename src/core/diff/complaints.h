/* What is wrong with a call's files, collected so that all of it is said at once. */
#ifndef DIFF_COMPLAINTS_H
#define DIFF_COMPLAINTS_H
#include "base/error.h"
#include "base/text.h"

enum { AD_COMPLAINTS_SHOWN = 8 };
typedef struct ad_complaints {
  size_t count;
  ad_status worst;
  char words[AD_MESSAGE_MAX];
  size_t used;
} ad_complaints;

/* Of a call that failed: its message. AD_OK adds nothing. Memory that is lacking is no complaint and comes back. */
ad_status ad_complaints_add(ad_complaints *complaints, ad_status status) AD_CHECKED;
/* AD_OK if there are none, else all of them as the message. */
ad_status ad_complaints_end(const ad_complaints *complaints) AD_CHECKED;

#endif

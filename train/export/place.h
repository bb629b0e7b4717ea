/* Writes a folder under a temporary name, and gives it its final name when it is complete. */
#ifndef EXPORT_PLACE_H
#define EXPORT_PLACE_H
#include "addend/status.h"

typedef struct ad_export_place {
  char *folder;  /* the name that the folder gets */
  char *written; /* the temporary name under which the export is written */
  char *earlier; /* the temporary name of an earlier export while it is replaced */
  int overwrite; /* 1: an earlier export may be replaced */
} ad_export_place;

/* Makes the folder to write to. AD_INVALID if `folder` exists and may not be replaced; the message says what to do.
 * Only an earlier export may be replaced, and only with `overwrite`. */
ad_status ad_export_begin(const char *folder, int overwrite, ad_export_place *out) AD_CHECKED;
/* Ends an export whose writing returned the status `written`: gives a complete folder its name, and removes an
 * incomplete one. AD_INVALID if the name is taken now and may not be replaced. On failure an earlier export stays. */
ad_status ad_export_end(ad_export_place *place, ad_status written) AD_CHECKED;

#endif

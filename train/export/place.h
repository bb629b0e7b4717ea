/* Writes a folder under a temporary name, and renames it when it is complete. */
#ifndef EXPORT_PLACE_H
#define EXPORT_PLACE_H
#include "addend/status.h"

typedef struct ad_export_place {
  char *folder;  /* the final name of the folder */
  char *written; /* the temporary name, under which files are written */
  char *earlier; /* the temporary name of an earlier export until it is removed */
  int overwrite; /* 1: an earlier export may be replaced */
} ad_export_place;

/* Makes the folder to write to. An existing `folder` may be replaced only if it is an earlier export and `overwrite` is
 * 1; otherwise returns AD_INVALID with advice in the message. */
ad_status ad_export_begin(const char *folder, int overwrite, ad_export_place *out) AD_CHECKED;
/* Ends an export; `written` is the status of writing its files. Renames a complete folder to its final name, and
 * removes an incomplete one. Returns AD_INVALID if the name was taken meanwhile and may not be replaced. On failure an
 * earlier export stays. */
ad_status ad_export_end(ad_export_place *place, ad_status written) AD_CHECKED;

#endif

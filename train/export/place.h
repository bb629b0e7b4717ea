/* Writes a folder under a temporary name, and gives it its own name when it is complete. */
#ifndef EXPORT_PLACE_H
#define EXPORT_PLACE_H
#include "addend/status.h"

typedef struct ad_export_place {
  char *folder;  /* the name that the folder gets */
  char *written; /* the temporary name under which the export is written */
  char *earlier; /* the name that an earlier export has while it is replaced */
  int overwrite; /* 1: an earlier export may be replaced */
} ad_export_place;

/* Makes the folder that is written to. AD_INVALID, with what to do, if `folder` exists and may not be replaced: only an
 * earlier export may, and only with `overwrite`. */
ad_status ad_export_begin(const char *folder, int overwrite, ad_export_place *out) AD_CHECKED;
/* Ends an export whose writing had the status `written`: gives a complete folder its name, and removes an incomplete
 * one. AD_INVALID if the name was taken meanwhile by what may not be replaced. An earlier export stays on failure. */
ad_status ad_export_end(ad_export_place *place, ad_status written) AD_CHECKED;

#endif
